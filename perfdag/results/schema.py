"""The schema of results: one row is one metric of one sample, or one sample without values.

All columns are nullable in Arrow, and the schema only gains columns at its end. Units are SI base
units in a column of their own. `better` is stored and never guessed.
"""

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from perfdag.results.run_store import RunStore, SelectionError, result_key, runs_with_rows
from perfdag.store.base import NotStoredError, Store, StoreError, store_option
from perfdag.store.s3 import open_store
from perfdag.suite.document import choices
from perfdag.units import seconds

SCHEMA_VERSION = 1
_TEXT, _TIME = pa.string(), pa.timestamp("us", tz="UTC")

SAMPLES: pa.Schema = pa.schema(
    [
        ("schema_version", pa.int16()),
        # identity: what is measured
        ("suite", _TEXT),
        ("entry", _TEXT),
        ("benchmark", _TEXT),
        ("benchmark_version", _TEXT),
        ("point", _TEXT),
        ("params", _TEXT),  # canonical JSON, as requested, defaults filled in
        ("shape", _TEXT),  # canonical JSON
        ("coords", _TEXT),  # canonical JSON, as the tool gave them: message_bytes, direction ...
        ("metric", _TEXT),
        ("stat", _TEXT),  # value, mean, p50, p99, max ...
        ("series_id", _TEXT),
        ("env_class", _TEXT),  # hardware only; a column to compare, not part of series_id
        # run: which measurement of it
        ("run_id", _TEXT),
        ("trigger", _TEXT),  # manual, part (of a suite), cron, recheck, ab, import
        ("variant", _TEXT),  # A or B of an `ab` run
        ("batch", pa.int32()),
        ("repetition", pa.int16()),
        ("phase", _TEXT),  # warmup or measure
        ("order_index", pa.int32()),
        ("attempt", pa.int16()),
        ("subject", _TEXT),  # pod, VMI, rank or device; null: the whole
        ("sample_id", _TEXT),
        # value
        ("value", pa.float64()),
        ("unit", _TEXT),
        ("better", _TEXT),  # higher, lower, none
        ("headline", pa.bool_()),
        ("n", pa.int64()),  # observations behind the value
        # outcome
        ("status", _TEXT),  # ok, failed, invalid, missing, skipped
        ("error", _TEXT),
        ("noise", _TEXT),  # why the sample may be contaminated; null: it was not
        # time: the clock of the node that measured
        ("started_at", _TIME),
        ("finished_at", _TIME),
        # where
        ("cluster", _TEXT),
        ("nodes", pa.list_(pa.string())),
        ("env", _TEXT),  # canonical JSON
        # provenance
        ("perfdag_version", _TEXT),
        ("git_sha", _TEXT),
        ("image_digest", _TEXT),
        ("tool", _TEXT),
        ("command", _TEXT),
        ("raw_uri", _TEXT),
        ("workflow_uid", _TEXT),
        # two hosts or more
        # the measured hosts of the gang, `0-3`, in the order of their nodes' names; null: all
        ("pair", _TEXT),
        ("same_node", pa.bool_()),  # all hosts of the sample were on one node; null: one host
        ("span", _TEXT),  # what several hosts were on: node, nodes (of one zone or unknown), zones
        ("note", _TEXT),  # what the value alone cannot say: the figure that decided a verdict
        # what was measured, and by which suite: commits, or what the user or the CI calls them
        ("revision", _TEXT),
        ("revision_folder", _TEXT),  # the work tree of the commit; null: stated
        ("suite_revision", _TEXT),
    ]
)


ID_COLUMNS = ("series_id", "sample_id")
"""Text columns whose values are nearly all distinct."""

DICTIONARY_COLUMNS = tuple(
    column.name
    for column in SAMPLES
    if pa.types.is_string(column.type) and column.name not in ID_COLUMNS
)
"""Text columns with few distinct values, read dictionary-encoded to save memory."""


class NewerSchemaError(pa.ArrowInvalid):  # type: ignore[misc]
    """The rows are of a schema that this version does not know."""


def load_rows(
    store: Store,
    *,
    suites: Sequence[str] | None = None,
    runs: Sequence[str] | None = None,
    since: str = "",
    columns: Sequence[str] | None = None,
    damaged: list[str] | None = None,
) -> pa.Table:
    """Return rows of the store as a table of SAMPLES, oldest run first. Raises StoreError.

    `suites`, `runs` (run ids) and `since` (the beginning of the first run id) select files, and
    `columns` selects columns. Text columns are dictionary-encoded, and columns that an older file
    lacks are null. The key of an unreadable file is added to `damaged`.
    """
    schema = SAMPLES if columns is None else pa.schema([SAMPLES.field(name) for name in columns])
    keys = [
        result_key(suite, run)
        for run, suite in runs_with_rows(store).items()
        if (suites is None or suite in suites) and (runs is None or run in runs) and run >= since
    ]
    tables = []
    for key, data in store.get_many(keys):
        try:
            tables.append(read_rows(data, schema))
        except (pa.ArrowInvalid, OSError):
            if damaged is not None:
                damaged.append(key)
    return pa.concat_tables([_encoded(schema).empty_table(), *tables]).unify_dictionaries()


def distinct(column: pa.ChunkedArray | pa.Array) -> list[str]:
    """Return the texts of a column, each once and sorted."""
    return sorted(filter(None, pc.unique(column).to_pylist()))


def explain_unreadable(store: Store, entry: str) -> str:
    """Return a line that says what is wrong with a Parquet file, and what to do."""
    run = entry.rpartition("/")[2].removesuffix(".parquet")
    try:
        read_rows(store.get(entry))
    except NewerSchemaError as error:
        return f"left out: {entry}: {error}; update perfdag"
    except (pa.ArrowInvalid, OSError):
        command = f"perfdag collect {run} {store_option(store.root)}"
        return f"damaged, left out: {entry}; `{command}` writes it from its samples"
    except StoreError:  # not a key, but a note on a series
        pass
    return f"left out: {entry}"


def read_rows(data: bytes, schema: pa.Schema = SAMPLES) -> pa.Table:
    """Return the rows of one Parquet file in `schema`. Raises ArrowInvalid if it is damaged.

    Text columns are dictionary-encoded. A newer schema raises NewerSchemaError.
    """
    metadata = pq.read_metadata(pa.BufferReader(data))
    # A file of an older version lacks the columns that came later.
    present = set(metadata.schema.to_arrow_schema().names)
    dictionaries = [name for name in DICTIONARY_COLUMNS if name in present]
    file = pq.ParquetFile(pa.BufferReader(data), metadata=metadata, read_dictionary=dictionaries)
    encoded = _encoded(schema)
    # A thread of Arrow that releases `data` while the interpreter exits would abort the process
    # (apache/arrow#34314).
    columns = dict.fromkeys(["schema_version", *encoded.names])
    names = [name for name in columns if name in present]
    table = file.read(names, use_threads=False)
    newest = pc.max(table["schema_version"]).as_py() if "schema_version" in present else None
    if (newest or 0) > SCHEMA_VERSION:
        raise NewerSchemaError(f"its schema is {newest}, and this version reads {SCHEMA_VERSION}")
    arrays = [
        table.column(field.name).cast(field.type)
        if field.name in present
        else pa.nulls(table.num_rows, field.type)
        for field in encoded
    ]
    return pa.Table.from_arrays(arrays, schema=encoded)


def _encoded(schema: pa.Schema) -> pa.Schema:
    text = pa.dictionary(pa.int32(), pa.string())
    return pa.schema(
        [
            pa.field(column.name, text if column.name in DICTIONARY_COLUMNS else column.type)
            for column in schema
        ]
    )


_BEFORE = ("run_id", "started_at", "suite", "entry", "benchmark")
_AFTER = (
    *("metric", "stat", "subject", "repetition", "value", "unit", "better", "headline"),
    *("status", "error", "noise", "nodes", "cluster", "series_id"),
)
_JSON = {"params": "param_", "shape": "shape_", "coords": "coord_"}
"""Columns of JSON, and the prefix of a key whose name another column has."""
Since = str | date | timedelta


def load(
    store: str | Path | None = None,
    *,
    suite: str | None = None,
    since: Since | None = None,
    metric: str | Sequence[str] | None = None,
    run: str | None = None,
    everything: bool = False,
) -> pa.Table:
    """Return results of a store as an Arrow table, oldest run first.

    A row is one value in the SI base unit of its column `unit`. Each parameter, shape key and
    coordinate is a column; a nested key has a dot (`network.host`). A name that another column has
    gets the prefix `param_`, `shape_` or `coord_`. A row whose benchmark has no such key is null
    there. `since` selects the runs that began since: a date, a datetime, an ISO text, or an age
    such as `30d`. With `everything`, warm-up rounds, canaries, and samples that failed or are
    missing are rows too.

    Raises StoreError for a store without results, SelectionError for a suite, run or metric that
    it does not have, and ValueError for a text of `since` that is neither a date nor an age.
    """
    runs = RunStore(open_store(str(store) if store is not None else None))
    suites = runs.suites()
    if not suites:
        raise NotStoredError(f"store {runs.store.root} has no results")
    if suite not in (None, *suites):
        raise SelectionError(
            f"store {runs.store.root}: no suite {suite}{choices(suite, suites, 'there are')}"
        )
    chosen = {run_id: of for run_id, of in runs.suites_by_run.items() if suite in (None, of)}
    table = load_rows(
        runs.store,
        runs=[*chosen] if run is None else [runs.find(run, chosen)],
        since="" if since is None else f"{_start(since):%Y%m%dT%H%M%S}",
        columns=[*_BEFORE, *_AFTER, "phase", *_JSON],
    )
    if metric is not None:
        names = [metric] if isinstance(metric, str) else list(metric)
        measured = distinct(table["metric"])
        for name in names:
            if measured and name not in measured:
                raise SelectionError(
                    f"no value of metric {name}{choices(name, measured, 'there are')}"
                )
        table = table.filter(
            pc.is_in(table["metric"].cast(pa.string()), pa.array(names, pa.string()))
        )
    if not everything:
        of_suite = pc.fill_null(pc.not_equal(table["benchmark"], "canary"), True)
        table = table.filter(pc.and_(is_valid(table), of_suite))
    return _with_keys_as_columns(table)


def is_valid(table: pa.Table) -> pa.ChunkedArray:
    """Return a mask of the rows of valid samples, without warm-up."""
    ok = pc.and_(pc.equal(table["status"], "ok"), pc.equal(table["phase"], "measure"))
    return pc.fill_null(ok, False)


def is_measured(table: pa.Table) -> pa.ChunkedArray:
    """Return a mask of the rows to analyse: valid, and of the whole sample."""
    is_whole = pc.and_(pc.is_finite(table["value"]), pc.is_null(table["subject"]))
    return pc.fill_null(pc.and_(is_valid(table), is_whole), False)


def codes(column: pa.ChunkedArray) -> tuple[NDArray[np.int64], list[Any]]:
    """Return a text column as numbers, and the text of each number. Null is -1."""
    array = column.dictionary_encode().unify_dictionaries().combine_chunks()
    return numbers(array.indices, -1).astype(np.int64), array.dictionary.to_pylist()


def objects(column: pa.ChunkedArray) -> list[Any]:
    """Return a column as Python objects.

    Equal texts of a dictionary are one object. Arrow would make each anew, forty times as slowly.
    """
    if not pa.types.is_dictionary(column.type):
        result: list[Any] = column.to_pylist()
        return result
    numbers_of_texts, texts = codes(column)
    texts.append(None)  # of null, whose number is -1: the last one
    return [texts[number] for number in numbers_of_texts.tolist()]


def numbers(column: pa.ChunkedArray | pa.Array, absent: float = math.nan) -> NDArray[Any]:
    """Return a numeric column as an array, with `absent` where it is null.

    It goes through dlpack, because to_numpy imports pandas where it is installed, which takes
    longer than everything else.
    """
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return np.from_dlpack(array.fill_null(absent) if array.null_count else array)


def facts_of_nodes(table: pa.Table) -> dict[str, dict[str, Any]]:
    """Return the newest facts of the nodes of a table with the columns `env` and `nodes`."""
    facts: dict[str, dict[str, Any]] = {}
    environments, texts = codes(table["env"])
    leads = [names[0] if names else None for names in table["nodes"].to_pylist()]
    for number, node in dict.fromkeys(zip(environments.tolist(), leads, strict=True)):
        if number >= 0 and node is not None:
            env = orjson.loads(texts[number])
            facts |= {node: env, **env.get("peers", {})}
    return facts


def _with_keys_as_columns(table: pa.Table) -> pa.Table:
    columns = {name: table[name].cast(SAMPLES.field(name).type) for name in (*_BEFORE, *_AFTER)}
    keys: dict[str, Any] = {}
    for source, prefix in _JSON.items():
        for key, values in _keys(table[source]):
            keys[prefix + key if key in columns or key in keys else key] = values
    names = [*_BEFORE, *keys, *_AFTER]
    return pa.table({name: keys[name] if name in keys else columns[name] for name in names})


def _keys(column: pa.ChunkedArray) -> Iterator[tuple[str, pa.Array]]:
    """Yield the keys of the JSON objects in a dictionary-encoded column, with their values."""
    numbers_of_texts, texts = codes(column)
    used, position = np.unique(numbers_of_texts, return_inverse=True)
    objects = [dict(_flat(orjson.loads(texts[at]))) for at in used]
    for key in dict.fromkeys(key for item in objects for key in item):
        yield key, _array([item.get(key) for item in objects]).take(pa.array(position))


def _flat(value: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, below in value.items():
        if isinstance(below, dict):
            yield from _flat(below, f"{prefix}{key}.")
        else:
            yield prefix + key, below


def _array(values: list[Any]) -> pa.Array:
    """Return values as an array of their type. Lists, and values of several types, become JSON."""
    kinds = {int if type(value) is float else type(value) for value in values if value is not None}
    if len(kinds) > 1 or list in kinds:
        values = [
            value if value is None or isinstance(value, str) else orjson.dumps(value).decode()
            for value in values
        ]
    return pa.array(values)


def _start(since: Since) -> datetime:
    """Return the moment of a date, a datetime or an ISO text, or the one of an age before now."""
    if isinstance(since, timedelta):
        return datetime.now(UTC) - since
    try:
        moment = datetime.fromisoformat(str(since))
    except ValueError:
        return datetime.now(UTC) - _age(str(since))
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def _age(text: str) -> timedelta:
    try:
        return timedelta(seconds=seconds(text))
    except ValueError:
        raise ValueError(
            f"since: {text!r} is neither a date such as 2026-11-01 nor an age such as 30d"
        ) from None

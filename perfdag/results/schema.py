"""The schema of results: one row is one metric of one sample, or one sample without values.

All columns are nullable in Arrow, and the schema only gains columns at its end. Units are SI base
units in a column of their own. `better` is stored and never guessed.
"""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from perfdag.results.result_files import month_of, result_key, stored_runs
from perfdag.store.base import Store, StoreError

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
        ("trigger", _TEXT),  # manual, part (of a suite), cron, confirm, ab, import
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
    months: Sequence[str] | None = None,
    runs: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    damaged: list[str] | None = None,
) -> pa.Table:
    """Return rows of the store as a table of SAMPLES, oldest run first. Raises StoreError.

    `suites`, `months` (YYYY-MM) and `runs` (run ids) select files, `columns` selects columns. Text
    columns are dictionary-encoded, and columns that an older file lacks are null. The key of an
    unreadable file is added to `damaged`.
    """
    schema = SAMPLES if columns is None else pa.schema([SAMPLES.field(name) for name in columns])
    keys = [
        result_key(suite, run)
        for run, suite in stored_runs(store)
        if (suites is None or suite in suites)
        and (months is None or month_of(run) in months)
        and (runs is None or run in runs)
    ]
    tables = []
    for key, data in store.get_many(keys):
        try:
            tables.append(read_rows(data, schema))
        except (pa.ArrowInvalid, OSError):
            if damaged is not None:
                damaged.append(key)
    return pa.concat_tables([_encoded(schema).empty_table(), *tables]).unify_dictionaries()


def explain_unreadable(store: Store, entry: str) -> str:
    """Return a line that says what is wrong with a Parquet file, and what to do."""
    run = entry.rpartition("/")[2].removesuffix(".parquet")
    try:
        read_rows(store.get(entry))
    except NewerSchemaError as error:
        return f"left out: {entry}: {error}; update perfdag"
    except (pa.ArrowInvalid, OSError):
        return f"damaged, left out: {entry}; `perfdag collect {run}` writes it from its samples"
    except StoreError:  # not a key, but a note on a series
        pass
    return f"left out: {entry}"


def read_rows(data: bytes, schema: pa.Schema = SAMPLES) -> pa.Table:
    """Return the rows of one Parquet file in `schema`. Raises ArrowInvalid if it is damaged.

    Text columns are dictionary-encoded. A newer schema raises NewerSchemaError.
    """
    metadata = pq.read_metadata(pa.BufferReader(data))
    if (newest := _newest_schema(metadata)) > SCHEMA_VERSION:
        raise NewerSchemaError(f"its schema is {newest}, and this version reads {SCHEMA_VERSION}")
    # A file of an older version lacks the columns that came later.
    present = set(metadata.schema.to_arrow_schema().names)
    dictionaries = [name for name in DICTIONARY_COLUMNS if name in present]
    file = pq.ParquetFile(pa.BufferReader(data), metadata=metadata, read_dictionary=dictionaries)
    wanted = _encoded(schema)
    # A thread of Arrow that releases `data` while the interpreter exits would abort the process
    # (apache/arrow#34314).
    table = file.read([name for name in wanted.names if name in present], use_threads=False)
    arrays = [
        table.column(field.name).cast(field.type)
        if field.name in present
        else pa.nulls(table.num_rows, field.type)
        for field in wanted
    ]
    return pa.Table.from_arrays(arrays, schema=wanted)


def _newest_schema(metadata: pq.FileMetaData) -> int:
    """Return the largest schema version by the statistics of a file, or 0 where it has none."""
    if "schema_version" not in metadata.schema.names:
        return 0
    column = metadata.schema.names.index("schema_version")
    groups = (metadata.row_group(i).column(column) for i in range(metadata.num_row_groups))
    return max((group.statistics.max for group in groups if group.is_stats_set), default=0)


def _encoded(schema: pa.Schema) -> pa.Schema:
    text = pa.dictionary(pa.int32(), pa.string())
    return pa.schema(
        [
            pa.field(column.name, text if column.name in DICTIONARY_COLUMNS else column.type)
            for column in schema
        ]
    )

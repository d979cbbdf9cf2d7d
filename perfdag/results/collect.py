"""Collect a run: its samples become one Parquet file, written once and atomically.

Collecting twice gives the same bytes: rows are in the order of the plan, and nothing depends on
the time of collecting. A planned sample that is not stored is a row too, with the status and the
text of its MissingReason. Samples may be removed once they are collected: their rows stay.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from perfdag.benchmark import registry
from perfdag.digest import canonical, digest, digests
from perfdag.plan.plan import Plan, gc_paused
from perfdag.results.labels import span_of
from perfdag.results.missing_reason import reason_for, stored_reasons
from perfdag.results.runs import RunStore, month_of, result_key, rollup_key, run_folder, sample_key
from perfdag.results.samples import SampleRecord, headline, read_sample
from perfdag.results.schema import (
    ID_COLUMNS,
    SAMPLES,
    SCHEMA_VERSION,
    explain_unreadable,
    read_rows,
)
from perfdag.stats.robust import median, relative_precision
from perfdag.store.base import DamagedError, NotStoredError, Store

ERROR_LIMIT = 500
"""Characters of an error in a row."""
CHUNK_ROWS = 1 << 16
_AS_STORED = ("metric", "stat", "subject", "value", "unit", "better", "headline", "n", "note")
_DERIVED = ("coords", "series_id", "sample_id")
_STORED_TYPE = pa.struct([SAMPLES.field(name) for name in _AS_STORED])


class TableBuilder:
    """Columns under construction.

    The constants of a sample are kept once and repeated for its rows at the end. `reached` holds
    the count and relative precision of points with `until`.
    """

    def __init__(self, plan: Plan, store: Store) -> None:
        self.reached: dict[str, tuple[int, float | None]] = {}
        self.seconds: dict[int, list[float]] = {}
        self._plan = plan
        self._raw = store.url(f"{run_folder(plan.run_id)}/parts")
        self._samples: list[dict[str, Any]] = []
        self._counts: list[int] = []
        self._columns: dict[str, list[str]] = {name: [] for name in _DERIVED}
        self._pending: list[dict[str, Any]] = []
        self._shapes = [shape.text() for shape in plan.shapes]
        self._params: dict[int, str] = {}
        self._chunks: dict[str, list[pa.Array]] = {name: [] for name in (*_AS_STORED, *_DERIVED)}
        self._texts: dict[str, str] = {}
        self._values: dict[int, list[float]] = {}
        self._env: dict[bytes, str] = {}
        self._reasons = stored_reasons(store, plan.run_id)
        self._run = {
            "suite": plan.suite,
            "run_id": plan.run_id,
            "trigger": plan.trigger,
            "variant": plan.variant,
            "cluster": plan.where.get("cluster"),
            "workflow_uid": plan.where.get("workflow_uid"),
            "perfdag_version": plan.versions.get("perfdag"),
            "git_sha": plan.versions.get("git"),
        }

    def add(self, position: int, record: SampleRecord) -> None:
        """Add the sample at a position of the plan's order."""
        index, repetition = self._plan.order[position]
        point = self._plan.points[index]
        sample = self._constants(index, repetition, position)
        sample["span"] = span_of(record.nodes, self._where(record).get("nodes") or {})
        self._measured(sample, record, self._plan.key(position))
        if record.status == "ok" and sample["started_at"] and sample["finished_at"]:
            took = sample["finished_at"] - sample["started_at"]
            self.seconds.setdefault(index, []).append(took.total_seconds())
        if (
            point.until is not None
            and record.status == "ok"
            and repetition > 0
            and (value := headline(record.rows)) is not None
        ):
            self._values.setdefault(index, []).append(value)

    def _canonical_env(self, record: SampleRecord) -> str:
        merged = {
            **record.env,
            **({"sample": record.facts} if record.facts else {}),
            **self._cluster_of(record),
        }
        key = orjson.dumps(merged, option=orjson.OPT_SORT_KEYS)
        if key not in self._env:
            self._env[key] = canonical(merged)
        return self._env[key]

    def _where(self, record: SampleRecord) -> dict[str, Any]:
        """Return the facts of the cluster as the Workflow of this sample recorded them."""
        where = self._plan.where
        return where.get("before", {}).get(record.where.get("workflow_uid"), where) or {}

    def _cluster_of(self, record: SampleRecord) -> dict[str, Any]:
        """Return the cluster as the Workflow of this sample recorded it, with the node kinds."""
        where = self._where(record)
        if "kubernetes" not in where:
            return {}
        nodes = {
            canonical(where["nodes"][name])
            for name in record.nodes
            if name in (where.get("nodes") or {})
        }
        kinds = [orjson.loads(kind) for kind in sorted(nodes)]
        return {
            "cluster": {
                **{
                    name: where.get(name)
                    for name in ("kubernetes", "csi", "daemons", "network_policy")
                },
                "nodes": kinds,
            }
        }

    def _constants(self, index: int, repetition: int, position: int) -> dict[str, Any]:
        point = self._plan.points[index]
        if index not in self._params:
            self._params[index] = canonical(point.params)
        return {
            "entry": point.entry,
            "benchmark": point.benchmark,
            "point": point.id,
            "params": self._params[index],
            "shape": self._shapes[point.shape],
            "repetition": abs(repetition),
            "phase": "measure" if repetition > 0 else "warmup",
            "order_index": position,
            **self._run,
            "pair": point.pair.name if point.pair else None,
        }

    def _rows(self, sample: dict[str, Any], rows: list[dict[str, Any]]) -> None:
        rows = rows or [{}]
        self._pending += rows
        texts = [
            orjson.dumps(row["coords"], option=orjson.OPT_SORT_KEYS).decode()
            if "coords" in row
            else "{}"
            for row in rows
        ]
        self._columns["coords"] += [self._texts.setdefault(text, text) for text in texts]
        names = [
            f"{text}\x1f{row.get('metric') or ''}\x1f{row.get('stat') or ''}"
            for text, row in zip(texts, rows, strict=True)
        ]
        head = (self._plan.suite, sample["point"], sample["benchmark_version"] or "")
        # Figures within a node and between nodes are two series.
        series = digests((*head, span) if (span := sample.get("span")) else head, names)
        of_run = (
            self._plan.run_id,
            sample["variant"] or "",
            str(sample["repetition"]),
            sample["phase"],
        )
        subjects = [row.get("subject") or "" for row in rows]
        samples = {subject: digest(*of_run, subject) for subject in set(subjects)}
        self._columns["series_id"] += series
        self._columns["sample_id"] += [
            series_id + samples[subject]
            for series_id, subject in zip(series, subjects, strict=True)
        ]
        self._counts.append(len(rows))
        if len(self._pending) >= CHUNK_ROWS:
            self._flush()

    def _flush(self) -> None:
        """Move pending rows into Arrow arrays, which need a tenth of the memory."""
        for name, values in zip(
            _AS_STORED, pa.array(self._pending, _STORED_TYPE).flatten(), strict=True
        ):
            self._chunks[name].append(values)
        self._pending.clear()
        for name, texts in self._columns.items():
            self._chunks[name].append(pa.array(texts, SAMPLES.field(name).type))
            texts.clear()

    def add_absent(self, positions: Iterable[int]) -> None:
        """Add rows for samples that are not stored, except those after `until` was reached."""
        batch_of = {
            pos: number for number, batch in enumerate(self._plan.batches) for pos in batch.samples
        }
        for index, values in self._values.items():
            self.reached[self._plan.points[index].id] = (
                len(values),
                relative_precision(values),
            )
        for position in sorted(positions):
            index, repetition = self._plan.order[position]
            point = self._plan.points[index]
            if point.until is not None and repetition > point.repetitions and self._reached(index):
                continue
            batch = batch_of.get(position)
            reason = reason_for(self._reasons, batch, self._plan.key(position))
            sample = self._constants(index, repetition, position)
            sample |= {
                "status": reason.status,
                "error": reason.text,
                "benchmark_version": None,
                "batch": batch,
                "attempt": reason.attempt,
                "nodes": reason.node and [reason.node],
            }
            self._samples.append(sample)
            self._rows(sample, [])

    def _reached(self, index: int) -> bool:
        until = self._plan.points[index].until
        reached = relative_precision(self._values.get(index, []))
        return until is not None and reached is not None and reached <= until.relative_spread

    def add_canary(self, record: SampleRecord) -> None:
        """Add the canary of a round."""
        sample: dict[str, Any] = {
            "entry": "canary",
            "benchmark": "canary",
            "point": "canary",
            "params": "{}",
            "shape": "{}",
            "repetition": record.repetition,
            "phase": "measure",
            **self._run,
        }
        self._measured(sample, record, f"canary-b{record.batch}n{record.repetition}")

    def _measured(self, sample: dict[str, Any], record: SampleRecord, name: str) -> None:
        """Add the rows of a stored sample."""
        raw = f"{self._raw}/{name}.json"
        sample |= _sample_columns(record) | {"env": self._canonical_env(record), "raw_uri": raw}
        self._samples.append(sample)
        self._rows(sample, record.rows)

    def table(self) -> pa.Table:
        """Return the table of all samples that were added."""
        self._flush()
        spread_over = pa.array(
            np.repeat(np.arange(len(self._samples), dtype=np.int32), self._counts)
        )
        arrays = []
        for column in SAMPLES:
            if column.name in self._chunks:
                arrays.append(pa.chunked_array(self._chunks.pop(column.name), column.type))
            elif column.name == "schema_version":
                arrays.append(pa.array(np.full(sum(self._counts), SCHEMA_VERSION, dtype=np.int16)))
            else:
                values = pa.array(
                    [sample.get(column.name) for sample in self._samples], column.type
                )
                arrays.append(_spread(values, spread_over))
        return pa.Table.from_arrays(arrays, names=SAMPLES.names)


def _spread(values: pa.Array, over: pa.Array) -> pa.Array:
    """Repeat the values of the samples for each of their rows.

    Text stays dictionary-encoded, so that a long value is stored once.
    """
    if not pa.types.is_string(values.type):
        return values.take(over)
    encoded = values.dictionary_encode()
    return pa.DictionaryArray.from_arrays(encoded.indices.take(over), encoded.dictionary)


def _sample_columns(record: SampleRecord) -> dict[str, Any]:
    return {
        "benchmark_version": record.benchmark_version or None,
        "status": record.status,
        "error": record.error[:ERROR_LIMIT] if record.error else None,
        "noise": record.noise,
        "started_at": _time(record.started_at),
        "finished_at": _time(record.finished_at),
        "nodes": record.nodes,
        "same_node": len(set(record.nodes)) == 1 if len(record.nodes) > 1 else None,
        "env_class": record.env_class or None,
        "batch": record.batch,
        "attempt": record.attempt,
        "image_digest": record.where.get("image_digest"),
        **(
            {"workflow_uid": record.where["workflow_uid"]} if "workflow_uid" in record.where else {}
        ),
        "tool": record.tool or None,
        "command": " && ".join(" ".join(argv) for argv in record.commands) or None,
    }


def _time(text: str) -> Any:
    return datetime.fromisoformat(text) if text else None


@dataclass
class CollectionResult:
    """The result of collecting: the key of the Parquet file, and its rows.

    `reached` holds the count and relative precision of points with `until`, `damaged` the names of
    unreadable samples. `complete`: every sample of the plan is stored. `kept`: samples were removed
    after they were collected, and the rows are those of the Parquet file, which stays as it is.
    `seconds` has the durations of the ok samples by the index of their point.
    """

    key: str
    rows: int
    reached: dict[str, tuple[int, float | None]]
    damaged: list[str]
    complete: bool
    kept: bool = False
    seconds: Mapping[int, Sequence[float]] = field(default_factory=dict)


def collect(store: Store, plan: Plan) -> tuple[pa.Table, CollectionResult]:
    """Write the Parquet file of a run from its samples, and return its rows. Raises StoreError.

    The plan gets the durations, for the estimates of the next run.
    """
    table, collected = gather(store, plan)
    if not collected.kept:
        write_rows(store, plan.suite, plan.run_id, table)
        for index, seconds in collected.seconds.items():
            plan.points[index].seconds = median(seconds)
        RunStore(store).put_plan(plan)
    return table, collected


def write_rows(store: Store, suite: str, run_id: str, table: pa.Table) -> None:
    """Write the Parquet file of a run from a table of SAMPLES. Raises StoreError."""
    sink = pa.BufferOutputStream()
    # Without the Arrow schema a reader gets plain strings, whatever the encoding in memory.
    # A dictionary of distinct values only makes the file larger.
    encoded = [name for name in table.column_names if name not in ID_COLUMNS]
    pq.write_table(
        table,
        sink,
        compression="zstd",
        store_schema=False,
        version="2.6",
        data_page_version="1.0",
        use_dictionary=encoded,
    )
    store.put(result_key(suite, run_id), sink.getvalue().to_pybytes())
    # It is a cache, and lacks these rows.
    store.delete(rollup_key(suite, month_of(run_id)))


def gather(store: Store, plan: Plan) -> tuple[pa.Table, CollectionResult]:
    """Return the rows of a run as a table of SAMPLES. Raises StoreError.

    Repetitive columns are dictionary-encoded.
    """
    stored = RunStore(store).samples(plan.run_id)
    if (rows := kept_rows(store, plan, stored)) is not None:
        key = result_key(plan.suite, plan.run_id)
        return rows, CollectionResult(key, rows.num_rows, {}, [], True, kept=True)
    with gc_paused():
        return _gather(store, plan, stored)


def kept_rows(store: Store, plan: Plan, stored: Set[str]) -> pa.Table | None:
    """Return the rows of a run that has samples no more that it was collected from, or None.

    `stored` has the names of its samples. Raises StoreError, DamagedError where nothing else is
    left of the run.
    """
    key = result_key(plan.suite, plan.run_id)
    try:
        data = store.get(key)
        sources = read_rows(data, pa.schema([SAMPLES.field("raw_uri")]))["raw_uri"]
    except (NotStoredError, pa.ArrowInvalid, OSError):
        if plan.order:
            return None
        raise DamagedError(f"store {store.root}: {explain_unreadable(store, key)}") from None
    names = filter(None, pc.unique(sources).to_pylist())
    collected = {name.rpartition("/")[2].removesuffix(".json") for name in names}
    return read_rows(data) if collected - stored or not plan.order else None


def _gather(store: Store, plan: Plan, stored: Set[str]) -> tuple[pa.Table, CollectionResult]:
    builder = TableBuilder(plan, store)
    damaged = []
    order = sorted(
        range(len(plan.order)),
        key=lambda pos: (plan.point_at(pos).benchmark, *plan.order[pos]),
    )
    names = [(pos, plan.key(pos)) for pos in order]
    present = [(pos, name) for pos, name in names if name in stored]
    contents = store.get_many([sample_key(plan.run_id, name) for _, name in present])
    absent: list[int] = []
    for (pos, name), (_, data) in zip(present, contents, strict=True):
        try:
            builder.add(pos, read_sample(data))
        except ValueError:
            damaged.append(name)
            absent.append(pos)
    absent += [pos for pos, name in names if name not in stored]
    builder.add_absent(absent)
    canaries = sorted(name for name in stored if name.startswith("canary-"))
    for name, (_, data) in zip(
        canaries, store.get_many([sample_key(plan.run_id, name) for name in canaries]), strict=True
    ):
        try:
            builder.add_canary(read_sample(data))
        except ValueError:
            damaged.append(name)
    table = builder.table()
    return table, CollectionResult(
        result_key(plan.suite, plan.run_id),
        table.num_rows,
        builder.reached,
        damaged,
        complete=not absent,
        seconds=builder.seconds,
    )


def write_exports(store: Store, run_id: str, rows: pa.Table) -> list[str]:
    """Write the exports of every benchmark of a run.

    Return a line for each: its address, or an error. An export that fails affects neither the
    others nor the run. Raises StoreError.
    """
    lines: list[str] = []
    for name in filter(registry.usable, sorted(set(pc.unique(rows["benchmark"]).to_pylist()))):
        exporter = registry.get(name)
        try:
            files = exporter.exports(rows.filter(pc.equal(rows["benchmark"], name)))
        except Exception as error:
            lines.append(f"not written, export of {name}: {type(error).__name__}: {error}")
            continue
        for file, data in files.items():
            key = f"{run_folder(run_id)}/{file}"
            store.put(key, data)
            lines.append(store.url(key))
    return lines

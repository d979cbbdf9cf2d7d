"""Collect a run: its samples become one Parquet file, written once and atomically.

Collecting twice gives the same bytes: rows are in the order of the plan, and nothing depends on
the time of collecting. A planned sample that is not stored is a row too, with the status and the
text of its MissingReason. Samples may be removed once they are collected: their rows stay.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from perfdag.benchmark import registry
from perfdag.identity import canonical, digest
from perfdag.plan import Plan
from perfdag.results.labels import span_of
from perfdag.results.run_store import month_of, put_plan, result_key, rollup_key, run_folder
from perfdag.results.samples import (
    SampleRecord,
    read_samples,
    reason_for,
    stored_reasons,
    stored_samples,
)
from perfdag.results.schema import (
    ID_COLUMNS,
    SAMPLES,
    SCHEMA_VERSION,
    explain_unreadable,
    read_rows,
)
from perfdag.revision import Revision
from perfdag.stats.robust import median, relative_precision
from perfdag.store.base import DamagedError, NotStoredError, Store

ERROR_LIMIT = 500
"""Characters of an error in a row."""
CHUNK_ROWS = 1 << 16
_OF_ROW = (
    *("metric", "stat", "subject", "value", "unit", "better", "headline", "n", "note"),
    *("coords", "series_id", "sample_id"),
)
"""The columns of a row. The others are of its sample."""
_ROW = pa.struct([SAMPLES.field(name) for name in _OF_ROW])


class _Rows:
    """The rows of a plan under construction. The columns of a sample are kept once, to the end."""

    def __init__(self, store: Store, plan: Plan) -> None:
        self._plan = plan
        self._raw = store.url(f"{run_folder(plan.run_id)}/parts")
        self._params = [canonical(point.params) for point in plan.points]
        self._shapes = [canonical(shape.data()) for shape in plan.shapes]
        self._environments: dict[bytes, str] = {}
        self._run = {
            "schema_version": SCHEMA_VERSION,
            "suite": plan.suite,
            "run_id": plan.run_id,
            "trigger": plan.trigger,
            "variant": plan.variant,
            "cluster": plan.where.get("cluster"),
            "workflow_uid": plan.where.get("workflow_uid"),
            "perfdag_version": plan.versions.get("perfdag"),
            "git_sha": plan.versions.get("git"),
            "suite_revision": plan.suite_revision or None,
        }
        self._samples: list[dict[str, Any]] = []
        self._counts: list[int] = []
        self._pending: list[dict[str, Any]] = []
        self._chunks: list[pa.Array] = []

    def planned(self, position: int) -> dict[str, Any]:
        """Return what the plan says of the sample at a position of its order, as columns."""
        index, repetition = self._plan.order[position]
        point = self._plan.points[index]
        revision = self._plan.revisions.get(point.entry) or Revision("")
        return {
            "entry": point.entry,
            "benchmark": point.benchmark,
            "point": point.id,
            "params": self._params[index],
            "shape": self._shapes[point.shape],
            # A negative repetition is that of a warm-up round.
            "repetition": abs(repetition),
            "phase": "measure" if repetition > 0 else "warmup",
            "order_index": position,
            "pair": point.pair.name if point.pair else None,
            "revision": revision.name or None,
            "revision_folder": revision.folder or None,
        }

    def add_stored(self, name: str, record: SampleRecord, columns: Mapping[str, Any]) -> None:
        """Add a sample that is stored as `name`, with the columns that it does not have itself."""
        # as the Workflow of this sample recorded the cluster; a resumed run has several
        before = self._plan.where.get("before", {})
        where = before.get(record.where.get("workflow_uid"), self._plan.where) or {}
        environment = _environment(record, where)
        packed = orjson.dumps(environment, option=orjson.OPT_SORT_KEYS)
        if packed not in self._environments:
            self._environments[packed] = canonical(environment)
        sample = {
            **columns,
            **_measured(record),
            "env": self._environments[packed],
            "raw_uri": f"{self._raw}/{name}.json",
        }
        if columns["benchmark"] != "canary":
            sample["span"] = span_of(record.nodes, where.get("nodes") or {})
        self.add(sample, record.rows)

    def add(self, sample: Mapping[str, Any], rows: Sequence[dict[str, Any]] = ()) -> None:
        """Add a sample by its columns, with its rows; a sample without rows is one row."""
        self._samples.append({**self._run, **sample})
        rows = rows or [{}]
        self._counts.append(len(rows))
        plan = self._plan
        head = [plan.suite, sample["point"], sample.get("benchmark_version") or ""]
        if sample.get("span"):  # figures within a node and between nodes are two series
            head.append(sample["span"])
        of_sample = (plan.run_id, plan.variant or "", str(sample["repetition"]), sample["phase"])
        ids = {
            text: digest(*of_sample, text) for text in {row.get("subject") or "" for row in rows}
        }
        for row in rows:
            coords = orjson.dumps(row.get("coords", {}), option=orjson.OPT_SORT_KEYS).decode()
            series_id = digest(*head, coords, row.get("metric") or "", row.get("stat") or "")
            sample_id = series_id + ids[row.get("subject") or ""]
            columns = {"coords": coords, "series_id": series_id, "sample_id": sample_id}
            self._pending.append(row | columns)
        if len(self._pending) >= CHUNK_ROWS:
            self._flush()

    def _flush(self) -> None:
        """Move pending rows into an Arrow array, which needs a tenth of the memory."""
        self._chunks.append(pa.array(self._pending, _ROW))
        self._pending.clear()

    def table(self) -> pa.Table:
        """Return the table of all samples that were added."""
        self._flush()
        sample_of_row = pa.array(
            np.repeat(np.arange(len(self._samples), dtype=np.int32), self._counts)
        )
        of_rows = dict(zip(_OF_ROW, pa.chunked_array(self._chunks).flatten(), strict=True))
        arrays = []
        for column in SAMPLES:
            if column.name in of_rows:
                arrays.append(of_rows[column.name])
                continue
            values = pa.array([sample.get(column.name) for sample in self._samples], column.type)
            if pa.types.is_string(column.type):  # a long text is stored once
                values = values.dictionary_encode()
            arrays.append(values.take(sample_of_row))
        return pa.Table.from_arrays(arrays, names=SAMPLES.names)


def _environment(record: SampleRecord, where: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of the hosts, the sample, and the cluster with the kinds of its nodes."""
    environment = dict(record.env)
    if record.facts:
        environment["sample"] = record.facts
    if "kubernetes" in where:
        facts = where.get("nodes") or {}
        kinds = {canonical(facts[name]) for name in record.nodes if name in facts}
        environment["cluster"] = {
            **{name: where.get(name) for name in ("kubernetes", "csi", "daemons")},
            "network_policy": where.get("network_policy"),
            "nodes": [orjson.loads(kind) for kind in sorted(kinds)],
        }
    return environment


def _measured(record: SampleRecord) -> dict[str, Any]:
    """Return the columns that a stored sample has by itself."""
    columns = {
        "benchmark_version": record.benchmark_version or None,
        "status": record.status,
        "error": record.error[:ERROR_LIMIT] if record.error else None,
        "noise": record.noise,
        "nodes": record.nodes,
        # None for one node: no traffic between nodes is measured
        "same_node": len(set(record.nodes)) == 1 if len(record.nodes) > 1 else None,
        "env_class": record.env_class or None,
        "batch": record.batch,
        "attempt": record.attempt,
        "image_digest": record.where.get("image_digest"),
        "tool": record.tool or None,
        "command": " && ".join(map(" ".join, record.commands)) or None,
        "started_at": _moment(record.started_at),
        "finished_at": _moment(record.finished_at),
    }
    if "workflow_uid" in record.where:  # an earlier Workflow, where the run was resumed
        columns["workflow_uid"] = record.where["workflow_uid"]
    return columns


def _moment(text: str) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


@dataclass
class CollectionResult:
    """The result of collecting: the key of the Parquet file.

    `reached` holds the count and relative precision of points with `until`, `damaged` the names of
    unreadable samples. `kept`: samples were removed after they were collected, and the rows are
    those of the Parquet file, which stays as it is. `seconds` has the durations of the ok samples
    by the index of their point.
    """

    key: str
    reached: dict[str, tuple[int, float | None]] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)
    kept: bool = False
    seconds: dict[int, list[float]] = field(default_factory=dict)


def collect(store: Store, plan: Plan) -> tuple[pa.Table, CollectionResult]:
    """Write the Parquet file of a run from its samples, and return its rows. Raises StoreError.

    The plan gets the durations, for the estimates of the next run.
    """
    table, collected = gather(store, plan)
    if not collected.kept:
        write_rows(store, plan.suite, plan.run_id, table)
        for index, seconds in collected.seconds.items():
            plan.points[index].seconds = median(seconds)
        put_plan(store, plan)
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
    key = result_key(suite, run_id)
    replaced = key in store.list(key.rpartition("/")[0])
    store.put(key, sink.getvalue().to_pybytes())
    if replaced:
        # The roll-up is a cache. It adds a run that it lacks, but keeps old figures of one it has.
        store.delete(rollup_key(suite, month_of(run_id)))


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


def gather(store: Store, plan: Plan) -> tuple[pa.Table, CollectionResult]:
    """Return the rows of a run as a table of SAMPLES. Raises StoreError.

    Repetitive columns are dictionary-encoded.
    """
    stored = stored_samples(store, plan.run_id)
    if (kept := kept_rows(store, plan, stored)) is not None:
        return kept, CollectionResult(result_key(plan.suite, plan.run_id), kept=True)
    rows = _Rows(store, plan)
    result = CollectionResult(result_key(plan.suite, plan.run_id))
    order = sorted(
        range(len(plan.order)),
        key=lambda pos: (plan.point_at(pos).benchmark, *plan.order[pos]),
    )
    position_of = {plan.key(position): position for position in order}
    present = [name for name in position_of if name in stored]
    values: dict[int, list[float]] = defaultdict(list)
    for name, record in read_samples(store, plan.run_id, present, result.damaged):
        position = position_of.pop(name)
        index, repetition = plan.order[position]
        rows.add_stored(name, record, rows.planned(position))
        began = _moment(record.started_at)
        ended = _moment(record.finished_at)
        if record.status == "ok" and began and ended:
            result.seconds.setdefault(index, []).append((ended - began).total_seconds())
        if record.status == "ok" and repetition > 0 and plan.points[index].until is not None:
            values[index] += [row["value"] for row in record.rows if row["headline"]][:1]
    for index, of_point in values.items():
        result.reached[plan.points[index].id] = len(of_point), relative_precision(of_point)
    _add_absent(store, plan, sorted(position_of.values()), rows, result.reached)
    canaries = sorted(name for name in stored if name.startswith("canary-"))
    for name, record in read_samples(store, plan.run_id, canaries, result.damaged):
        columns = dict.fromkeys(("entry", "benchmark", "point"), "canary")
        columns |= {"params": "{}", "shape": "{}", "phase": "measure"}
        rows.add_stored(name, record, {**columns, "repetition": record.repetition})
    return rows.table(), result


def _add_absent(
    store: Store,
    plan: Plan,
    positions: Sequence[int],
    rows: _Rows,
    reached: Mapping[str, tuple[int, float | None]],
) -> None:
    """Add a row for each sample that is not stored, except those after `until` was reached."""
    batch_of = {pos: number for number, batch in enumerate(plan.batches) for pos in batch.samples}
    reasons = stored_reasons(store, plan.run_id) if positions else ()
    for position in positions:
        point = plan.point_at(position)
        repetition = plan.order[position][1]
        if point.until is not None and repetition > point.repetitions:
            _, precision = reached.get(point.id, (0, None))
            if precision is not None and precision <= point.until.relative_spread:
                continue
        reason = reason_for(reasons, batch_of.get(position), plan.key(position))
        absence = {
            "status": reason.status,
            "error": reason.text,
            "batch": batch_of.get(position),
            "attempt": reason.attempt,
            "nodes": reason.node and [reason.node],
        }
        rows.add(rows.planned(position) | absence)


def write_exports(store: Store, run_id: str, rows: pa.Table) -> list[str]:
    """Write the exports of every benchmark of a run.

    Return a line for each: its address, or an error. An export that fails affects neither the
    others nor the run. Raises StoreError.
    """
    lines: list[str] = []
    measured = sorted(set(pc.unique(rows["benchmark"]).to_pylist()))
    for name in [name for name in measured if not registry.fault(name)]:
        try:
            files = registry.get(name).exports(rows.filter(pc.equal(rows["benchmark"], name)))
        except Exception as error:
            lines.append(f"not written, export of {name}: {type(error).__name__}: {error}")
            continue
        for file, data in files.items():
            key = f"{run_folder(run_id)}/{file}"
            store.put(key, data)
            lines.append(store.url(key))
    return lines

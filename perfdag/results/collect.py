"""Collect a run: its samples become one Parquet file, written once and atomically.

Collecting twice gives the same bytes: rows are in the order of the plan, nothing of the moment of collecting is in them. Samples of the
plan that have no part are rows too, with the status and text of their MissingReason.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from perfdag.digest import canonical, digest, digests
from perfdag.no_gc import uncollected
from perfdag.plan.plan import Plan
from perfdag.results.missing_reason import reason_for, stored_reasons
from perfdag.results.months import delete_rollup, month_of
from perfdag.results.samples import (
    SampleRecord,
    headline,
    read_sample,
    relative_precision,
    run_folder,
    sample_key,
    stored_samples,
)
from perfdag.results.schema import ID_COLUMNS, SAMPLES, SCHEMA_VERSION
from perfdag.store.base import Store

ERROR_LIMIT = 500
CHUNK_ROWS = 1 << 16
_AS_STORED = ("metric", "stat", "subject", "value", "unit", "better", "headline", "n")
_MADE = ("coords", "series_id", "sample_id")
_STORED_TYPE = pa.struct([SAMPLES.field(name) for name in _AS_STORED])


@dataclass
class Collected:
    """The result of collecting: the key of the Parquet file, its rows, and samples by status.

    `reached` holds the count and relative precision of points with `until`, `damaged` the names of
    unreadable samples.
    """

    key: str
    rows: int
    statuses: dict[str, int]
    reached: dict[str, tuple[int, float | None]] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)


def result_key(plan: Plan) -> str:
    """Return the key of the Parquet file of a run."""
    return f"results/suite={plan.suite}/month={plan.run_id[:4]}-{plan.run_id[4:6]}/{plan.run_id}.parquet"


def collect(store: Store, plan: Plan) -> Collected:
    """Write the Parquet file of a run from its samples. Raises StoreError."""
    table, collected = gather(store, plan)
    sink = pa.BufferOutputStream()
    # without the Arrow schema in it a reader gets plain strings, however the columns were encoded here;
    # a dictionary of values that are all distinct is only larger
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
    store.put(collected.key, sink.getvalue().to_pybytes())
    delete_rollup(store, plan.suite, month_of(plan.run_id))
    return collected


def gather(store: Store, plan: Plan) -> tuple[pa.Table, Collected]:
    """Return the rows of a run as a table of SAMPLES. Raises StoreError.

    Repetitive columns are dictionary-encoded.
    """
    with uncollected():
        return _gather(store, plan)


def _gather(store: Store, plan: Plan) -> tuple[pa.Table, Collected]:
    stored = stored_samples(store, plan.run_id)
    builder = _Builder(plan, store)
    collected = builder.collected
    order = sorted(
        range(len(plan.order)),
        key=lambda pos: (
            plan.points[plan.order[pos][0]].benchmark,
            plan.order[pos][0],
            plan.order[pos][1],
        ),
    )
    names = [(pos, plan.key(pos)) for pos in order]
    present = [(pos, name) for pos, name in names if name in stored]
    contents = store.get_many([sample_key(plan.run_id, name) for _, name in present])
    absent: list[int] = []
    for (pos, name), (_, data) in zip(present, contents, strict=True):
        try:
            builder.add(pos, read_sample(data))
        except ValueError:
            collected.damaged.append(name)
            absent.append(pos)
    builder.add_absent(absent + [pos for pos, name in names if name not in stored])
    canaries = sorted(name for name in stored if name.startswith("canary-"))
    for name, (_, data) in zip(
        canaries, store.get_many([sample_key(plan.run_id, name) for name in canaries]), strict=True
    ):
        try:
            builder.add_canary(read_sample(data))
        except ValueError:
            collected.damaged.append(name)
    return builder.table(), collected


class _Builder:
    """Columns under construction. Constants of a sample are stored once and repeated at the end."""

    def __init__(self, plan: Plan, store: Store) -> None:
        self.plan = plan
        self.collected = Collected(result_key(plan), 0, {})
        self.raw = store.url(f"{run_folder(plan.run_id)}/parts")
        self.samples: list[dict[str, Any]] = []
        self.counts: list[int] = []
        self.columns: dict[str, list[str]] = {name: [] for name in _MADE}
        self._pending: list[dict[str, Any]] = []
        self._shapes = [canonical(shape) for shape in plan.shapes]
        self._params: dict[int, str] = {}
        self._chunks: dict[str, list[pa.Array]] = {name: [] for name in (*_AS_STORED, *_MADE)}
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

    def _count(self, status: str, repetition: int) -> None:
        if repetition > 0:
            self.collected.statuses[status] = self.collected.statuses.get(status, 0) + 1

    def add(self, position: int, part: SampleRecord) -> None:
        index, repetition = self.plan.order[position]
        point = self.plan.points[index]
        sample = self._constants(index, repetition, position)
        sample |= _of_part(part, self._canonical_env(part), self.raw, self.plan.key(position))
        self.samples.append(sample)
        self._rows(sample, point.id, part.rows)
        self._count(part.status, repetition)
        if (
            point.until is not None
            and part.status == "ok"
            and repetition > 0
            and (value := headline(part.rows)) is not None
        ):
            self._values.setdefault(index, []).append(value)

    def _canonical_env(self, part: SampleRecord) -> str:
        merged = {
            **part.env,
            **({"sample": part.facts} if part.facts else {}),
            **self._cluster_of(part),
        }
        key = orjson.dumps(merged, option=orjson.OPT_SORT_KEYS)
        if key not in self._env:
            self._env[key] = canonical(merged)
        return self._env[key]

    def _cluster_of(self, part: SampleRecord) -> dict[str, Any]:
        """Return the cluster as the Workflow of this sample had it, with the kinds of the nodes
        used.
        """
        where = self.plan.where
        where = where.get("before", {}).get(part.where.get("workflow_uid"), where)
        if "kubernetes" not in where:
            return {}
        nodes = {
            canonical(where["nodes"][name])
            for name in part.nodes
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
        point = self.plan.points[index]
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

    def _rows(self, sample: dict[str, Any], point: str, rows: list[dict[str, Any]]) -> None:
        rows = rows or [{}]
        self._pending += rows
        texts = [
            orjson.dumps(row["coords"], option=orjson.OPT_SORT_KEYS).decode()
            if "coords" in row
            else "{}"
            for row in rows
        ]
        self.columns["coords"] += [self._texts.setdefault(text, text) for text in texts]
        named = [
            f"{text}\x1f{row.get('metric') or ''}\x1f{row.get('stat') or ''}"
            for text, row in zip(texts, rows, strict=True)
        ]
        series = digests((self.plan.suite, point, sample["benchmark_version"] or ""), named)
        of_run = (
            self.plan.run_id,
            sample["variant"] or "",
            str(sample["repetition"]),
            sample["phase"],
        )
        subjects = [row.get("subject") or "" for row in rows]
        samples = {subject: digest(*of_run, subject) for subject in set(subjects)}
        self.columns["series_id"] += series
        self.columns["sample_id"] += [
            one + samples[subject] for one, subject in zip(series, subjects, strict=True)
        ]
        self.counts.append(len(rows))
        if len(self._pending) >= CHUNK_ROWS:
            self._flush()

    def _flush(self) -> None:
        """Move pending rows into Arrow arrays, which need a tenth of the memory of Python
        objects.
        """
        for name, values in zip(
            _AS_STORED, pa.array(self._pending, _STORED_TYPE).flatten(), strict=True
        ):
            self._chunks[name].append(values)
        self._pending.clear()
        for name, texts in self.columns.items():
            self._chunks[name].append(pa.array(texts, SAMPLES.field(name).type))
            texts.clear()

    def add_absent(self, positions: Iterable[int]) -> None:
        """Add rows for samples that are not stored, except those that a reached `until` made
        needless.
        """
        batch_of = {
            pos: number for number, batch in enumerate(self.plan.batches) for pos in batch.samples
        }
        for index, values in self._values.items():
            self.collected.reached[self.plan.points[index].id] = (
                len(values),
                relative_precision(values),
            )
        for position in sorted(positions):
            index, repetition = self.plan.order[position]
            point = self.plan.points[index]
            if point.until is not None and repetition > point.repetitions and self._reached(index):
                continue
            batch = batch_of.get(position)
            reason = reason_for(self._reasons, batch)
            sample = self._constants(index, repetition, position)
            sample |= {
                "status": reason.status,
                "error": reason.text,
                "benchmark_version": None,
                "batch": batch,
            }
            self.samples.append(sample)
            self._rows(sample, point.id, [])
            self._count(reason.status, repetition)

    def _reached(self, index: int) -> bool:
        until = self.plan.points[index].until
        reached = relative_precision(self._values.get(index, []))
        return until is not None and reached is not None and reached <= until.relative_spread

    def add_canary(self, part: SampleRecord) -> None:
        sample: dict[str, Any] = {
            "entry": "canary",
            "benchmark": "canary",
            "point": "canary",
            "params": "{}",
            "shape": "{}",
            "repetition": part.repetition,
            "phase": "measure",
            **self._run,
        }
        sample |= _of_part(
            part, self._canonical_env(part), self.raw, f"canary-b{part.batch}n{part.repetition}"
        )
        self.samples.append(sample)
        self._rows(sample, "canary", part.rows)

    def table(self) -> pa.Table:
        self._flush()
        self.collected.rows = sum(self.counts)
        spread_over = pa.array(np.repeat(np.arange(len(self.samples), dtype=np.int32), self.counts))
        arrays = []
        for column in SAMPLES:
            if column.name in self._chunks:
                arrays.append(pa.chunked_array(self._chunks.pop(column.name), column.type))
            elif column.name == "schema_version":
                arrays.append(
                    pa.array(np.full(self.collected.rows, SCHEMA_VERSION, dtype=np.int16))
                )
            else:
                values = pa.array([sample.get(column.name) for sample in self.samples], column.type)
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


def _of_part(part: SampleRecord, env: str, raw: str, name: str) -> dict[str, Any]:
    return {
        "benchmark_version": part.benchmark_version or None,
        "status": part.status,
        "error": part.error[:ERROR_LIMIT] if part.error else None,
        "noise": part.noise,
        "started_at": _time(part.started_at),
        "finished_at": _time(part.finished_at),
        "nodes": part.nodes,
        "same_node": len(set(part.nodes)) == 1 if len(part.nodes) > 1 else None,
        "env": env,
        "env_class": part.env_class or None,
        "batch": part.batch,
        "attempt": part.attempt,
        "image_digest": part.where.get("image_digest"),
        **({"workflow_uid": part.where["workflow_uid"]} if "workflow_uid" in part.where else {}),
        "tool": part.tool or None,
        "command": " && ".join(" ".join(argv) for argv in part.commands) or None,
        "raw_uri": f"{raw}/{name}.json",
    }


def _time(text: str) -> Any:
    return datetime.fromisoformat(text) if text else None

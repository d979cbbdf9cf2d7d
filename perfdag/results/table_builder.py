"""Build the table of a run: the rows of its samples, in the columns of the schema."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from perfdag.digest import canonical, digest, digests
from perfdag.plan.plan import Plan
from perfdag.results.labels import span_of
from perfdag.results.missing_reason import reason_for, stored_reasons
from perfdag.results.samples import SampleRecord, headline, run_folder
from perfdag.results.schema import SAMPLES, SCHEMA_VERSION
from perfdag.stats.robust import relative_precision
from perfdag.store.base import Store

ERROR_LIMIT = 500
"""Characters of an error in a row."""
CHUNK_ROWS = 1 << 16
_AS_STORED = ("metric", "stat", "subject", "value", "unit", "better", "headline", "n", "note")
_DERIVED = ("coords", "series_id", "sample_id")
_STORED_TYPE = pa.struct([SAMPLES.field(name) for name in _AS_STORED])


class TableBuilder:
    """Columns under construction.

    The constants of a sample are kept once and repeated for its rows at the end. `statuses` counts
    samples by status. `reached` holds the count and relative precision of points with `until`.
    """

    def __init__(self, plan: Plan, store: Store) -> None:
        self.statuses: dict[str, int] = {}
        self.reached: dict[str, tuple[int, float | None]] = {}
        self._plan = plan
        self._raw = store.url(f"{run_folder(plan.run_id)}/parts")
        self._samples: list[dict[str, Any]] = []
        self._counts: list[int] = []
        self._columns: dict[str, list[str]] = {name: [] for name in _DERIVED}
        self._pending: list[dict[str, Any]] = []
        self._shapes = [canonical(shape) for shape in plan.shapes]
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

    def _count(self, status: str, repetition: int) -> None:
        if repetition > 0:
            self.statuses[status] = self.statuses.get(status, 0) + 1

    def add(self, position: int, record: SampleRecord) -> None:
        """Add the sample at a position of the plan's order."""
        index, repetition = self._plan.order[position]
        point = self._plan.points[index]
        sample = self._constants(index, repetition, position)
        sample |= _sample_columns(
            record, self._canonical_env(record), self._raw, self._plan.key(position)
        )
        sample["span"] = span_of(record.nodes, self._where(record).get("nodes") or {})
        self._samples.append(sample)
        self._rows(sample, point.id, record.rows)
        self._count(record.status, repetition)
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

    def _rows(self, sample: dict[str, Any], point: str, rows: list[dict[str, Any]]) -> None:
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
        head = (self._plan.suite, point, sample["benchmark_version"] or "")
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
            self._rows(sample, point.id, [])
            self._count(reason.status, repetition)

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
        sample |= _sample_columns(
            record,
            self._canonical_env(record),
            self._raw,
            f"canary-b{record.batch}n{record.repetition}",
        )
        self._samples.append(sample)
        self._rows(sample, "canary", record.rows)

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


def _sample_columns(record: SampleRecord, env: str, raw: str, name: str) -> dict[str, Any]:
    return {
        "benchmark_version": record.benchmark_version or None,
        "status": record.status,
        "error": record.error[:ERROR_LIMIT] if record.error else None,
        "noise": record.noise,
        "started_at": _time(record.started_at),
        "finished_at": _time(record.finished_at),
        "nodes": record.nodes,
        "same_node": len(set(record.nodes)) == 1 if len(record.nodes) > 1 else None,
        "env": env,
        "env_class": record.env_class or None,
        "batch": record.batch,
        "attempt": record.attempt,
        "image_digest": record.where.get("image_digest"),
        **(
            {"workflow_uid": record.where["workflow_uid"]} if "workflow_uid" in record.where else {}
        ),
        "tool": record.tool or None,
        "command": " && ".join(" ".join(argv) for argv in record.commands) or None,
        "raw_uri": f"{raw}/{name}.json",
    }


def _time(text: str) -> Any:
    return datetime.fromisoformat(text) if text else None

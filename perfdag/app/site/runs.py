"""What the site shows of one run: samples by status, verdicts, trust and duration."""

import hashlib
from collections.abc import Iterator, Sequence
from itertools import compress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfdag.analysis.alerts import Record
from perfdag.analysis.medians import RunInfo, RunMedians
from perfdag.results.samples import result_key
from perfdag.results.schema import read_rows
from perfdag.results.summary import PointState, own_verdicts, summarise, trust_in, worst_of_points
from perfdag.store.base import Store
from perfdag.units import short_seconds

REPORTS_LATER = 30
"""Newest runs that are looked at again for a report that was written after the site."""
REASONS = 3

Data = dict[str, Any]


def run_data(
    store: Store, medians: RunMedians, known: dict[str, Data], records: dict[str, Record]
) -> list[Data]:
    """Return what the site shows of each run, oldest first.

    `known` is the earlier answer by run id. Rows are read only of runs that are new or changed.
    Raises StoreError.
    """
    marks = _marks(medians)
    changed = [
        run
        for run, mark in zip(medians.runs, marks, strict=True)
        if known.get(run.run_id, {}).get("mark") != mark
    ]
    read = dict(_read(store, medians.suite, changed))
    newest = {run.run_id for run in medians.runs[-REPORTS_LATER:]}
    runs = []
    for run, mark in zip(medians.runs, marks, strict=True):
        data = read.get(run.run_id) or dict(known.get(run.run_id, {}))
        data |= {"id": run.run_id, "mark": mark, "cluster": run.cluster, "trigger": run.trigger}
        if not data.get("report") and (run.run_id in newest or run.run_id in read):
            data["report"] = f"runs/{run.run_id}/report.html" in store.list(f"runs/{run.run_id}")
        if run.run_id in records:
            data["gate"] = "failed" if records[run.run_id].failed else "passed"
        runs.append(data)
    return runs


def _marks(medians: RunMedians) -> list[str]:
    """Return a digest of the values and samples of each run, which changes when it is collected."""
    order = sorted(range(len(medians.series)), key=lambda i: medians.series[i].series_id)
    ids = [medians.series[i].series_id.encode() for i in order]
    value, n = medians.value[order], medians.n[order]
    points = {id(run.points): run.points for run in medians.runs}  # most runs share one
    texts = {key: repr(value).encode() for key, value in points.items()}
    marks = []
    for column, run in enumerate(medians.runs):
        present = np.isfinite(value[:, column])
        mark = hashlib.blake2b(texts[id(run.points)], digest_size=8)
        mark.update(b"".join(compress(ids, present)))
        mark.update(value[present, column].tobytes() + n[present, column].tobytes())
        marks.append(mark.hexdigest())
    return marks


def _read(store: Store, suite: str, runs: Sequence[RunInfo]) -> Iterator[tuple[str, Data]]:
    """Yield id and data of each run from its rows."""
    keys = [result_key(suite, run.run_id) for run in runs]
    for run, (_, data) in zip(runs, store.get_many(keys), strict=True):
        try:
            yield run.run_id, _of_rows(read_rows(data))
        except (pa.ArrowInvalid, OSError):  # the roll-up knows it from a time when it was readable
            yield run.run_id, {"trust": "unusable", "why": "its Parquet file is damaged"}


def _of_rows(table: pa.Table) -> Data:
    states = summarise(table)
    trust = trust_in(table, states)
    verdicts = worst_of_points(own_verdicts(table))
    start, end = pc.min(table["started_at"]).as_py(), pc.max(table["finished_at"]).as_py()
    seconds = (end - start).total_seconds() if start and end else None
    return {
        "statuses": _statuses(states),
        "reasons": list(dict.fromkeys(r for state in states for r in state.reasons))[:REASONS],
        "trust": trust.level,
        "why": trust.text,
        "verdict": verdicts[0][0].word if verdicts else None,
        "verdict_why": verdicts[0][0].text if verdicts else "",
        "seconds": seconds,
        "duration": short_seconds(seconds) if seconds is not None else "-",
    }


def _statuses(states: Sequence[PointState]) -> dict[str, int]:
    """Return the samples of a run by status."""
    counts: dict[str, int] = {}
    for state in states:
        for status, count in state.statuses.items():
            counts[status] = counts.get(status, 0) + count
    return counts

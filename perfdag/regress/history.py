"""The history of a suite: levels of each series, and failures."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import orjson
import pyarrow.compute as pc

from perfdag.regress.changes import Acknowledgement, LevelChange, series_levels
from perfdag.regress.run_medians import RunMedians
from perfdag.regress.series import SeriesInfo
from perfdag.regress.tuning import Tuning
from perfdag.results.schema import load_rows
from perfdag.stats.levels import State
from perfdag.stats.robust import Array, median, robust_sigma, scale_for
from perfdag.store.base import Store

OBJECT_FAILURES = "failures"
"""The metric of benchmarks of many objects: how many failed with one message (coords: message)."""


@dataclass(frozen=True)
class Level:
    """The runs from `start` to before `end` between two changes, with median and noise."""

    start: int
    end: int
    value: float
    noise: float


@dataclass(frozen=True)
class Series:
    """One series over the runs. Arrays are as long as the runs, NaN where it was not measured."""

    info: SeriesInfo
    name: str
    value: Array
    low: Array
    high: Array
    levels: tuple[Level, ...]
    findings: tuple[LevelChange, ...]
    state: State


@dataclass(frozen=True)
class Failure:
    """Samples of one point and run that are not ok for one reason.

    Without `total`, `bad` counts the objects that one sample reported as failed.
    """

    run: str
    entry: str
    point: str
    bad: int
    total: int | None
    reason: str


def series_of(
    medians: RunMedians, tuning: Tuning, accepted: Sequence[Acknowledgement] = ()
) -> list[Series]:
    """Return every series except canaries, with its levels, changes and state."""
    rows = {info.series_id: i for i, info in enumerate(medians.series)}
    series = []
    for line in series_levels(medians, tuning, accepted):
        i = rows[line.info.series_id]
        value, low, high = (array[i] for array in (medians.value, medians.low, medians.high))
        levels = _levels(value, sorted({change.index for change in line.changes}))
        changes = line.changes
        series.append(
            Series(line.info, line.name, value, low, high, levels, changes, line.levels.state)
        )
    return series


def _levels(values: Array, cuts: Sequence[int]) -> tuple[Level, ...]:
    present = np.flatnonzero(np.isfinite(values))
    if not present.size:
        return ()
    edges = [int(present[0]), *cuts, values.size]
    levels = []
    for start, end in pairwise(edges):
        part = values[start:end][np.isfinite(values[start:end])]
        noise = robust_sigma(scale_for(part).apply(part)) if part.size >= 3 else float("nan")
        levels.append(Level(start, end, median(part), noise))
    return tuple(levels)


def failures(medians: RunMedians, text: str) -> list[Failure]:
    """Return the points with samples that were not ok and reason `text`, newest run first."""
    return [
        Failure(run.run_id, entry, point, bad, ok + bad, reason)
        for run in reversed(medians.runs)
        for point, (ok, bad, reason, entry) in run.points.items()
        if bad and text.lower() in reason.lower()
    ]


def object_failures(store: Store, medians: RunMedians, text: str) -> list[Failure]:
    """Return the failures of objects whose message contains `text`, newest run first.

    They are rows of the metric `failures` with the coordinate message. Raises StoreError.
    """
    runs = [run.run_id for run in medians.runs]
    table = load_rows(
        store,
        suites=[medians.suite],
        runs=runs,
        columns=["run_id", "entry", "point", "metric", "coords", "value"],
    )
    wanted = table.filter(pc.fill_null(pc.equal(table["metric"], OBJECT_FAILURES), False))
    failed = []
    for row in wanted.to_pylist():
        message = orjson.loads(row["coords"] or "{}").get("message")
        if message is not None and text.lower() in message.lower() and row["value"]:
            count = round(row["value"])
            failed.append(Failure(row["run_id"], row["entry"], row["point"], count, None, message))
    return sorted(failed, key=lambda failure: failure.run, reverse=True)

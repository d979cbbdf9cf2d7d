"""Run medians of a suite: one number per series and run."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from perfdag.regress.environment import codes, environment, numbers
from perfdag.regress.series import RunInfo, SeriesInfo
from perfdag.stats.robust import INTERVAL_FROM, Array, median_ranks, middle

COLUMNS = (
    "suite",
    "entry",
    "benchmark",
    "benchmark_version",
    "point",
    "params",
    "shape",
    "coords",
    "metric",
    "stat",
    "series_id",
    "run_id",
    "trigger",
    "variant",
    "repetition",
    "phase",
    "subject",
    "value",
    "unit",
    "better",
    "headline",
    "status",
    "error",
    "started_at",
    "cluster",
    "nodes",
    "env",
    "env_class",
    "perfdag_version",
    "image_digest",
    "tool",
    "pair",
    "span",
)
"""Columns of the schema that are read."""


@dataclass
class RunMedians:
    """Run medians of a suite: arrays of shape (series, runs), oldest run first.

    A value is NaN where it was not measured. `low` and `high` are the range of fewer than six
    repetitions, from six on the interval of the median. `n` counts the repetitions.
    """

    suite: str
    runs: list[RunInfo]
    series: list[SeriesInfo]
    value: Array
    low: Array
    high: Array
    n: NDArray[np.int32]
    damaged: list[str] = field(default_factory=list)

    def cluster_of(self, run_id: str) -> str | None:
        """Return the cluster of a run, or None where the run is not among these."""
        return next((run.cluster for run in self.runs if run.run_id == run_id), None)

    def on_cluster(self, cluster: str | None) -> "RunMedians":
        """Return the runs of one cluster."""
        return self.select(lambda run: run.cluster == cluster)

    def select(self, wanted: Callable[[RunInfo], bool]) -> "RunMedians":
        """Return the runs that meet a condition. Series that none of them has are dropped."""
        columns = [i for i, run in enumerate(self.runs) if wanted(run)]
        chosen = np.array(columns, dtype=np.int64)
        rows = np.flatnonzero(np.isfinite(self.value[:, chosen]).any(axis=1))
        runs, series = [self.runs[i] for i in columns], [self.series[i] for i in rows]
        cells = np.ix_(rows, chosen)
        value, low, high = (array[cells] for array in (self.value, self.low, self.high))
        return RunMedians(self.suite, runs, series, value, low, high, self.n[cells], self.damaged)


@dataclass
class MonthlyRollup:
    """Runs of one month of a suite: rows (run, series, median, low, high, n) and descriptions."""

    runs: dict[str, RunInfo] = field(default_factory=dict)
    series: dict[str, SeriesInfo] = field(default_factory=dict)
    rows: list[pa.Table] = field(default_factory=list)


def medians_of_rows(table: pa.Table, suite: str) -> RunMedians:
    """Return the run medians of rows of one or several runs."""
    month = MonthlyRollup()
    for run_id in pc.unique(table["run_id"]).to_pylist():
        add_run(month, table.filter(pc.equal(table["run_id"], run_id)))
    return merge_months(suite, [month], set(month.runs), [])


def add_run(month: MonthlyRollup, table: pa.Table) -> list[str]:
    """Add the rows of one run to a month. Return the series left out because their unit changed."""
    if not table.num_rows:
        return []
    run = _run(table)
    month.runs[run.run_id] = run
    if run.trigger == "ab":
        return []
    rows = table.filter(is_measured(table))
    which, ids = codes(rows["series_id"])
    firsts = pa.array(np.unique(which, return_index=True)[1], pa.int64())
    units = dict(
        zip(
            rows["series_id"].take(firsts).to_pylist(),
            rows["unit"].take(firsts).to_pylist(),
            strict=True,
        )
    )
    other = {
        name
        for name, unit in units.items()
        if name in month.series and month.series[name].unit != unit
    }
    new = [i for i in firsts.to_pylist() if ids[which[i]] not in month.series]
    for info in _infos(rows.take(pa.array(new, pa.int64()))):
        month.series[info.series_id] = info
    if other:
        rows = rows.filter(
            pc.invert(pc.is_in(rows["series_id"].cast(pa.string()), pa.array(sorted(other))))
        )
    month.rows.append(_medians(rows, run.run_id))
    return [_two_units(run.run_id, month.series[name], units[name]) for name in sorted(other)]


def _two_units(run_id: str, info: SeriesInfo, unit: str) -> str:
    return f"run {run_id}: {info.entry} {info.name} in {unit}, in {info.unit} before"


def is_measured(table: pa.Table) -> pa.ChunkedArray:
    """Return a mask of the rows to analyse: ok, no warm-up, and of the whole sample."""
    ok = pc.and_(pc.equal(table["status"], "ok"), pc.equal(table["phase"], "measure"))
    return pc.fill_null(
        pc.and_(pc.and_(ok, pc.is_valid(table["value"])), pc.is_null(table["subject"])), False
    )


def _infos(rows: pa.Table) -> list[SeriesInfo]:
    """Return the series of some rows, one for each row."""
    names = [column.name for column in fields(SeriesInfo)]
    columns = [rows[name].to_pylist() for name in names]
    texts, flags = columns[:-1], columns[-1]
    return [
        SeriesInfo(
            **{name: text or "" for name, text in zip(names, row, strict=False)},
            headline=bool(flag),
        )
        for *row, flag in zip(*texts, flags, strict=True)
    ]


def group_values(which: NDArray[np.int64], values: Array) -> tuple[NDArray[np.int64], list[Array]]:
    """Return the numbers of the groups, and the sorted values of each group."""
    order = np.lexsort((values, which))
    which, values = which[order], values[order]
    groups, starts = np.unique(which, return_index=True)
    return groups, np.split(values, starts[1:]) if len(groups) else []


def _medians(rows: pa.Table, run_id: str) -> pa.Table:
    """Return median, low and high of each series of one run."""
    which, names = codes(rows["series_id"])
    groups, values = group_values(which, rows["value"].to_numpy().astype(np.float64))
    low, high, value = [], [], []
    for repetitions in values:
        ranks = median_ranks(repetitions.size) if repetitions.size >= INTERVAL_FROM else None
        a, b = (ranks[0] - 1, ranks[1] - 1) if ranks else (0, repetitions.size - 1)
        value.append(middle(repetitions))
        low.append(float(repetitions[a]))
        high.append(float(repetitions[b]))
    count = [repetitions.size for repetitions in values]
    columns = {
        "run_id": pa.array([run_id] * len(groups), pa.string()),
        "series_id": pa.array([names[g] for g in groups], pa.string()),
        "value": pa.array(value, pa.float64()),
        "low": pa.array(low, pa.float64()),
        "high": pa.array(high, pa.float64()),
        "n": pa.array(count, pa.int32()),
    }
    return pa.table(columns)


def _run(table: pa.Table) -> RunInfo:
    run_id = table["run_id"][0].as_py()
    started = pc.min(table["started_at"]).as_py()
    if started is None:
        started = datetime.strptime(run_id[:16], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    return RunInfo(
        run_id=run_id,
        started_at=started.isoformat(),
        trigger=table["trigger"][0].as_py() or "",
        cluster=table["cluster"][0].as_py() or "",
        env=environment(table),
        points=_points(table),
    )


def _points(table: pa.Table) -> dict[str, tuple[int, int, str, str]]:
    """Return the samples of each point that were ok and not ok, with an error and the entry."""
    point, names = codes(table["point"])
    repetition = pc.fill_null(table["repetition"], 0).to_numpy().astype(np.int64)
    warm = pc.fill_null(pc.equal(table["phase"], "warmup"), False).to_numpy(zero_copy_only=False)
    samples = np.unique(np.where(warm, -1, point * 2**20 + repetition), return_index=True)[1]
    (entry, entries), (status, statuses) = codes(table["entry"]), codes(table["status"])
    points: dict[str, tuple[int, int, str, str]] = {}
    for i in samples[~warm[samples]].tolist():
        ok, bad, error, _ = points.get(names[point[i]], (0, 0, "", ""))
        word = statuses[status[i]]
        if word == "ok":
            ok += 1
        else:
            bad, error = bad + 1, f"{word}: {table['error'][i].as_py() or ''}".removesuffix(": ")
        points[names[point[i]]] = (ok, bad, error, entries[entry[i]] if entry[i] >= 0 else "")
    return points


def merge_months(
    suite: str, months: Sequence[MonthlyRollup], stored: set[str], damaged: list[str]
) -> RunMedians:
    """Merge the rows of all months into (series, runs). Runs without a file are left out."""
    known = {
        run_id: run for month in months for run_id, run in month.runs.items() if run_id in stored
    }
    runs = sorted(
        (run for run in known.values() if run.trigger != "ab"), key=lambda run: run.run_id
    )
    known_series: dict[str, SeriesInfo] = {}
    for month in months:
        other = {
            name
            for name, info in month.series.items()
            if name in known_series and known_series[name].unit != info.unit
        }
        if other:
            month.rows = [
                rows.filter(pc.invert(pc.is_in(rows["series_id"], pa.array(sorted(other)))))
                for rows in month.rows
            ]
            damaged.extend(
                _two_units(
                    f"{min(month.runs)} and later", known_series[name], month.series[name].unit
                )
                for name in sorted(other)
            )
        known_series |= {name: info for name, info in month.series.items() if name not in other}
    series = sorted(known_series.values(), key=_order)
    column = {run.run_id: i for i, run in enumerate(runs)}
    row = {info.series_id: i for i, info in enumerate(series)}
    shape = (len(series), len(runs))
    value, low, high = np.full(shape, math.nan), np.full(shape, math.nan), np.full(shape, math.nan)
    n = np.zeros(shape, dtype=np.int32)
    tables = [table for month in months for table in month.rows]
    if tables:
        table = pa.concat_tables(tables)
        which_run, run_ids = codes(table["run_id"])
        which_series, series_ids = codes(table["series_id"])
        j = np.array([column.get(name, -1) for name in run_ids] or [-1])[which_run]
        i = np.array([row[name] for name in series_ids] or [-1])[which_series]
        valid = j >= 0
        for array, name in ((value, "value"), (low, "low"), (high, "high"), (n, "n")):
            array[i[valid], j[valid]] = numbers(table[name])[valid]
    return RunMedians(suite, runs, series, value, low, high, n, damaged)


def _order(info: SeriesInfo) -> tuple[Any, ...]:
    return (
        info.canary,
        not info.headline,
        info.entry,
        info.point,
        info.metric,
        info.stat,
        info.coords,
    )

"""Run medians of a suite: one number per series and run."""

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from perfdag.analysis.environment import (
    COLUMNS as ENVIRONMENT_COLUMNS,
    REVISION,
    environment,
    short_revisions,
)
from perfdag.benchmark.registry import point_label
from perfdag.plan import gc_paused
from perfdag.results.labels import differences_by_point, words
from perfdag.results.run_store import month_of, result_key, rollup_key, runs_with_rows
from perfdag.results.schema import SAMPLES, codes, is_measured, numbers, objects, read_rows
from perfdag.results.summary import SERIES_COLUMNS, SeriesInfo, spreads
from perfdag.stats.scale import Array, Nights
from perfdag.store.base import Store, StoreError


class PointCount(NamedTuple):
    """The samples of a point in a run that were ok and not ok, an error of these, and its entry."""

    ok: int = 0
    bad: int = 0
    error: str = ""
    entry: str = ""


@dataclass(frozen=True)
class RunInfo:
    """One run: what started it, its cluster, `env` as flat text, and its points."""

    run_id: str
    trigger: str
    cluster: str
    env: dict[str, str]
    points: dict[str, PointCount]

    @property
    def revision(self) -> str:
        """The revision of what it measured for people, or an empty text."""
        return short_revisions(self.env.get(REVISION, ""))

    @property
    def failed(self) -> list[str]:
        """The points without a valid sample, but those that were skipped and the canary."""
        return [
            key
            for key, own in self.points.items()
            if not own.ok and not own.error.startswith("skipped") and key != "canary"
        ]


@dataclass(frozen=True)
class PointNames:
    """What distinguishes a point within its entry: `bs=4KiB reverse`, and as people read it."""

    name: str
    label: str


def point_names(series: Iterable[SeriesInfo]) -> dict[str, PointNames]:
    """Return point id -> what distinguishes it within its entry."""
    points = {info.point: info for info in series}
    every = differences_by_point((own.entry, own.point, own.settings) for own in points.values())
    return {
        point: PointNames(words(own), point_label(points[point].benchmark, own))
        for point, own in every.items()
    }


VERSION = 7
"""Version of the roll-ups."""
_ROLLUP = pa.schema(
    [
        *((name, pa.string()) for name in ("run_id", "series_id", "unit")),
        *((name, pa.float64()) for name in ("value", "low", "high")),
        ("n", pa.int32()),
    ]
)

COLUMNS = (
    *SERIES_COLUMNS,
    *("run_id", "trigger", "repetition", "phase", "subject", "value"),
    *("status", "error", "cluster"),
    *(name for name in ENVIRONMENT_COLUMNS if name not in SERIES_COLUMNS),
)
"""Columns of the schema that are read."""


@dataclass
class RunMedians:
    """Run medians of a suite: arrays of shape (series, runs), oldest run first.

    A value is NaN where it was not measured. `low` and `high` are the range of fewer than six
    repetitions, from six on the interval of the median. `n` counts the repetitions. A run includes
    its re-measurements, whose ids are in `rechecks`: its value is their mean, and so are the ends
    of its spread. `least`, `most` and `count` are of the measurements behind it.
    """

    suite: str
    runs: list[RunInfo]
    series: list[SeriesInfo]
    value: Array
    low: Array
    high: Array
    n: NDArray[np.int32]
    least: Array
    most: Array
    count: NDArray[np.int32]
    rechecks: dict[str, list[str]] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)

    def nights(self, row: int) -> Nights:
        """Return the nights of a series, for the rule of levels."""
        at = np.flatnonzero(np.isfinite(self.value[row]))
        values = self.value[row, at], self.least[row, at], self.most[row, at]
        return Nights(at, *values, self.count[row, at].astype(np.int64))

    def measured_again(self, run_id: str) -> str | None:
        """Return the run that a re-measurement belongs to, None for another run."""
        owners = (run for run, rechecks in self.rechecks.items() if run_id in rechecks)
        return next(owners, None)

    def on_cluster(self, cluster: str | None) -> "RunMedians":
        """Return the runs of one cluster."""
        return self.select(lambda run: run.cluster == cluster)

    def select(self, wanted: Callable[[RunInfo], bool]) -> "RunMedians":
        """Return the runs that meet a condition. Series that none of them has are dropped."""
        chosen = self.at([i for i, run in enumerate(self.runs) if wanted(run)])
        rows = np.flatnonzero(np.isfinite(chosen.value).any(axis=1))
        arrays = {name: getattr(chosen, name)[rows] for name in _ARRAYS}
        return replace(chosen, series=[self.series[i] for i in rows], **arrays)

    def at(self, columns: Sequence[int]) -> "RunMedians":
        """Return a copy with the runs at some positions."""
        arrays = {name: getattr(self, name)[:, list(columns)] for name in _ARRAYS}
        return replace(self, runs=[self.runs[i] for i in columns], **arrays)


_ARRAYS = ("value", "low", "high", "n", "least", "most", "count")
"""The arrays of RunMedians."""


@dataclass
class MonthlyRollup:
    """Runs of one month of a suite, and their rows: run, series, unit, median, low, high, n."""

    runs: dict[str, RunInfo] = field(default_factory=dict)
    series: dict[str, SeriesInfo] = field(default_factory=dict)
    rows: list[pa.Table] = field(default_factory=list)

    def add(self, table: pa.Table) -> None:
        """Add the rows of one run. Those of `ab` have no history."""
        if not table.num_rows:
            return
        names = ("run_id", "trigger", "cluster")
        run_id, trigger, cluster = (table[name][0].as_py() or "" for name in names)
        run = RunInfo(run_id, trigger, cluster, environment(table), _points(table))
        self.runs[run.run_id] = run
        rows = table.select([*SERIES_COLUMNS, "value"]).filter(is_measured(table))
        if run.trigger == "ab" or not rows.num_rows:
            return
        which, ids = codes(rows["series_id"])
        groups, first = np.unique(which, return_index=True)
        new = [
            int(i) for group, i in zip(groups, first, strict=True) if ids[group] not in self.series
        ]
        for row in rows.select(SERIES_COLUMNS).take(pa.array(new, pa.int64())).to_pylist():
            self.series[row["series_id"]] = SeriesInfo.of(row)
        self.rows.append(_medians(rows, which, first, run.run_id))


def medians_of_rows(table: pa.Table, suite: str) -> RunMedians:
    """Return the run medians of rows of one or several runs."""
    month = MonthlyRollup()
    for run_id in pc.unique(table["run_id"]).to_pylist():
        month.add(table.filter(pc.equal(table["run_id"], run_id)))
    return merge_months(suite, [month], set(month.runs), [])


def _medians(
    rows: pa.Table, which: NDArray[np.int64], first: NDArray[np.int64], run_id: str
) -> pa.Table:
    """Return the row of each series of one run.

    `which` are the series as numbers, and `first` has the first row of each.
    """
    bands = spreads(which, numbers(rows["value"]))
    figures = [(band.middle, band.low, band.high, band.n) for band in bands.values()]
    names = rows.select(["series_id", "unit"]).take(pa.array(first))
    columns = [pa.repeat(run_id, len(bands)), *names.columns, *zip(*figures, strict=True)]
    return pa.table(columns, schema=_ROLLUP)


def _points(table: pa.Table) -> dict[str, PointCount]:
    """Return the samples of each point, without warm-up."""
    names = ("point", "repetition", "phase", "status", "error")
    columns = [objects(table[name]) for name in names]
    samples = {
        (point, repetition): (status, error)
        for point, repetition, phase, status, error in zip(*columns, strict=True)
        if phase != "warmup"
    }
    entries = dict(zip(columns[0], objects(table["entry"]), strict=True))
    bad: Counter[str] = Counter()
    errors: dict[str, str] = {}
    for (point, _), (status, error) in samples.items():
        if status != "ok":
            bad[point] += 1
            errors[point] = f"{status}: {error}" if error else status
    every = Counter(point for point, _ in samples)
    return {
        point: PointCount(
            count - bad[point], bad[point], errors.get(point, ""), entries[point] or ""
        )
        for point, count in every.items()
    }


def merge_months(
    suite: str, months: Sequence[MonthlyRollup], stored: set[str], damaged: list[str]
) -> RunMedians:
    """Merge the rows of all months into (series, runs). Runs without a file are left out.

    A series has the unit that it had first. Runs with another one are left out of it, and named.
    """
    known = {run_id: run for month in months for run_id, run in month.runs.items()}
    runs = [known[name] for name in sorted(stored & known.keys()) if known[name].trigger != "ab"]
    infos: dict[str, SeriesInfo] = {}
    for month in months:
        infos = month.series | infos
    series = sorted(infos.values(), key=_order)
    shape = (len(series), len(runs))
    value, low, high = (np.full(shape, math.nan) for _ in range(3))
    n = np.zeros(shape, dtype=np.int32)
    table = pa.concat_tables([_ROLLUP.empty_table(), *(t for month in months for t in month.rows)])
    if table.num_rows:
        (run, run_ids), (which, ids), (unit, units) = (codes(table[x]) for x in _ROLLUP.names[:3])
        column = {run.run_id: i for i, run in enumerate(runs)}
        row = {info.series_id: i for i, info in enumerate(series)}
        j = np.array([column.get(name, -1) for name in run_ids])[run]
        i = np.array([row[name] for name in ids])[which]
        other = (j >= 0) & (np.array([units.index(info.unit) for info in series])[i] != unit)
        lost: dict[tuple[int, int], list[str]] = {}
        for at in np.flatnonzero(other).tolist():
            lost.setdefault((i[at], unit[at]), []).append(runs[j[at]].run_id)
        for (at, wrong), names in lost.items():
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            what = f"{series[at].entry} {series[at].name} in {units[wrong]}"
            damaged.append(f"run {min(names)}{more}: {what}, in {series[at].unit} before")
        valid = (j >= 0) & ~other
        for array, name in ((value, "value"), (low, "low"), (high, "high"), (n, "n")):
            array[i[valid], j[valid]] = numbers(table[name])[valid]
    count = np.isfinite(value).astype(np.int32)
    arrays = (value, low, high, n, value, value, count)
    return _with_rechecks(RunMedians(suite, runs, series, *arrays, damaged=damaged))


def _with_rechecks(measured: RunMedians) -> RunMedians:
    """Return the run medians with re-measurements as part of the run of their cluster before.

    One whose run was removed is a run of its own.
    """
    groups: list[list[int]] = []
    newest: dict[str, list[int]] = {}
    for i, run in enumerate(measured.runs):
        if run.trigger == "recheck" and run.cluster in newest:
            newest[run.cluster].append(i)
        else:
            newest[run.cluster] = [i]
            groups.append(newest[run.cluster])
    medians = measured.at([columns[0] for columns in groups])
    for i, columns in enumerate(groups):
        if len(columns) > 1:
            _merge(medians, i, measured, columns)
    return medians


def _merge(medians: RunMedians, i: int, measured: RunMedians, columns: list[int]) -> None:
    """Make run `i` that of several columns: of itself and its re-measurements."""
    run_id, *rechecks = (measured.runs[column].run_id for column in columns)
    medians.rechecks[run_id] = rechecks
    values = measured.value[:, columns]
    rows = np.flatnonzero(np.isfinite(values[:, 1:]).any(axis=1))
    for name in ("value", "low", "high"):
        getattr(medians, name)[rows, i] = _mean(getattr(measured, name)[rows][:, columns])
    medians.n[:, i] = measured.n[:, columns].sum(axis=1)
    medians.least[rows, i] = np.nanmin(values[rows], axis=1)
    medians.most[rows, i] = np.nanmax(values[rows], axis=1)
    medians.count[:, i] = np.isfinite(values).sum(axis=1)


def _mean(rows: Array) -> Array:
    """Return the mean of each row without NaN: that of logarithms where all are positive."""
    positive = ~(rows <= 0).any(axis=1)
    means: Array = np.nanmean(rows, axis=1)
    means[positive] = np.exp(np.nanmean(np.log(rows[positive]), axis=1))
    return means


def _order(info: SeriesInfo) -> tuple[Any, ...]:
    point, coords, metric, stat, _ = info.key
    return info.canary, not info.headline, info.entry, point, metric, stat, coords


def read_run_medians(store: Store, suite: str, *, write_back: bool = True) -> RunMedians:
    """Return the run medians of a suite, from roll-ups where they are up to date.

    Runs of `ab` are left out. An incomplete roll-up is written back where `write_back`, and a
    failure to write is ignored. Unreadable files are left out and named in `damaged`. Raises
    StoreError.
    """
    stored: dict[str, dict[str, str]] = {}
    for run_id in runs_with_rows(store, suite):
        stored.setdefault(month_of(run_id), {})[run_id] = result_key(suite, run_id)
    present = set(store.list(f"rollups/{suite}"))
    wanted = [key for month in sorted(stored) if (key := rollup_key(suite, month)) in present]
    months = {month: MonthlyRollup() for month in stored}
    for key, data in store.get_many(wanted):
        with contextlib.suppress(pa.ArrowInvalid, OSError, ValueError, KeyError, TypeError):
            months[key.rpartition("/")[2].removesuffix(".parquet")] = _read(data)
    damaged: list[str] = []
    for month, runs in stored.items():
        with gc_paused():
            changed = _complete(store, months[month], runs, damaged)
        if changed and write_back:
            with contextlib.suppress(StoreError):
                store.put(rollup_key(suite, month), _write(months[month]))
    return merge_months(
        suite,
        [months[month] for month in sorted(months)],
        set[str]().union(*stored.values()),
        damaged,
    )


def _complete(
    store: Store, month: MonthlyRollup, stored: dict[str, str], damaged: list[str]
) -> bool:
    """Read the runs that a month lacks. Return whether there were any."""
    missing = [key for run_id, key in sorted(stored.items()) if run_id not in month.runs]
    schema = pa.schema([SAMPLES.field(name) for name in COLUMNS])
    changed = False
    for key, data in store.get_many(missing):
        try:
            rows = read_rows(data, schema)
            if rows["run_id"].null_count:  # another program wrote the file
                raise OSError("rows without a run")
            month.add(rows)
            changed = True
        except (pa.ArrowInvalid, OSError):
            damaged.append(key)
    return changed


def _write(month: MonthlyRollup) -> bytes:
    """Return a month as Parquet. What most runs share, environment and points, stands once."""
    envs: dict[str, int] = {}
    states: dict[str, int] = {}
    runs = []
    for run in month.runs.values():
        env = envs.setdefault(orjson.dumps(run.env).decode(), len(envs))
        counts = {point: list(count) for point, count in run.points.items()}
        state = states.setdefault(orjson.dumps(counts).decode(), len(states))
        runs.append([run.run_id, run.trigger, run.cluster, env, state])
    about = {
        "version": VERSION,
        "runs": runs,
        "envs": list(envs),
        "points": list(states),
        "series": [asdict(info) for info in month.series.values()],
    }
    table = pa.concat_tables([_ROLLUP.empty_table(), *month.rows])
    table = table.replace_schema_metadata({b"perfdag": orjson.dumps(about)})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _read(data: bytes) -> MonthlyRollup:
    # read_table would import pyarrow.dataset and pandas, which takes longer than everything else.
    table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
    about = orjson.loads(table.schema.metadata[b"perfdag"])
    if about["version"] != VERSION:
        raise ValueError("another version")
    envs = [orjson.loads(text) for text in about["envs"]]
    points = [
        {point: PointCount(*count) for point, count in orjson.loads(text).items()}
        for text in about["points"]
    ]
    runs = {
        run_id: RunInfo(run_id, trigger, cluster, envs[env], points[state])
        for run_id, trigger, cluster, env, state in about["runs"]
    }
    series = {columns["series_id"]: SeriesInfo(**columns) for columns in about["series"]}
    return MonthlyRollup(runs, series, [table.replace_schema_metadata(None)])

"""Run medians of a suite: one number per series and run."""

import contextlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
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
from perfdag.identity import grouped
from perfdag.results.labels import differences_by_point, words
from perfdag.results.run_store import PARTIAL, month_of, result_key, rollup_key, runs_with_rows
from perfdag.results.schema import SAMPLES, codes, is_measured, numbers, objects, read_rows
from perfdag.results.summary import SERIES_COLUMNS, SeriesInfo, first_rows, values_by_series
from perfdag.stats.robust import spread
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
    def failed(self) -> bool:
        """Whether a point has no valid sample, although it was not skipped and is no canary."""
        return any(
            not count.ok and not count.error.startswith("skipped") and point != "canary"
            for point, count in self.points.items()
        )


@dataclass(frozen=True)
class PointNames:
    """What distinguishes a point within its entry: `bs=4KiB reverse`, and as people read it."""

    name: str
    label: str


def point_names(series: Iterable[SeriesInfo]) -> dict[str, PointNames]:
    """Return point id -> what distinguishes it within its entry."""
    points = {info.point: info for info in series}
    settings = ((info.entry, info.point, info.settings) for info in points.values())
    return {
        point: PointNames(words(differences), point_label(points[point].benchmark, differences))
        for point, differences in differences_by_point(settings).items()
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

    @cached_property
    def run_ids(self) -> list[str]:
        """The ids of the runs."""
        return [run.run_id for run in self.runs]

    @cached_property
    def newest_whole(self) -> int:
        """The position of the newest run of a whole suite, or of the newest one if none is."""
        of_suites = [i for i, run in enumerate(self.runs) if run.trigger not in PARTIAL]
        return of_suites[-1] if of_suites else len(self.runs) - 1

    @cached_property
    def planned_points(self) -> set[str]:
        """The points that the newest whole run, or one after it, measured or lacks."""
        return {point for run in self.runs[self.newest_whole :] for point in run.points}

    def nights(self, row: int) -> Nights:
        """Return the nights of a series, for the rule of levels."""
        at = np.flatnonzero(np.isfinite(self.value[row]))
        return Nights(
            at,
            value=self.value[row, at],
            least=self.least[row, at],
            most=self.most[row, at],
            count=self.count[row, at].astype(np.int64),
        )

    def on_cluster(self, cluster: str | None) -> "RunMedians":
        """Return the runs of one cluster."""
        return self.select(lambda run: run.cluster == cluster)

    def select(self, condition: Callable[[RunInfo], bool]) -> "RunMedians":
        """Return the runs that meet a condition. Series that none of them has are dropped."""
        chosen = self.at([i for i, run in enumerate(self.runs) if condition(run)])
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
        self.runs[run_id] = RunInfo(run_id, trigger, cluster, environment(table), _points(table))
        rows = table.select([*SERIES_COLUMNS, "value"]).filter(is_measured(table))
        if trigger == "ab" or not rows.num_rows:
            return
        values = values_by_series(rows)
        medians = []
        for row in first_rows(rows, ["series_id"], SERIES_COLUMNS):
            series_id = row["series_id"]
            self.series.setdefault(series_id, SeriesInfo.of(row))
            band = spread(values[series_id])
            medians.append(
                (run_id, series_id, row["unit"], band.middle, band.low, band.high, band.n)
            )
        self.rows.append(pa.table([*zip(*medians, strict=True)], schema=_ROLLUP))


def medians_of_rows(table: pa.Table, suite: str) -> RunMedians:
    """Return the run medians of rows of one or several runs."""
    month = MonthlyRollup()
    for run_id in pc.unique(table["run_id"]).to_pylist():
        month.add(table.filter(pc.equal(table["run_id"], run_id)))
    return merge_months(suite, [month], set(month.runs), [])


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
    counts: dict[str, PointCount] = {}
    for (point, _), (status, error) in samples.items():
        count = counts.get(point, PointCount(entry=entries[point] or ""))
        if status == "ok":
            counts[point] = count._replace(ok=count.ok + 1)
        else:
            text = f"{status}: {error}" if error else status
            counts[point] = count._replace(bad=count.bad + 1, error=text)
    return counts


def merge_months(
    suite: str, months: Sequence[MonthlyRollup], stored: set[str], damaged: list[str]
) -> RunMedians:
    """Merge the rows of all months into (series, runs). Runs without a file are left out.

    A series has the unit that it had first. Runs with another one are left out of it, and named.
    """
    by_id = {run_id: run for month in months for run_id, run in month.runs.items()}
    runs = [by_id[name] for name in sorted(stored & by_id.keys()) if by_id[name].trigger != "ab"]
    infos: dict[str, SeriesInfo] = {}
    for month in months:
        infos = month.series | infos
    series = sorted(infos.values(), key=_order)
    shape = (len(series), len(runs))
    value, low, high = (np.full(shape, math.nan) for _ in range(3))
    n = np.zeros(shape, dtype=np.int32)
    tables = [table for month in months for table in month.rows]
    table = pa.concat_tables([_ROLLUP.empty_table(), *tables])
    if table.num_rows:
        of_run, run_ids = codes(table["run_id"])
        of_series, series_ids = codes(table["series_id"])
        of_unit, units = codes(table["unit"])
        column_of = {run.run_id: column for column, run in enumerate(runs)}
        row_of = {info.series_id: row for row, info in enumerate(series)}
        columns = np.array([column_of.get(name, -1) for name in run_ids])[of_run]
        rows = np.array([row_of[name] for name in series_ids])[of_series]
        first_units = np.array([units.index(info.unit) for info in series])
        differs = (columns >= 0) & (first_units[rows] != of_unit)
        foreign = np.flatnonzero(differs).tolist()
        for (row, unit), places in grouped(foreign, lambda at: (rows[at], of_unit[at])).items():
            info = series[row]
            names = [runs[columns[at]].run_id for at in places]
            also = f" and {len(names) - 1} more" if len(names) > 1 else ""
            text = f"{info.entry} {info.name} in {units[unit]}, in {info.unit} before"
            damaged.append(f"run {min(names)}{also}: {text}")
        valid = (columns >= 0) & ~differs
        for name, array in {"value": value, "low": low, "high": high, "n": n}.items():
            array[rows[valid], columns[valid]] = numbers(table[name])[valid]
    count = np.isfinite(value).astype(np.int32)
    medians = RunMedians(
        suite, runs, series, value, low, high, n, value, value, count, damaged=damaged
    )
    return _with_rechecks(medians)


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


def read_run_medians(store: Store, suite: str) -> RunMedians:
    """Return the run medians of a suite, from roll-ups where they are up to date.

    Runs of `ab` are left out. An incomplete roll-up is written back, and a failure to write is
    ignored. Unreadable files are left out and named in `damaged`. Raises
    StoreError.
    """
    stored = runs_with_rows(store, suite)
    months = {month_of(run_id): MonthlyRollup() for run_id in stored}
    month_of_key = {rollup_key(suite, month): month for month in months}
    present = month_of_key.keys() & set(store.list(f"rollups/{suite}"))
    for key, data in store.get_many(sorted(present)):
        with contextlib.suppress(pa.ArrowInvalid, OSError, ValueError, KeyError, TypeError):
            months[month_of_key[key]] = _read(data)
    damaged: list[str] = []
    missing = [run_id for run_id in stored if run_id not in months[month_of(run_id)].runs]
    for month, runs in grouped(missing, month_of).items():
        keys = [result_key(suite, run_id) for run_id in runs]
        if _complete(store, months[month], keys, damaged):
            with contextlib.suppress(StoreError):
                store.put(rollup_key(suite, month), _write(months[month]))
    return merge_months(suite, list(months.values()), set(stored), damaged)


def _complete(store: Store, month: MonthlyRollup, keys: list[str], damaged: list[str]) -> bool:
    """Read these runs, which a month lacks. Return whether any of them could be read."""
    schema = pa.schema([SAMPLES.field(name) for name in COLUMNS])
    changed = False
    for key, data in store.get_many(keys):
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

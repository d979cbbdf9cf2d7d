"""Run medians of a suite: one number per series and run."""

import contextlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from perfdag.results.labels import flatten, labels_by_point, point_settings, series_name
from perfdag.results.samples import month_of, result_key, rollup_key, stored_runs
from perfdag.results.schema import SAMPLES, read_rows
from perfdag.stats.robust import INTERVAL_FROM, median_ranks
from perfdag.stats.scales import Array, middle
from perfdag.store.base import Store, StoreError


@dataclass(frozen=True)
class SeriesInfo:
    """The identity of a series. `params`, `shape` and `coords` are canonical JSON.

    `better` is higher, lower or none, `pair` empty or `0-3`, `span` that of the rows or empty.
    """

    series_id: str
    entry: str
    benchmark: str
    point: str
    params: str
    shape: str
    pair: str
    coords: str
    metric: str
    stat: str
    unit: str
    better: str
    benchmark_version: str
    span: str
    headline: bool

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """What is measured, regardless of the suite's name and the benchmark's version."""
        return (self.point, self.coords, self.metric, self.stat, self.span)

    @property
    def name(self) -> str:
        """Metric with its statistic, coordinates and span: `latency p99 direction=read`."""
        return series_name(self.metric, self.stat, self.mappings[0], self.span)

    @cached_property
    def mappings(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """The coordinates, parameters and shape, read once."""
        coords, params, shape = (
            orjson.loads(text or "{}") for text in (self.coords, self.params, self.shape)
        )
        return coords, params, shape

    @cached_property
    def settings(self) -> dict[str, str]:
        """The settings of its point as flat text."""
        return point_settings(*self.mappings[1:], self.pair)

    @property
    def canary(self) -> bool:
        """Whether it measures the machine and not the suite."""
        return self.benchmark == "canary"


@dataclass(frozen=True)
class RunInfo:
    """One run: start (ISO 8601, UTC), cluster, `env` as flat text, and the state of each point.

    `points` maps a point to (ok, not ok, an error, entry).
    """

    run_id: str
    started_at: str
    trigger: str
    cluster: str
    env: dict[str, str]
    points: dict[str, tuple[int, int, str, str]]

    @property
    def when(self) -> datetime:
        """The time the run started."""
        return datetime.fromisoformat(self.started_at)


def series_labels(series: Iterable[SeriesInfo]) -> dict[str, str]:
    """Return point id -> what distinguishes it within its entry (`streams=4 network.host=true`)."""
    points = {info.point: info for info in series}
    return labels_by_point((info.entry, info.point, info.settings) for info in points.values())


_VOLATILE = ("host", "sample", "free_bytes", "load")
"""Facts that differ between runs and explain nothing: pod, sample, free space, load before it."""


def environment(table: pa.Table) -> dict[str, str]:
    """Return the environment of a run as flat text. A bar joins several values of one key.

    The facts of all nodes count alike: which of them leads a gang is chance.
    """
    values: dict[str, set[str]] = {}
    for text in _distinct(table["env"]):
        lead = orjson.loads(text)
        for facts in (lead, *lead.pop("peers", {}).values()):
            for key, value in flatten(facts, _VOLATILE):
                if value != "null":
                    values.setdefault(key, set()).add(value)
    for name in ("env_class", "perfdag_version", "tool"):
        for text in _distinct(table[name]):
            values.setdefault(name, set()).add(text)
    digests, texts = codes(table["image_digest"])
    for i in np.unique(digests, return_index=True)[1]:
        if digests[i] >= 0:
            values.setdefault(f"image {table['benchmark'][int(i)].as_py()}", set()).add(
                texts[digests[i]]
            )
    nodes = set(_distinct(table["nodes"].combine_chunks().flatten()))
    if nodes:
        values["nodes"] = nodes
    return {key: " | ".join(sorted(values)) for key, values in sorted(values.items())}


def _distinct(column: pa.ChunkedArray | pa.Array) -> list[str]:
    return [text for text in pc.unique(column).to_pylist() if text]


def codes(column: pa.ChunkedArray) -> tuple[NDArray[np.int64], list[Any]]:
    """Return a text column as numbers, and the text of each number. Null is -1."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    array = column.unify_dictionaries().combine_chunks()
    return numbers(array.indices, -1).astype(np.int64), array.dictionary.to_pylist()


def numbers(column: pa.ChunkedArray | pa.Array, absent: float = math.nan) -> NDArray[Any]:
    """Return a numeric column as an array, with `absent` where it is null.

    A column without nulls goes through dlpack, because to_numpy imports pandas where it is
    installed, which takes longer than everything else.
    """
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if array.null_count:
        filled: NDArray[Any] = np.nan_to_num(array.to_numpy(zero_copy_only=False), nan=absent)
        return filled
    return np.from_dlpack(array)


VERSION = 3
"""Version of the roll-ups."""

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


def read_run_medians(store: Store, suite: str, *, write_back: bool = True) -> RunMedians:
    """Return the run medians of a suite, from roll-ups where they are up to date.

    Runs of `ab` are left out. An incomplete roll-up is written back where `write_back`, and a
    failure to write is ignored. Unreadable files are left out and named in `damaged`. Raises
    StoreError.
    """
    stored: dict[str, dict[str, str]] = {}
    for run_id, _ in stored_runs(store, suite):
        stored.setdefault(month_of(run_id), {})[run_id] = result_key(suite, run_id)
    present = set(store.list(f"rollups/{suite}"))
    wanted = [key for month in sorted(stored) if (key := rollup_key(suite, month)) in present]
    months = {month: MonthlyRollup() for month in stored}
    for key, data in store.get_many(wanted):
        with contextlib.suppress(pa.ArrowInvalid, OSError, ValueError, KeyError, TypeError):
            months[key.rpartition("/")[2].removesuffix(".parquet")] = _read(data)
    damaged: list[str] = []
    for month, runs in stored.items():
        if _complete(store, months[month], runs, damaged) and write_back:
            with contextlib.suppress(StoreError):
                store.put(rollup_key(suite, month), _write(months[month]))
    return merge_months(
        suite,
        [months[month] for month in sorted(months)],
        {r for runs in stored.values() for r in runs},
        damaged,
    )


def _complete(
    store: Store, month: MonthlyRollup, stored: dict[str, str], damaged: list[str]
) -> bool:
    """Read the runs that a month lacks. Return whether there were any and all were readable."""
    missing = [key for run_id, key in sorted(stored.items()) if run_id not in month.runs]
    schema = pa.schema([SAMPLES.field(name) for name in COLUMNS])
    changed, refused = False, list[str]()
    for key, data in store.get_many(missing):
        try:
            rows = read_rows(data, schema)
            if rows["run_id"].null_count:  # another program wrote the file
                raise OSError("rows without a run")
            refused += add_run(month, rows)
            changed = True
        except (pa.ArrowInvalid, OSError):
            damaged.append(key)
    damaged += refused
    return changed and not refused


def _write(month: MonthlyRollup) -> bytes:
    envs = {repr(run.env): run.env for run in month.runs.values()}
    number = {text: i for i, text in enumerate(envs)}
    points: dict[tuple[str, str], int] = {}
    runs = []
    for run in month.runs.values():
        counts = [
            (points.setdefault((key, p[3]), len(points)), p[0], p[1], p[2])
            for key, p in run.points.items()
        ]
        # Most points of a run have the same state: one list of numbers for all of them.
        alike = sorted({count[1:] for count in counts})
        grouped = [
            [*state, [count[0] for count in counts if count[1:] == state]] for state in alike
        ]
        runs.append(
            [run.run_id, run.started_at, run.trigger, run.cluster, number[repr(run.env)], grouped]
        )
    about = {
        "version": VERSION,
        "points": list(points),
        "runs": runs,
        "envs": list(envs.values()),
        "series": [list(asdict(info).values()) for info in month.series.values()],
    }
    table = pa.concat_tables(month.rows) if month.rows else _empty()
    table = table.replace_schema_metadata({b"perfdag": orjson.dumps(about)})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _empty() -> pa.Table:
    types = [pa.string(), pa.string(), pa.float64(), pa.float64(), pa.float64(), pa.int32()]
    names = ["run_id", "series_id", "value", "low", "high", "n"]
    return pa.schema(list(zip(names, types, strict=True))).empty_table()


def _read(data: bytes) -> MonthlyRollup:
    # read_table would import pyarrow.dataset and pandas, which takes longer than everything else.
    table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
    about = orjson.loads(table.schema.metadata[b"perfdag"])
    if about["version"] != VERSION:
        raise ValueError("another version")
    runs = {}
    alike: dict[bytes, dict[str, tuple[int, int, str, str]]] = {}
    for run_id, started, trigger, cluster, env, states in about["runs"]:
        # Most runs have the same state of every point. They share one dict.
        points = alike.setdefault(orjson.dumps(states), {})
        if not points:
            for ok, bad, error, which in states:
                points.update(
                    {about["points"][i][0]: (ok, bad, error, about["points"][i][1]) for i in which}
                )
        runs[run_id] = RunInfo(run_id, started, trigger, cluster, about["envs"][env], points)
    series = {columns[0]: SeriesInfo(*columns) for columns in about["series"]}
    return MonthlyRollup(runs, series, [table.replace_schema_metadata(None)])

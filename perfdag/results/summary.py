"""Summary of a run: its series and points, their names, and how far they can be trusted."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, Literal, Self, get_args

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from perfdag.benchmark import registry
from perfdag.benchmark.contract import VERDICT, VERDICT_VALUES, Benchmark, VerdictWord
from perfdag.results.labels import differences_by_point, point_settings, setting, words
from perfdag.results.schema import codes, is_measured, numbers, objects
from perfdag.stats.robust import Spread, median, spread, spread_ranks
from perfdag.units import plural, short


@lru_cache(maxsize=4096)
def parsed(text: str) -> dict[str, Any]:
    """Return settings that rows hold as JSON. Many rows and runs share them: do not change them."""
    settings: dict[str, Any] = orjson.loads(text)
    return settings


@dataclass
class SeriesInfo:
    """The identity of a series, with the settings that its rows hold as JSON.

    `better` is higher, lower or none, `pair` empty or `0-3`, `span` that of the rows or empty.
    """

    series_id: str
    entry: str
    benchmark: str
    point: str
    params: dict[str, Any]
    shape: dict[str, Any]
    pair: str
    coords: dict[str, Any]
    metric: str
    stat: str
    unit: str
    better: str
    benchmark_version: str
    span: str
    headline: bool

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """Return the series of a row of SAMPLES."""
        own: dict[str, Any] = {name: row[name] or "" for name in SERIES_COLUMNS}
        own |= {name: parsed(own[name] or "{}") for name in ("params", "shape", "coords")}
        return cls(**{**own, "headline": bool(own["headline"])})

    @cached_property
    def key(self) -> tuple[str, str, str, str, str]:
        """What is measured, regardless of the suite's name and the benchmark's version."""
        coords = orjson.dumps(self.coords, option=orjson.OPT_SORT_KEYS).decode()
        return self.point, coords, self.metric, self.stat, self.span

    @property
    def name(self) -> str:
        """Metric with its statistic, coordinates and span: `latency p99 direction=read`."""
        return (
            self.metric
            + ("" if self.stat == "value" else f" {self.stat}")
            + "".join(
                f" {key}={setting(self.benchmark, key, value)}"
                for key, value in self.coords.items()
            )
            + (f" between {self.span}" if self.span in ("nodes", "zones") else "")
        )

    @property
    def display_unit(self) -> str:
        """The unit of its values for people: `samples/s` or `IOPS` where it is 1/s."""
        return registry.display_unit(self.benchmark, self.metric, self.unit)

    @property
    def label(self) -> str:
        """What people call it: `read latency, p99`."""
        text = registry.metric_label(self.benchmark, self.metric, self.stat, self.coords)
        return f"{text} between {self.span}" if self.span in ("nodes", "zones") else text

    def named(self, point: str) -> str:
        """Return what checks call it, with the words of its point: `disk bs=4KiB iops`."""
        return " ".join(filter(None, (self.entry, point, self.name)))

    def titled(self, point: str) -> str:
        """Return what people call it, with the label of its point: `disk read IOPS, 4 KiB`."""
        return ", ".join(filter(None, (f"{self.entry} {self.label}".strip(), point)))

    @cached_property
    def settings(self) -> dict[str, str]:
        """The settings of its point as flat text."""
        return point_settings(self.benchmark, self.params, self.shape, self.pair)

    @property
    def canary(self) -> bool:
        """Whether it measures the machine and not the suite."""
        return self.benchmark == "canary"


SERIES_COLUMNS = tuple(each.name for each in fields(SeriesInfo))


@dataclass
class Series(SeriesInfo):
    """The values of a series in one run, without warm-up.

    `nominal` says how much of the nominally possible the median is, where that is known.
    """

    values: list[float] = field(default_factory=list)
    nominal: str = ""

    @property
    def middle(self) -> float:
        """The median."""
        return self.band.middle

    @cached_property
    def band(self) -> Spread:
        """The median of the values with their spread."""
        return spread(self.values)


@dataclass
class PointState:
    """One point: samples by status, reasons of failures, disturbances, and series.

    Headline series come first. `pair` and `nodes` (distinct tuples, one per sample) belong to a
    point that is one pair of hosts. `differences` are the settings that tell it from the other
    points of its entry, and its `title` tells it from those of its benchmark.
    """

    point: str
    entry: str
    benchmark: str
    params: dict[str, Any]
    shape: dict[str, Any]
    statuses: Counter[str] = field(default_factory=Counter)
    reasons: list[str] = field(default_factory=list)
    noise: list[str] = field(default_factory=list)
    series: list[Series] = field(default_factory=list)
    pair: str | None = None
    nodes: list[tuple[str, ...]] = field(default_factory=list)
    differences: dict[str, str] = field(default_factory=dict)
    title: str = ""

    @property
    def settings(self) -> dict[str, str]:
        """Its settings as flat text."""
        return point_settings(self.benchmark, self.params, self.shape, self.pair)

    @cached_property
    def words(self) -> dict[str, str]:
        """The differences for people, by setting: `random read`, `4 KiB`."""
        return registry.point_words(self.benchmark, self.differences)

    @property
    def label(self) -> str:
        """The words as text: `random read, 4 KiB`. Empty for the only point of an entry."""
        return ", ".join(self.words.values())

    @property
    def name(self) -> str:
        """The entry and the differences, as checks name it: `disk bs=4KiB rw=randread`."""
        return f"{self.entry} {words(self.differences)}".strip()

    @property
    def full_title(self) -> str:
        """The entry and the label: `disk, random read, 4 KiB`."""
        return ", ".join(filter(None, (self.entry, self.label)))

    @property
    def why(self) -> str | None:
        """The reason for having no value, or None where a sample is valid."""
        if self.statuses.get("ok"):
            return None
        words = ", ".join(sorted(self.statuses)) or "missing"
        return _CONTROL.sub(" ", f"{words}: {self.reasons[0]}") if self.reasons else words

    def add_sample(self, row: Mapping[str, Any]) -> None:
        """Count a sample by one of its rows, with the columns SAMPLE_COLUMNS."""
        self.statuses[row["status"]] += 1
        if row["error"] and row["error"] not in self.reasons:
            self.reasons.append(row["error"])
        if row["noise"] and row["noise"] not in self.noise:
            self.noise.append(row["noise"])
        nodes = tuple(row["nodes"] or ())
        if self.pair and nodes and nodes not in self.nodes:
            self.nodes.append(nodes)


POINT_COLUMNS = ("point", "entry", "benchmark", "params", "shape", "pair")
SAMPLE_COLUMNS = ("point", "status", "error", "noise", "nodes")
"""The columns of a point and of a sample."""
_OF_VALUES = ("phase", "repetition", "variant", "subject", "value")
_COLUMNS = list(dict.fromkeys([*POINT_COLUMNS, *SAMPLE_COLUMNS, *SERIES_COLUMNS, *_OF_VALUES]))
"""The columns that the points of a run are read from."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]+")


@dataclass(frozen=True)
class Summary:
    """What the rows of a run say: its points, their trust, and own verdicts.

    It is made once, and terminal, report, site and gate read it. `statuses` are the samples.
    """

    table: pa.Table
    points: list[PointState]
    trust: "RunTrust"
    verdicts: "list[OwnVerdict]"

    @property
    def statuses(self) -> Counter[str]:
        """The samples by status, without warm-up and canaries."""
        return _statuses_of(self.points)


def summarise(table: pa.Table) -> Summary:
    """Return the summary of the rows of one run, with those of the canary."""
    points = points_of(table)
    _add_nominal(table, points)
    trust = _trust_in(table, points)
    return Summary(table, points, trust, own_verdicts(table, points))


def _statuses_of(states: Iterable[PointState]) -> Counter[str]:
    """Return the samples of points by status."""
    every: Counter[str] = Counter()
    for state in states:
        every.update(state.statuses)
    return every


def points_of(table: pa.Table) -> list[PointState]:
    """Return the points of one run's rows in the order of the table, without the canary."""
    is_point = pc.fill_null(pc.not_equal(table["benchmark"], "canary"), True)
    is_shown = pc.and_(pc.equal(table["phase"], "measure"), is_point)
    rows = table.select(_COLUMNS).filter(is_shown)
    points: dict[str, PointState] = {}
    first = list(_first_rows(rows, ("point",), POINT_COLUMNS))
    labels = _labels(tuple(tuple(row.values()) for row in first))
    for row in first:
        state = _point(row)
        state.differences, state.title = labels[state.point]
        points[state.point] = state
    for row in _first_rows(rows, ("point", "repetition", "variant"), SAMPLE_COLUMNS):
        points[row["point"]].add_sample(row)
    for series in _series_of(rows.filter(is_measured(rows))):
        points[series.point].series.append(series)
    for state in points.values():
        state.series.sort(key=lambda item: not item.headline)
    return list(points.values())


def _point(row: Mapping[str, Any]) -> PointState:
    """Return a point of the columns POINT_COLUMNS, without its samples."""
    settings = {name: parsed(row[name]) for name in ("params", "shape")}
    return PointState(**{**row, **settings})


def _series_of(rows: pa.Table) -> Iterator[Series]:
    """Yield the series of measured rows in their order, each with its values in their order."""
    which, ids = codes(rows["series_id"])
    values = numbers(rows["value"])
    by_series = group_values(which, values)
    bands = spreads(which, values)
    number = {name: i for i, name in enumerate(ids)}
    for row in _first_rows(rows, ("series_id",), SERIES_COLUMNS):
        series = Series.of(row)
        series.values = by_series[number[series.series_id]]
        series.band = bands[number[series.series_id]]
        yield series


def group_values(which: NDArray[np.int64], values: NDArray[np.float64]) -> dict[int, list[float]]:
    """Return the values of each group in their order. `which` has the group of each value."""
    order = np.argsort(which, kind="stable")
    groups, starts = np.unique(which[order], return_index=True)
    ordered = values[order].tolist()
    bounds = pairwise([*starts.tolist(), len(ordered)])
    parts = [ordered[start:end] for start, end in bounds]
    return dict(zip(groups.tolist(), parts, strict=True))


def spreads(which: NDArray[np.int64], values: NDArray[np.float64]) -> dict[int, Spread]:
    """Return what `spread` returns of the values of each group. All are finite."""
    order = np.lexsort((values, which))
    groups, starts, counts = np.unique(which[order], return_index=True, return_counts=True)
    ordered = values[order]
    by_count = {n: spread_ranks(n) for n in set(counts.tolist())}
    ranks = np.array([by_count[n] for n in counts.tolist()], np.int64).reshape(-1, 2)
    low, high = (starts[:, None] + ranks - 1).T
    middle = (ordered[starts + (counts - 1) // 2] + ordered[starts + counts // 2]) / 2
    figures = (middle, ordered[low], ordered[high], counts)
    bands = map(Spread, *(array.tolist() for array in figures))
    return dict(zip(groups.tolist(), bands, strict=True))


def _first_rows(
    table: pa.Table, keys: Sequence[str], names: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Yield some columns of the first row of each group, in the order of the table.

    The rows of a group have equal values in the columns `keys`.
    """
    group = np.zeros(table.num_rows, np.int64)
    for key in keys:
        which, distinct = codes(table[key])
        group = group * (len(distinct) + 1) + which + 1
    first = np.sort(np.unique(group, return_index=True)[1])
    chosen = table.select(names).take(pa.array(first))
    for values in zip(*map(objects, chosen.columns), strict=True):
        yield dict(zip(names, values, strict=True))


@lru_cache(maxsize=64)
def _labels(points: tuple[tuple[str, ...], ...]) -> dict[str, tuple[dict[str, str], str]]:
    """Return the differences and the title of each point, by its POINT_COLUMNS.

    They are kept, because the runs of a suite have the same points. A title has the entry where a
    benchmark has several.
    """
    states = [_point(dict(zip(POINT_COLUMNS, point, strict=True))) for point in points]
    differences = differences_by_point((own.entry, own.point, own.settings) for own in states)
    entries: dict[str, set[str]] = {}
    for state in states:
        entries.setdefault(state.benchmark, set()).add(state.entry)
    labels = {}
    for state in states:
        state.differences = differences[state.point]
        title = state.label
        if len(entries[state.benchmark]) > 1 or not title:
            title = f"{state.entry}: {title}" if title else state.entry
        labels[state.point] = state.differences, _CONTROL.sub(" ", title)
    return labels


def statuses_text(statuses: Mapping[str, int]) -> str:
    """Return samples by status, the good ones first: `9 ok, 1 failed`."""
    ordered = sorted(statuses.items(), key=lambda item: item[0] != "ok")
    return ", ".join(f"{count} {status}" for status, count in ordered)


BITS = {"bit/s": 1.0, "B/s": 8.0}
"""Bits of a unit. Nominal figures are in bit/s."""


def _add_nominal(table: pa.Table, states: Sequence[PointState]) -> None:
    """Note `46 % of 25 Gbit/s (NIC)` in series of two nodes whose physical NICs are known.

    It is a share of the speed of the slowest NIC.
    """
    several = table.filter(
        pc.and_(pc.equal(table["status"], "ok"), pc.is_valid(table["same_node"]))
    )
    columns = [objects(several[name]) for name in ("point", "env", "same_node")]
    hosts = dict(zip(columns[0], columns[1], strict=True))
    within = {point for point, _, same_node in zip(*columns, strict=True) if same_node}
    for state in [state for state in states if state.point in hosts.keys() - within]:
        try:
            benchmark: Benchmark[Any] = registry.get(state.benchmark)
            names = {metric.name for metric in benchmark.metrics if metric.nominal}
            directions = benchmark.Params.model_validate(state.params).directions
        except Exception:  # a benchmark that is not installed here, or of another version
            continue
        interface = (state.shape.get("network") or {}).get("interface")
        nominal = _link_speed(orjson.loads(hosts[state.point]), interface) * directions
        for series in state.series if nominal else ():
            if series.metric in names:
                share = series.middle * BITS[series.unit] / nominal
                series.nominal = f"{100 * share:.0f} % of {short(nominal, 'bit/s')} (NIC)"


def _link_speed(env: Mapping[str, Any], interface: str | None) -> float:
    """Return the speed of the slowest host's physical NIC in bit/s, or 0 if one is unknown.

    A host whose NICs differ in speed is known only where the suite names the interface.
    """
    speeds = []
    for facts in (env, *(env.get("peers") or {}).values()):
        nics = [nic for nic in facts.get("nics") or () if nic.get("driver") and nic.get("speed")]
        own = {float(nic["speed"]) for nic in nics if interface in (None, nic["name"])}
        speeds.append(own.pop() if len(own) == 1 else 0.0)
    return min(speeds)


Level = Literal["failed", "unusable", "noisy", "good"]
NOISY_SPREAD, UNUSABLE_SPREAD = 0.10, 1.0
"""Spread of a headline figure, relative to its median; of a share (unit 1) absolute."""
CANARY_MOVED = {"cpu": 0.2, "memory": 0.2, "loopback": 0.5, "disk": 1.0}
"""Range of a canary over the rounds of a run, relative to its median, above which it moved."""
DEPENDS_ON = ("cpu",)
"""The canaries of a benchmark that is not installed here."""


@dataclass(frozen=True)
class PointTrust:
    """The trust in one point: its level, and the reasons by kind (spread, load, canary cpu ...).

    It is unusable where no headline value can be trusted, and failed without a valid sample.
    `spread` is the largest of its headline series, relative to the median.
    """

    level: Level
    reasons: dict[str, str]
    spread: float = 0.0


@dataclass(frozen=True)
class RunTrust:
    """The trust in a run: that in its worst point.

    `points` has the points that were measured. `skipped` counts the others. `without_spread` counts
    the points that have one value only. `lost` has the samples without a value of the points that
    have one: `1 missing of 4 samples`.
    """

    points: dict[str, PointTrust]
    skipped: int
    without_spread: int
    lost: str

    @property
    def level(self) -> Level:
        """The first level of Level that a point has, unusable where none was measured."""
        return next((level for level in get_args(Level) if self.count(level)), "unusable")

    def count(self, level: Level) -> int:
        """Return how many points have a level."""
        return sum(own.level == level for own in self.points.values())

    @property
    def text(self) -> str:
        """The level with its reasons, such as `noisy: 2 of 9 points (load before it in 2)`."""
        every, parts = plural(len(self.points), "point"), []
        for level in get_args(Level):
            own = [trust for trust in self.points.values() if trust.level == level]
            if own and level != "good":
                parts.append(f"{level}: {len(own)} of {every} ({', '.join(_causes(own))})")
        if self.lost:
            parts.append(self.lost)
        if not parts:
            parts = [f"good: {every}" if self.points else "unusable: no point was measured"]
        if self.without_spread:
            parts.append(f"one sample shows no spread ({self.without_spread} of {every})")
        if self.skipped:
            parts.append(f"{self.skipped} skipped")
        return "; ".join(parts)


def _trust_in(table: pa.Table, states: Sequence[PointState]) -> RunTrust:
    """Return the trust in the points of a run. `table` has its rows, with those of the canary."""
    moved = _canary_moves(table)
    measured = [state for state in states if state.statuses.keys() - {"skipped"}]
    points = {state.point: _point_trust(state, moved) for state in measured}
    counts = [[len(series.values) for series in headlines(state)] for state in measured]
    without_spread = sum(max(values, default=0) == 1 for values in counts)
    samples = _statuses_of(state for state in states if state.why is None)
    bad = {status: n for status, n in samples.items() if status not in ("ok", "skipped")}
    lost = f"{statuses_text(bad)} of {samples.total()} samples" if bad else ""
    return RunTrust(points, len(states) - len(measured), without_spread, lost)


def headlines(state: PointState) -> list[Series]:
    """Return the headline series of a point, or its first one where it has none."""
    return [series for series in state.series if series.headline] or state.series[:1]


def relative_spread(series: Series) -> float | None:
    """Return the spread of a series relative to its median, or None where it has none.

    A share has the unit 1, and its spread is absolute.
    """
    return series.band.share(float(series.unit == "1"))


def unusable(series: Series) -> bool:
    """Return whether the samples of a series are so far apart that its median says nothing."""
    return (relative_spread(series) or 0.0) > UNUSABLE_SPREAD


def _point_trust(state: PointState, moved: dict[str, float]) -> PointTrust:
    if not state.statuses.get("ok"):
        return PointTrust("failed", {"no valid sample": "no valid sample"})
    kinds = [_kind(part) for mark in state.noise for part in mark.split(", ")]
    reasons = dict(zip(kinds, kinds, strict=True))
    broken = registry.fault(state.benchmark)  # of a package that is not installed here
    for part in DEPENDS_ON if broken else registry.get(state.benchmark).canaries:
        if part in moved:
            reasons[f"canary {part}"] = f"canary {part} moved by {100 * moved[part]:.0f} %"
    deciding = headlines(state)
    spreads = [relative_spread(series) or 0.0 for series in deciding]
    widest = max(spreads, default=0.0)
    if widest > NOISY_SPREAD:
        series = deciding[spreads.index(widest)]
        reasons["spread"] = f"spread {100 * widest:,.0f} % of {series.titled(state.label)}"
    level: Level = "noisy" if reasons else "good"
    if min(spreads, default=0.0) > UNUSABLE_SPREAD:
        level = "unusable"
    return PointTrust(level, reasons, widest)


def _kind(mark: str) -> str:
    """Return the kind of a noise: its first word, but of another run all, as that names it."""
    return mark if mark.startswith("other-run ") else mark.split(" ")[0]


def _canary_moves(table: pa.Table) -> dict[str, float]:
    """Return the canaries that moved during the run, with their relative range."""
    rows = table.filter(pc.equal(table["benchmark"], "canary"))
    values: dict[str, list[float]] = {}
    for metric, value in zip(rows["metric"].to_pylist(), rows["value"].to_pylist(), strict=True):
        if metric in CANARY_MOVED and value is not None:
            values.setdefault(metric, []).append(value)
    moves = {}
    for name, own in values.items():
        middle = median(own)
        moves[name] = (max(own) - min(own)) / middle if middle else 0.0
    return {name: move for name, move in moves.items() if move > CANARY_MOVED[name]}


def _causes(points: Iterable[PointTrust]) -> list[str]:
    """Return each kind of reason once: with its figure where a single point has it."""
    kinds: dict[str, list[str]] = {}
    for trust in sorted(points, key=lambda trust: -trust.spread):
        for kind, reason in trust.reasons.items():
            kinds.setdefault(kind, []).append(reason)
    return [reasons[0] if len(reasons) == 1 else kind for kind, reasons in kinds.items()]


_NAMES = {value: word for word, value in VERDICT_VALUES.items()}


@dataclass(frozen=True)
class OwnVerdict:
    """The verdict of a benchmark on a point by one rule: that of its worst sample.

    `where` is the entry with what distinguishes the point and the rule's coordinates in it, and
    `title` the same for people. `note` has the figure that decided.
    """

    entry: str
    point: str
    where: str
    rule: str
    word: VerdictWord
    note: str
    title: str

    @property
    def name(self) -> str:
        """The point and the rule."""
        return f"{self.where}: {self.rule}"

    @property
    def text(self) -> str:
        """The verdict in words, such as `failed: p99 < 1 s: 1.4 s`."""
        return f"{self.word}: {self.rule}: {self.note}"


def own_verdicts(table: pa.Table, points: Iterable[PointState]) -> list[OwnVerdict]:
    """Return the verdicts in the rows of a run, without warm-up, in their order.

    A sample that is not ok cannot pass, but it can fail.
    """
    is_verdict = pc.and_(pc.equal(table["metric"], VERDICT), pc.equal(table["phase"], "measure"))
    counts = pc.or_(pc.equal(table["status"], "ok"), pc.equal(table["value"], 0.0))
    rows = table.filter(pc.fill_null(pc.and_(is_verdict, counts), False))
    samples: dict[tuple[str, str, str], list[dict[str, str]]] = {}
    columns = ["entry", "point", "coords", "subject", "value", "note"]
    for row in rows.select(columns).to_pylist():
        key = row["point"], row["coords"] or "{}", row["subject"]
        samples.setdefault(key, []).append(row)
    states = {state.point: state for state in points}
    verdicts = []
    for (point, coords, rule), judged in samples.items():
        state = states[point]
        at = orjson.loads(coords)
        worst = min(judged, key=lambda row: row["value"])
        same = sum(row["value"] == worst["value"] for row in judged)
        count = f" ({same} of {len(judged)} samples)" if len(judged) > 1 else ""
        where = " ".join([state.name, *(f"{name}={value}" for name, value in at.items())])
        label = registry.point_label(state.benchmark, state.differences | at)
        title = ", ".join(filter(None, (state.entry, label)))
        word = _NAMES[float(worst["value"])]
        note = f"{worst['note'] or ''}{count}"
        verdicts.append(OwnVerdict(state.entry, point, where, rule, word, note, title))
    return verdicts


def worst_of_points(verdicts: Iterable[OwnVerdict]) -> list[tuple[OwnVerdict, str]]:
    """Return the worst verdict of each point, and how many of its rules share it where several do.

    Failed points come first.
    """
    points: dict[str, list[OwnVerdict]] = {}
    for verdict in verdicts:
        points.setdefault(verdict.point, []).append(verdict)
    lines = []
    for own in points.values():
        worst = min(own, key=lambda verdict: VERDICT_VALUES[verdict.word])
        same = sum(verdict.word == worst.word for verdict in own)
        lines.append((worst, f"{same} of {len(own)} rules {worst.word}" if len(own) > 1 else ""))
    return sorted(lines, key=lambda line: VERDICT_VALUES[line[0].word])

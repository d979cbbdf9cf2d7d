"""Summary of a run: its series and points, their names, and how far they can be trusted."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from itertools import chain, pairwise
from typing import Any, Literal, Self, get_args

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from perfdag.benchmark import registry
from perfdag.benchmark.contract import VERDICT, VERDICT_VALUES, Benchmark, VerdictWord
from perfdag.identity import grouped
from perfdag.results.labels import differences_by_point, point_settings, setting, words
from perfdag.results.schema import codes, is_measured, numbers, objects
from perfdag.stats.robust import Spread, median, ordered, spread
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
        columns: dict[str, Any] = {name: row[name] or "" for name in SERIES_COLUMNS}
        for name in ("params", "shape", "coords"):
            columns[name] = parsed(columns[name] or "{}")
        columns["headline"] = bool(columns["headline"])
        return cls(**columns)

    @cached_property
    def key(self) -> tuple[str, str, str, str, str]:
        """What is measured, regardless of the suite's name and the benchmark's version."""
        coords = orjson.dumps(self.coords, option=orjson.OPT_SORT_KEYS).decode()
        return self.point, coords, self.metric, self.stat, self.span

    @property
    def name(self) -> str:
        """Metric with its statistic, coordinates and span: `latency p99 direction=read`."""
        stat = "" if self.stat == "value" else self.stat
        coords = (
            f"{key}={setting(self.benchmark, key, value)}" for key, value in self.coords.items()
        )
        return " ".join(filter(None, (self.metric, stat, *coords, self._between)))

    @property
    def display_unit(self) -> str:
        """The unit of its values for people: `samples/s` or `IOPS` where it is 1/s."""
        return registry.display_unit(self.benchmark, self.metric, self.unit)

    @property
    def label(self) -> str:
        """What people call it: `read latency, p99`."""
        text = registry.metric_label(self.benchmark, self.metric, self.stat, self.coords)
        return f"{text} {self._between}".rstrip()

    @property
    def _between(self) -> str:
        """What lay between several hosts, such as `between nodes`, or an empty text."""
        return f"between {self.span}" if self.span in ("nodes", "zones") else ""

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


@dataclass(frozen=True)
class NamedSeries:
    """A series with its names: checks and acknowledgements call it `name`, and people `label`."""

    info: SeriesInfo
    name: str
    label: str


SERIES_COLUMNS = tuple(column.name for column in fields(SeriesInfo))


@dataclass
class RunSeries(SeriesInfo):
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

    @property
    def relative_spread(self) -> float | None:
        """The spread relative to the median, or None where it has none.

        A share has the unit 1, and its spread is absolute.
        """
        return self.band.share(float(self.unit == "1"))

    @property
    def unusable(self) -> bool:
        """Whether the samples are so far apart that their median says nothing."""
        return (self.relative_spread or 0.0) > UNUSABLE_SPREAD


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
    series: list[RunSeries] = field(default_factory=list)
    pair: str | None = None
    nodes: list[tuple[str, ...]] = field(default_factory=list)
    differences: dict[str, str] = field(default_factory=dict)
    title: str = ""

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
    def headlines(self) -> list[RunSeries]:
        """The headline series, or the first one where there is none."""
        return [series for series in self.series if series.headline] or self.series[:1]

    @property
    def why(self) -> str | None:
        """The reason for having no value, or None where a sample is valid."""
        if self.statuses.get("ok"):
            return None
        statuses = ", ".join(sorted(self.statuses)) or "missing"
        return _CONTROL.sub(" ", f"{statuses}: {self.reasons[0]}") if self.reasons else statuses

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
    verdicts: "list[BenchmarkVerdict]"

    @property
    def statuses(self) -> Counter[str]:
        """The samples by status, without warm-up and canaries."""
        return sum((state.statuses for state in self.points), Counter[str]())


def summarise(table: pa.Table) -> Summary:
    """Return the summary of the rows of one run, with those of the canary."""
    points = points_of(table)
    _add_nominal(table, points)
    trust = _trust_in(table, points)
    return Summary(table, points, trust, benchmark_verdicts(table, points))


def points_of(table: pa.Table) -> list[PointState]:
    """Return the points of one run's rows in the order of the table, without the canary."""
    is_point = pc.fill_null(pc.not_equal(table["benchmark"], "canary"), True)
    is_shown = pc.and_(pc.equal(table["phase"], "measure"), is_point)
    rows = table.select(_COLUMNS).filter(is_shown)
    points: dict[str, PointState] = {}
    first = list(first_rows(rows, ("point",), POINT_COLUMNS))
    labels = _labels(tuple(tuple(row.values()) for row in first))
    for row in first:
        state = _point(row)
        state.differences, state.title = labels[state.point]
        points[state.point] = state
    for row in first_rows(rows, ("point", "repetition", "variant"), SAMPLE_COLUMNS):
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


def _series_of(rows: pa.Table) -> Iterator[RunSeries]:
    """Yield the series of measured rows in their order, each with its values in their order."""
    by_series = values_by_series(rows)
    for row in first_rows(rows, ("series_id",), SERIES_COLUMNS):
        series = RunSeries.of(row)
        series.values = by_series[series.series_id]
        yield series


def facts_of_samples(
    table: pa.Table, *names: str
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield the distinct values of some columns, and what the samples with them say of themselves.

    These are their notes, and facts such as the file system of a target.
    """
    columns = (*names, "env")
    for row in first_rows(table, columns, columns):
        yield row, parsed(row["env"] or "{}").get("sample") or {}


def values_by_series(rows: pa.Table) -> dict[str, list[float]]:
    """Return the values of each series in their order, by its id."""
    of_series, ids = codes(rows["series_id"])
    order = np.argsort(of_series, kind="stable")
    groups, starts = np.unique(of_series[order], return_index=True)
    ordered = numbers(rows["value"])[order].tolist()
    bounds = pairwise([*starts.tolist(), len(ordered)])
    parts = [ordered[start:end] for start, end in bounds]
    return dict(zip([ids[group] for group in groups], parts, strict=True))


def first_rows(
    table: pa.Table, keys: Sequence[str], names: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Yield some columns of the first row of each group, in the order of the table.

    The rows of a group have equal values in the columns `keys`.
    """
    group = np.zeros(table.num_rows, np.int64)
    for key in keys:
        numbers_of_key, distinct = codes(table[key])
        group = group * (len(distinct) + 1) + numbers_of_key + 1
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
    differences = differences_by_point(
        (
            state.entry,
            state.point,
            point_settings(state.benchmark, state.params, state.shape, state.pair),
        )
        for state in states
    )
    entries = {(state.benchmark, state.entry) for state in states}
    entries_of = Counter(benchmark for benchmark, _ in entries)
    labels = {}
    for state in states:
        state.differences = differences[state.point]
        title = state.label
        if entries_of[state.benchmark] > 1 or not title:
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
    for state in states:
        if state.point not in hosts or state.point in within:
            continue
        try:
            benchmark: Benchmark[Any] = registry.get(state.benchmark)
            names = {metric.name for metric in benchmark.metrics if metric.nominal}
            directions = benchmark.Params.model_validate(state.params).directions
        except Exception:  # a benchmark that is not installed here, or of another version
            continue
        interface = (state.shape.get("network") or {}).get("interface")
        nominal = _link_speed(orjson.loads(hosts[state.point]), interface) * directions
        comparable = [series for series in state.series if nominal and series.metric in names]
        for series in comparable:
            share = series.middle * BITS[series.unit] / nominal
            series.nominal = f"{100 * share:.0f} % of {short(nominal, 'bit/s')} (NIC)"


def _link_speed(env: Mapping[str, Any], interface: str | None) -> float:
    """Return the speed of the slowest host's physical NIC in bit/s, or 0 if one is unknown.

    A host whose NICs differ in speed is known only where the suite names the interface.
    """
    speeds = []
    for facts in (env, *(env.get("peers") or {}).values()):
        nics = [nic for nic in facts.get("nics") or () if nic.get("driver") and nic.get("speed")]
        distinct = {float(nic["speed"]) for nic in nics if interface in (None, nic["name"])}
        speeds.append(distinct.pop() if len(distinct) == 1 else 0.0)
    return min(speeds)


TrustLevel = Literal["failed", "unusable", "noisy", "good"]
NOISY_SPREAD = 0.10
UNUSABLE_SPREAD = 1.0
"""Spreads of a headline figure, relative to its median; of a share (unit 1) absolute."""
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

    level: TrustLevel
    reasons: dict[str, str]
    spread: float = 0.0


@dataclass(frozen=True)
class RunTrust:
    """The trust in a run: that in its worst point.

    `points` has the points that were measured. `skipped` counts the others. `without_spread` counts
    the points that have one value only. `bad_samples` has the samples without a value of the
    points that have one: `1 missing of 4 samples`.
    """

    points: dict[str, PointTrust]
    skipped: int
    without_spread: int
    bad_samples: str

    @property
    def level(self) -> TrustLevel:
        """The first level of TrustLevel that a point has, unusable where none was measured."""
        return next((level for level in get_args(TrustLevel) if self.count(level)), "unusable")

    def count(self, level: TrustLevel) -> int:
        """Return how many points have a level."""
        return sum(point.level == level for point in self.points.values())

    @property
    def text(self) -> str:
        """The level with its reasons, such as `noisy: 2 of 9 points (load before it in 2)`."""
        all_points = plural(len(self.points), "point")
        parts = []
        for level in ("failed", "unusable", "noisy"):
            points = [point for point in self.points.values() if point.level == level]
            if points:
                causes = ", ".join(_causes(points))
                parts.append(f"{level}: {len(points)} of {all_points} ({causes})")
        if self.bad_samples:
            parts.append(self.bad_samples)
        if not parts:
            parts = [f"good: {all_points}" if self.points else "unusable: no point was measured"]
        if self.without_spread:
            parts.append(f"one sample shows no spread ({self.without_spread} of {all_points})")
        if self.skipped:
            parts.append(f"{self.skipped} skipped")
        return "; ".join(parts)


def _trust_in(table: pa.Table, states: Sequence[PointState]) -> RunTrust:
    """Return the trust in the points of a run. `table` has its rows, with those of the canary."""
    moved = _canary_moves(table)
    measured = [state for state in states if state.statuses.keys() - {"skipped"}]
    points = {state.point: _point_trust(state, moved) for state in measured}
    counts = [[len(series.values) for series in state.headlines] for state in measured]
    without_spread = sum(max(values, default=0) == 1 for values in counts)
    samples = sum((state.statuses for state in states if state.why is None), Counter[str]())
    bad = {status: n for status, n in samples.items() if status not in ("ok", "skipped")}
    bad_samples = f"{statuses_text(bad)} of {samples.total()} samples" if bad else ""
    return RunTrust(points, len(states) - len(measured), without_spread, bad_samples)


def _point_trust(state: PointState, moved: dict[str, float]) -> PointTrust:
    if not state.statuses.get("ok"):
        return PointTrust("failed", {"no valid sample": "no valid sample"})
    kinds = [_kind(part) for mark in state.noise for part in mark.split(", ")]
    reasons = dict(zip(kinds, kinds, strict=True))
    absent = registry.fault(state.benchmark)  # of a package that is not installed here
    canaries = DEPENDS_ON if absent else registry.get(state.benchmark).canaries
    for part in canaries:
        if part in moved:
            reasons[f"canary {part}"] = f"canary {part} moved by {100 * moved[part]:.0f} %"
    spreads = [series.relative_spread or 0.0 for series in state.headlines]
    widest = max(spreads, default=0.0)
    if widest > NOISY_SPREAD:
        series = state.headlines[spreads.index(widest)]
        reasons["spread"] = f"spread {100 * widest:,.0f} % of {series.titled(state.label)}"
    level: TrustLevel = "noisy" if reasons else "good"
    if min(spreads, default=0.0) > UNUSABLE_SPREAD:
        level = "unusable"
    return PointTrust(level, reasons, widest)


def _kind(mark: str) -> str:
    """Return the kind of a noise: its first word, but of another run all, as that names it."""
    return mark if mark.startswith("other-run ") else mark.split(" ")[0]


def _canary_moves(table: pa.Table) -> dict[str, float]:
    """Return the canaries that moved during the run, with their relative range."""
    rows = table.filter(pc.equal(table["benchmark"], "canary"))
    moves = {}
    for name, limit in CANARY_MOVED.items():
        values = ordered(rows.filter(pc.equal(rows["metric"], name))["value"].to_pylist())
        middle = median(values)
        if values and middle and (values[-1] - values[0]) / middle > limit:
            moves[name] = (values[-1] - values[0]) / middle
    return moves


def _causes(points: Iterable[PointTrust]) -> list[str]:
    """Return each kind of reason once: with its figure where a single point has it."""
    widest_first = sorted(points, key=lambda trust: -trust.spread)
    reasons = chain.from_iterable(trust.reasons.items() for trust in widest_first)
    kinds = grouped(reasons, lambda reason: reason[0])
    return [alike[0][1] if len(alike) == 1 else kind for kind, alike in kinds.items()]


_KINDS = {value: kind for kind, value in VERDICT_VALUES.items()}


@dataclass(frozen=True)
class BenchmarkVerdict:
    """The verdict of a benchmark on a point by one rule: that of its worst sample.

    `where` is the entry with what distinguishes the point and the rule's coordinates in it, and
    `title` the same for people. `note` has the figure that decided.
    """

    entry: str
    point: str
    where: str
    rule: str
    kind: VerdictWord
    note: str
    title: str

    @property
    def name(self) -> str:
        """The point and the rule."""
        return f"{self.where}: {self.rule}"

    @property
    def text(self) -> str:
        """The verdict in words, such as `failed: p99 < 1 s: 1.4 s`."""
        return f"{self.kind}: {self.rule}: {self.note}"


def benchmark_verdicts(table: pa.Table, points: Iterable[PointState]) -> list[BenchmarkVerdict]:
    """Return the verdicts in the rows of a run, without warm-up, in their order.

    A sample that is not ok cannot pass, but it can fail.
    """
    is_verdict = pc.and_(pc.equal(table["metric"], VERDICT), pc.equal(table["phase"], "measure"))
    counts = pc.or_(pc.equal(table["status"], "ok"), pc.equal(table["value"], 0.0))
    rows = table.filter(pc.fill_null(pc.and_(is_verdict, counts), False))
    columns = ["point", "coords", "subject", "value", "note"]
    samples: list[dict[str, Any]] = rows.select(columns).to_pylist()
    rules = grouped(samples, lambda row: (row["point"], row["coords"] or "{}", row["subject"]))
    states = {state.point: state for state in points}
    verdicts = []
    for (point, coords, rule), of_rule in rules.items():
        state = states[point]
        at = orjson.loads(coords)
        worst = min(of_rule, key=lambda row: row["value"])
        same = sum(row["value"] == worst["value"] for row in of_rule)
        count = f" ({same} of {len(of_rule)} samples)" if len(of_rule) > 1 else ""
        label = registry.point_label(state.benchmark, state.differences | at)
        verdict = BenchmarkVerdict(
            entry=state.entry,
            point=point,
            where=" ".join([state.name, *(f"{name}={value}" for name, value in at.items())]),
            rule=rule,
            kind=_KINDS[float(worst["value"])],
            note=f"{worst['note'] or ''}{count}",
            title=", ".join(filter(None, (state.entry, label))),
        )
        verdicts.append(verdict)
    return verdicts


def worst_of_points(verdicts: Iterable[BenchmarkVerdict]) -> list[tuple[BenchmarkVerdict, str]]:
    """Return the worst verdict of each point, and how many of its rules share it where several do.

    Failed points come first.
    """
    lines = []
    for rules in grouped(verdicts, lambda verdict: verdict.point).values():
        worst = min(rules, key=lambda verdict: VERDICT_VALUES[verdict.kind])
        same = sum(verdict.kind == worst.kind for verdict in rules)
        count = f"{same} of {len(rules)} rules {worst.kind}" if len(rules) > 1 else ""
        lines.append((worst, count))
    return sorted(lines, key=lambda line: VERDICT_VALUES[line[0].kind])

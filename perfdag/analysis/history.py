"""The history of a suite: levels, steps, verdicts and failures, and the nodes that differ."""

import math
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property
from itertools import pairwise
from typing import Annotated

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from perfdag.analysis.environment import Changes, changes
from perfdag.analysis.medians import PointCount, PointNames, RunMedians, point_names
from perfdag.analysis.verdict import (
    Tuning,
    Verdict,
    compare_sides,
    percent,
    standing,
    undecided_alone,
    verdict_of,
    worst_kind,
)
from perfdag.problems import Form
from perfdag.results.labels import difference, exact, has_name, shorten
from perfdag.results.run_store import day_of
from perfdag.results.schema import facts_of_nodes, is_measured, load_rows
from perfdag.results.summary import NamedSeries, SeriesInfo
from perfdag.stats.evidence import STEP
from perfdag.stats.levels import Drift, Level, Levels, add_levels, drift_of
from perfdag.stats.nodes import Outlier, confirming, lone_gate, outliers
from perfdag.stats.robust import Spread, median
from perfdag.stats.scale import WINDOW, Array, VerdictKind, kind_of_change, two_speeds
from perfdag.store.base import Store
from perfdag.units import short

OBJECT_FAILURES = "failures"
"""The metric of benchmarks of many objects: how many failed with one message (coords: message)."""


class Acknowledgement(BaseModel):
    """From `run` on, the level of these series is the baseline, and they raise no alert."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    series: str = Field(
        min_length=1, description="series as alerts name it, a glob, or a series id"
    )
    run: Annotated[str, Form("a run id", r"^\d{8}T\d{6}Z")] = Field(
        description="first run of the accepted level"
    )
    reason: str = Field(min_length=1)
    until: date | None = Field(None, description="last day that it holds")

    def holds(self, name: str, series_id: str, run: str) -> bool:
        """Return whether it applies to a series or rule in a run, which is none before its own."""
        return (
            self.run <= run
            and (self.until is None or day_of(run) <= self.until.isoformat())
            and (self.series == series_id or has_name(name, self.series))
        )


def of_names(accepted: Sequence[Acknowledgement], names: Collection[str]) -> list[Acknowledgement]:
    """Return acknowledgements in which the name of a series, such as `test[1000]`, is no glob."""
    return [ack.model_copy(update={"series": exact(ack.series, names)}) for ack in accepted]


@dataclass(frozen=True)
class Step:
    """Where a level of a series ended: the levels `before` and `after`, and their runs.

    `run` is the first run of the new level, which may have begun at any from `first` to `last`, and
    `run_before` the last one before these. `decided` is the run that showed it. `changes` has what
    is recorded to have changed while it may have begun.
    """

    before: Level
    after: Level
    run: str
    first: str
    last: str
    run_before: str
    decided: str
    kind: VerdictKind
    changes: Changes

    @property
    def effect(self) -> float:
        """The change as a share of the level before, or in the unit of the metric."""
        return self.before.effect(self.after.became)

    @property
    def size(self) -> str:
        """The effect in words: `-11.8 %`, or a number in the unit of the metric."""
        return percent(self.effect, self.before.unit)

    @property
    def since(self) -> str:
        """The run with which it began, and those between which it may have."""
        first = f"{self.first} or earlier" if self.after.earlier else self.first
        between = f", or between {first} and {self.last}" if first != self.last else ""
        return f"run {self.run}{between}, decided by run {self.decided}"

    @property
    def changed(self) -> str:
        """What is known to have changed with it, such as `kernel 6.1 -> 6.8`."""
        return shorten(self.changes.text) or self.changes.nothing

    def values(self, info: SeriesInfo) -> str:
        """Return both levels for people, as `100 s -> 130 s when decided, 128 s since`."""
        before, became, since = (
            short(value, info.display_unit)
            for value in (self.before.reference, self.after.became, self.after.reference)
        )
        later = f" when decided, {since} since" if since != became else ""
        return f"{before} -> {became}{later}"


@dataclass(frozen=True)
class Series(NamedSeries):
    """One series over `runs`. Arrays are as long as these, NaN where it was not measured.

    `newest` is the value of the newest run. `absence` says why a run that should have one has none,
    and is else empty. `accepted` are the positions of runs whose level was acknowledged.
    `worsening` is the first step of the change for the worse that is open, or None. `moved` names
    the nodes that changed with nights at which nothing is decided. `alone` says that no run will
    follow the newest one, as none does that of a pull request.
    """

    value: Array
    low: Array
    high: Array
    n: NDArray[np.int32]
    levels: Levels
    steps: tuple[Step, ...]
    worsening: Step | None
    absence: str
    newest: float
    accepted: Sequence[int]
    runs: Sequence[str]
    moved: str = ""
    alone: bool = False

    def band(self, at: int) -> Spread:
        """Return the median of a run with its spread."""
        middle, low, high = (float(array[at]) for array in (self.value, self.low, self.high))
        return Spread(middle, low, high, int(self.n[at]))

    @cached_property
    def verdict(self) -> Verdict:
        """The verdict at the newest run that has a value, against the levels or the run before."""
        if self.absence:
            return Verdict("failed", why=self.absence)
        measured = self.levels.nights.at.tolist()
        better = self.info.better
        newest = self.band(measured[-1])
        if len(measured) > STEP:
            verdict = verdict_of(self.value, newest, self.levels, self.runs, better, self.accepted)
            if self.alone and verdict.kind == "unclear" and self.levels.side:
                verdict = undecided_alone(verdict, self.levels)
            return replace(verdict, notes=tuple(self._notes()))
        if len(measured) > 1:
            verdict = compare_sides(self.band(measured[-2]), newest, self.levels, better)
            return replace(verdict, newest=newest.middle, moved=verdict.effect)
        value = newest.middle
        return Verdict("unclear", before=value, value=value, newest=value, why="no earlier run")

    @cached_property
    def drift(self) -> Drift | None:
        """The slow drift of its newest runs, or None."""
        return drift_of(self.levels)

    def _notes(self) -> Iterator[str]:
        """Yield what else a reader of the verdict must know: two speeds, other nodes, a drift."""
        level = self.levels.current
        since = self.levels.nights.at >= level.start
        values = self.levels.nights.value[since][-WINDOW:]
        speeds = two_speeds(level.scale.apply(values), level.scale.gate(level.min_effect))
        if speeds:
            middles = (short(level.scale.value(x), self.info.display_unit) for x in speeds)
            yield f"two speeds, {' and '.join(middles)}"
        elif self.levels.undecided >= STEP:
            noise = percent(level.noise, level.unit, sign=False)
            yield f"noise of a run {noise}"
        if self.moved:
            yield self.moved
        if self.drift and not speeds:
            direction = "rising" if self.drift.change > 0 else "falling"
            size = percent(self.drift.change, level.unit)
            yield f"{direction}, {size} since {day_of(self.runs[self.drift.start])}"

    @property
    def newest_text(self) -> str:
        """Its newest value and the change of that, such as `newest 152 s (+52.3 %)`."""
        verdict = self.verdict
        value = short(verdict.newest, self.info.display_unit)
        return f"newest {value} ({percent(verdict.moved, verdict.unit)})"

    @property
    def text(self) -> str:
        """The verdict in words, with a note that what two runs alone say fails no gate."""
        alone = self.verdict.kind == "worse" and self.worsening is None
        return self.verdict.text + (" (two runs alone; fails no gate)" if alone else "")

    def good_before(self, run: int) -> float | None:
        """Return the reference of the good level as it was before a run, None without a value."""
        levels = [level for level in self.levels.levels if level.decided < run]
        if levels:
            return standing(levels, self.info.better, self.accepted).good.reference
        earlier = self.value[:run][np.isfinite(self.value[:run])]
        return median(earlier) if earlier.size else None


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


def headline_series(series: Sequence[Series]) -> Sequence[Series]:
    """Return the headline series, or all where there is none."""
    return [line for line in series if line.info.headline] or series


def series_of(
    medians: RunMedians,
    tuning: Tuning,
    accepted: Sequence[Acknowledgement] = (),
    *,
    canaries: bool = False,
) -> list[Series]:
    """Return every series but the canaries, or the canaries alone, with verdicts at the last run.

    A series that the run left out is judged at the last run that has it.
    """
    points = point_names(medians.series)
    accepted = of_names(accepted, {info.named(points[info.point].name) for info in medians.series})
    series = []
    for row, info in enumerate(medians.series):
        if info.canary == canaries and np.isfinite(medians.value[row]).any():
            levels = tuning.limits(info, medians.nights(row))
            add_levels(levels)
            series.append(_series(medians, row, levels, accepted, points[info.point]))
    return series


def _series(
    medians: RunMedians,
    row: int,
    levels: Levels,
    accepted: Sequence[Acknowledgement],
    point: PointNames,
) -> Series:
    """Return the series of a row of the medians with its levels."""
    info = medians.series[row]
    name = info.named(point.name)
    runs = medians.run_ids
    first = medians.newest_whole
    newest = int(levels.nights.at[-1])
    starts = [
        bisect_left(runs, ack.run) for ack in accepted if ack.holds(name, info.series_id, runs[-1])
    ]
    steps = tuple(_steps(medians, runs, info, levels))
    worse = standing(levels.levels, info.better, starts).worse
    absence = ""
    if newest < first and info.point in medians.planned_points:
        count = medians.runs[first].points.get(info.point, PointCount())
        absence = f"not measured since {day_of(runs[newest])}"
        if count.bad:
            absence = count.error.removeprefix("failed: ")
    return Series(
        info=info,
        name=name,
        label=info.titled(point.label),
        value=medians.value[row],
        low=medians.low[row],
        high=medians.high[row],
        n=medians.n[row],
        levels=levels,
        steps=steps,
        worsening=next((step for step in steps if step.after is worse), None),
        absence=absence,
        newest=float(medians.value[row, newest]) if newest >= first else math.nan,
        accepted=starts,
        runs=runs,
        moved=_moved_nodes(medians, levels),
    )


def _moved_nodes(medians: RunMedians, levels: Levels) -> str:
    """Return the nodes of the newest run and of the last decided one, where they differ."""
    if not levels.side or levels.undecided >= levels.measured:
        return ""
    at = levels.nights.at
    before = int(at[-1 - levels.undecided])
    nodes = _changes(medians, before, int(at[-1])).values.get("nodes")
    return f"nodes {nodes[0]} -> {nodes[1]}" if nodes else ""


def verdicts_by_run(series: Sequence[Series], medians: RunMedians) -> list[VerdictKind | None]:
    """Return the verdict on each run by now: failed, or what matters most of its series.

    A first run has none: no series of it was measured before. The next two are compared with the
    run before. A point without a value is a failure. What is decided at a run holds until the next
    decision, so a run is worse while a change for the worse is open, and stays unclear if it might
    have begun one. The newest run has the verdict of its series.
    """
    kinds: list[set[VerdictKind | None]] = [
        {"failed"} if run.failed else set() for run in medians.runs
    ]
    for line in series:
        earliest = line.levels.nights.at[:STEP].tolist()
        for before, run in pairwise(earliest):
            sides = line.band(before), line.band(run)
            kinds[run].add(compare_sides(*sides, line.levels, line.info.better).kind)
        for run, kind in _decided_kinds(line):
            if run > earliest[-1]:
                kinds[run].add(kind)
    if not medians.runs[-1].failed:
        present = [line for line in series if line.info.point in medians.planned_points]
        newest = [line.verdict.kind for line in present if line.levels.measured > 1 or line.absence]
        kinds[-1] = {worst_kind(newest)}
    return [worst_kind(of_run) for of_run in kinds]


def _decided_kinds(line: Series) -> Iterator[tuple[int, VerdictKind]]:
    """Yield the position of each run from the first decision on, and its kind of verdict."""
    levels = line.levels.levels
    measured = line.levels.nights.at.tolist()
    for k, level in enumerate(levels):
        now = standing(levels[: k + 1], line.info.better, line.accepted)
        end = levels[k + 1].decided if k + 1 < len(levels) else len(line.value)
        of_level = [run for run in measured if level.start <= run < end]
        for nights, run in enumerate(of_level, 1):
            if run >= level.decided:
                undecided = run in line.levels.suspicious
                yield run, now.kind(level, nights, undecided, line.info.better)


def _steps(
    medians: RunMedians, runs: Sequence[str], info: SeriesInfo, levels: Levels
) -> Iterator[Step]:
    measured = levels.nights.at
    for before, after in pairwise(levels.levels):
        last = int(measured[np.searchsorted(measured, after.first) - 1])
        yield Step(
            before,
            after,
            run=runs[after.start],
            first=runs[after.first],
            last=runs[after.last],
            run_before=runs[last],
            decided=runs[after.decided],
            kind=kind_of_change(after.became - before.reference, info.better),
            changes=_changes(medians, last, after.last),
        )


def _changes(medians: RunMedians, before: int, after: int) -> Changes:
    """Return what differs between the environments of two runs."""
    past = [run.env for run in medians.runs[: before + 1]]
    return changes(past[-1], medians.runs[after].env, past)


def suspects(tuning: Tuning, series: Sequence[Series]) -> list[Series]:
    """Return a series of each point that should be measured again, as a change fails the gate.

    Its newest night may begin a change for the worse, or end one that is open.
    """
    points: dict[str, Series] = {}
    for line in series:
        if line.levels.measured > STEP and line.levels.side and tuning.alerts(line.info):
            towards = kind_of_change(line.levels.side, line.info.better)
            if (line.verdict.kind, towards) in (("unclear", "worse"), ("worse", "better")):
                points.setdefault(line.info.point, line)
    return list(points.values())


def failures(store: Store, medians: RunMedians, text: str) -> list[Failure]:
    """Return the failures whose reason contains `text`: of points, then of objects, newest first.

    Those of objects are rows of the metric `failures` with the coordinate message. Raises
    StoreError.
    """
    of_points = [
        Failure(run.run_id, entry, point, bad, ok + bad, reason)
        for run in reversed(medians.runs)
        for point, (ok, bad, reason, entry) in run.points.items()
        if bad and text.lower() in reason.lower()
    ]
    columns = ["run_id", "entry", "point", "metric", "coords", "value"]
    table = load_rows(store, suites=[medians.suite], runs=medians.run_ids, columns=columns)
    is_failure = pc.fill_null(pc.equal(table["metric"], OBJECT_FAILURES), False)
    of_objects = []
    for row in table.filter(is_failure).to_pylist():
        message = orjson.loads(row["coords"] or "{}").get("message")
        if message is not None and text.lower() in message.lower() and row["value"]:
            count = round(row["value"])
            failure = Failure(row["run_id"], row["entry"], row["point"], count, None, message)
            of_objects.append(failure)
    return of_points + sorted(of_objects, key=lambda failure: failure.run, reverse=True)


NEWEST = 60
"""Runs whose rows tell the noise and the nodes."""
_COLUMNS = ("series_id", "run_id", "value", "nodes", "env", "status", "phase", "subject")


@dataclass(frozen=True)
class Noise:
    """The noise of a series: relative, or in the unit of the metric where that is named.

    `within` is the median over the runs of the coefficient of variation of their repetitions,
    `between` that of one run by the newest level. More than `repetitions` in a run do not help.
    Both are None where there are too few values.
    """

    series: str
    runs: int
    within: float | None
    between: float
    unit: str
    repetitions: int | None


@dataclass(frozen=True)
class NodeOutlier:
    """A node that differs from the others in one series. `kind` is worse or better.

    `differs` has the facts in which it differs from most of the others.
    """

    series: str
    kind: str
    outlier: Outlier
    differs: str = ""


def node_names(medians: RunMedians) -> set[str]:
    """Return the nodes of the newest runs."""
    texts = [run.env["nodes"] for run in medians.runs[-NEWEST:] if "nodes" in run.env]
    return {name for text in texts for name in text.split(" | ")}


def recent_rows(store: Store, medians: RunMedians, series: Sequence[Series]) -> pa.Table:
    """Return the measured rows of these series in the newest runs. Raises StoreError."""
    runs = medians.run_ids[-NEWEST:]
    table = load_rows(store, suites=[medians.suite], runs=runs, columns=_COLUMNS)
    ids = pa.array([line.info.series_id for line in series], pa.string())
    return table.filter(pc.and_(is_measured(table), pc.is_in(table["series_id"], ids)))


def noise_report(series: Sequence[Series], rows: pa.Table) -> list[Noise]:
    """Return the noise of each series of recent rows, the noisiest between runs first."""
    values: dict[str, dict[str, list[float]]] = {}
    columns = [rows[name].to_pylist() for name in ("series_id", "run_id", "value")]
    for identity, run, value in zip(*columns, strict=True):
        values.setdefault(identity, {}).setdefault(run, []).append(value)
    report = []
    for line in series:
        runs = [np.array(of_run) for of_run in values.get(line.info.series_id, {}).values()]
        repeated = [run for run in runs if run.size > 2 and run.mean()]
        within = median(run.std(ddof=1) / abs(run.mean()) for run in repeated) if repeated else None
        level = line.levels.current
        repetitions = None
        if within is not None and len(runs) >= 20 and not level.unit:
            # the variance of a median of R repetitions, 1.57 s^2 / R, is equal to that between runs
            of_one = 1.57 * within**2
            of_runs = level.noise**2 - of_one / median(map(len, runs))
            least = (0.1 * level.noise) ** 2
            repetitions = min(10, max(3, math.ceil(of_one / max(of_runs, least))))
        report.append(Noise(line.name, len(runs), within, level.noise, level.unit, repetitions))
    return sorted(report, key=lambda noise: -noise.between)


def node_outliers(series: Sequence[Series], rows: pa.Table, tuning: Tuning) -> list[NodeOutlier]:
    """Return the nodes that differ from the others in these series over recent rows.

    Many series would name a node by chance. A node is named where several points agree, or where
    one is very sure. Series of one point come from the same samples and count once.
    """
    by_series = _by_node(rows)
    suspected: list[tuple[str, NodeOutlier]] = []
    points: set[str] = set()
    nodes: set[str] = set()
    for line in series:
        by_node = by_series.get(line.info.series_id, {})
        values = np.array([value for of_node in by_node.values() for value in of_node])
        min_effect, absolute = tuning.effect(line.info, values)
        if absolute or not by_node:
            continue
        points.add(line.info.point)
        nodes |= by_node.keys()
        for outlier in outliers(by_node, min_effect=min_effect):
            kind = kind_of_change(outlier.effect, line.info.better)
            suspected.append((line.info.point, NodeOutlier(line.name, kind, outlier)))
    if not suspected:
        return []
    agreeing: dict[tuple[str, str], set[str]] = {}
    for point, suspect in suspected:
        agreeing.setdefault((suspect.outlier.node, suspect.kind), set()).add(point)
    enough = confirming(len(points), len(nodes))
    sure = lone_gate(len(points))
    facts = facts_of_nodes(rows)
    named = [
        replace(suspect, differs=difference(facts, suspect.outlier.node))
        for _, suspect in suspected
        if len(agreeing[suspect.outlier.node, suspect.kind]) >= enough
        or suspect.outlier.sigmas >= sure
    ]
    return sorted(named, key=lambda node: (node.kind != "worse", -abs(node.outlier.effect)))


def _by_node(rows: pa.Table) -> dict[str, dict[str, list[float]]]:
    """Return the values of each node by series: one a run, the median of the samples it was in."""
    samples: dict[tuple[str, str, str], list[float]] = {}
    columns = [rows[name].to_pylist() for name in ("series_id", "run_id", "value", "nodes")]
    for series, run, value, nodes in zip(*columns, strict=True):
        for node in nodes or ():
            samples.setdefault((series, node, run), []).append(value)
    by_node: dict[str, dict[str, list[float]]] = {}
    for (series, node, _), values in samples.items():
        by_node.setdefault(series, {}).setdefault(node, []).append(median(values))
    return by_node

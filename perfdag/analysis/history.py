"""The history of a suite: levels, steps, verdicts and failures, and the nodes that differ."""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from perfdag.analysis.environment import Changes, changes
from perfdag.analysis.medians import (
    PointCount,
    RunInfo,
    RunMedians,
    point_names,
)
from perfdag.analysis.verdict import (
    RANK,
    Tuning,
    Verdict,
    compare_sides,
    percent,
    standing,
    undecided_alone,
    verdict_of,
    worst_word,
)
from perfdag.problems import Form
from perfdag.results.labels import difference, exact, has_name
from perfdag.results.run_store import PARTIAL, day_of
from perfdag.results.schema import facts_of_nodes, is_measured, load_rows
from perfdag.results.summary import SeriesInfo
from perfdag.stats.evidence import STEP
from perfdag.stats.levels import Drift, Level, Levels, drift_of, levels_of
from perfdag.stats.nodes import Outlier, confirming, lone_gate, outliers
from perfdag.stats.robust import Spread, median
from perfdag.stats.scale import WINDOW, Array, Word, side_word, two_speeds
from perfdag.store.base import Store
from perfdag.units import short

OBJECT_FAILURES = "failures"
"""The metric of benchmarks of many objects: how many failed with one message (coords: message)."""


def _day(value: Any) -> str:
    return date.fromisoformat(str(value)).isoformat() if value else ""


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
    until: Annotated[str, BeforeValidator(_day)] = Field("", description="last day that it holds")

    def holds(self, name: str, series_id: str, run: str) -> bool:
        """Return whether it applies to a series or rule in a run, which is none before its own."""
        return (
            self.run <= run
            and (not self.until or day_of(run) <= self.until)
            and (self.series == series_id or has_name(name, self.series))
        )


def of_names(accepted: Sequence[Acknowledgement], names: Collection[str]) -> list[Acknowledgement]:
    """Return acknowledgements in which the name of a series, such as `test[1000]`, is no glob."""
    return [ack.model_copy(update={"series": exact(ack.series, names)}) for ack in accepted]


def shorten(text: str) -> str:
    """Return the first 300 characters of a text."""
    return text if len(text) <= 300 else f"{text[:300]} ..."


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
    word: Word
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
        values = self.before.reference, self.after.became, self.after.reference
        levels = [short(value, info.display_unit) for value in values]
        text = " -> ".join(levels[:2])
        return text if levels[1] == levels[2] else f"{text} when decided, {levels[2]} since"


@dataclass(frozen=True)
class Series:
    """One series over `runs`. Arrays are as long as these, NaN where it was not measured.

    People call it `label`, and checks and acknowledgements `name`.
    `newest` is the value of the newest run. `lost` says why a run that should have one has none,
    and is else empty. `accepted` are the positions of runs whose level was acknowledged.
    `worsening` is the first step of the change for the worse that is open, or None. `moved` names
    the nodes that changed with nights at which nothing is decided. `alone` says that no run will
    follow the newest one, as none does that of a pull request.
    """

    info: SeriesInfo
    name: str
    label: str
    value: Array
    low: Array
    high: Array
    n: NDArray[np.int32]
    levels: Levels
    steps: tuple[Step, ...]
    worsening: Step | None
    lost: str
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
        measured = np.flatnonzero(np.isfinite(self.value)).tolist()
        better = self.info.better
        newest = self.band(measured[-1])
        if self.lost:
            return Verdict("failed", why=self.lost)
        if len(measured) > STEP:
            series = self.levels, self.runs, better, self.accepted
            verdict = verdict_of(self.value, newest, *series)
            if self.alone and verdict.word == "unclear" and self.levels.side:
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
        level = self.levels.levels[-1]
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
            way = "rising" if self.drift.change > 0 else "falling"
            size = percent(self.drift.change, level.unit)
            yield f"{way}, {size} since {day_of(self.runs[self.drift.start])}"

    @property
    def newest_text(self) -> str:
        """Its newest value and the change of that, such as `newest 152 s (+52.3 %)`."""
        verdict = self.verdict
        value = short(verdict.newest, self.info.display_unit)
        return f"newest {value} ({percent(verdict.moved, verdict.unit)})"

    @property
    def text(self) -> str:
        """The verdict in words, with a note that what two runs alone say fails no gate."""
        alone = self.verdict.word == "worse" and self.worsening is None
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


def headlines(series: Sequence[Series]) -> Sequence[Series]:
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
    runs = [run.run_id for run in medians.runs]
    first = _newest_whole(medians)
    planned = planned_points(medians)
    points = point_names(medians.series)
    found = list[Series]()
    accepted = of_names(accepted, {info.named(points[info.point].name) for info in medians.series})
    for i, info in enumerate(medians.series):
        if info.canary != canaries:
            continue
        name = info.named(points[info.point].name)
        label = info.titled(points[info.point].label)
        levels = levels_of(medians.nights(i), **tuning.limits(info))
        if not levels.levels:
            continue
        starts = _accepted_starts(runs, name, info.series_id, accepted)
        steps = tuple(_steps(medians, runs, info, levels))
        now = standing(levels.levels, info.better, starts)
        worsening = next((step for step in steps if step.after is now.worse), None)
        at = int(levels.nights.at[-1])
        absent = info.point in planned and at < first
        lost = _why_nothing(medians.runs[first], info, runs[at]) if absent else ""
        newest = float(medians.value[i, at]) if at >= first else math.nan
        arrays = medians.value[i], medians.low[i], medians.high[i], medians.n[i]
        stands = (levels, steps, worsening)
        moved = _moved_nodes(medians, levels)
        found.append(Series(info, name, label, *arrays, *stands, lost, newest, starts, runs, moved))
    return found


def _moved_nodes(medians: RunMedians, levels: Levels) -> str:
    """Return the nodes of the newest run and of the last decided one, where they differ."""
    if not levels.side or levels.undecided >= levels.measured:
        return ""
    at = levels.nights.at
    before = int(at[-1 - levels.undecided])
    nodes = _changes(medians, before, int(at[-1])).values.get("nodes")
    return f"nodes {nodes[0]} -> {nodes[1]}" if nodes else ""


def words_by_run(series: Sequence[Series], medians: RunMedians) -> list[Word | None]:
    """Return the word that each run has by now: failed, or what matters most of its series.

    A first run has none: no series of it was measured before. The next two are compared with the
    run before. A point without a value is a failure. What is decided at a run holds until the next
    decision, so a run is worse while a change for the worse is open, and stays unclear if it might
    have begun one. The newest run has the word of the verdicts.
    """
    words: list[set[Word | None]] = [{"failed"} if run.failed else set() for run in medians.runs]
    for line in series:
        measured = line.levels.nights.at.tolist()
        better = line.info.better
        early = measured[:STEP]
        for a, b in pairwise(early):
            words[b].add(compare_sides(line.band(a), line.band(b), line.levels, better).word)
        for i, word in _words(line):
            if i > early[-1]:
                words[i].add(word)
    planned = planned_points(medians)
    present = [line for line in series if line.info.point in planned]
    past = [line for line in present if line.levels.measured > 1 or line.verdict.word == "failed"]
    newest = worst_word([line.verdict for line in past])
    words[-1] = {"failed" if medians.runs[-1].failed else newest}
    return [next((word for word in RANK if word in found), None) for found in words]


def _words(line: Series) -> Iterator[tuple[int, Word]]:
    """Yield the position of each run from the first decision on, and its word."""
    levels = line.levels.levels
    measured = line.levels.nights.at.tolist()
    for k, level in enumerate(levels):
        now = standing(levels[: k + 1], line.info.better, line.accepted)
        end = levels[k + 1].decided if k + 1 < len(levels) else len(line.value)
        of_level = [i for i in measured if level.start <= i < end]
        for nights, i in enumerate(of_level, 1):
            if i >= level.decided:
                undecided = i in line.levels.suspicious
                yield i, now.word(level, nights, undecided, line.info.better)


def planned_points(medians: RunMedians) -> set[str]:
    """Return the points that the newest whole run, or one after it, measured or lacks."""
    return {point for run in medians.runs[_newest_whole(medians) :] for point in run.points}


def _newest_whole(medians: RunMedians) -> int:
    """Return the position of the newest run of a whole suite."""
    whole = [i for i, run in enumerate(medians.runs) if run.trigger not in PARTIAL]
    return whole[-1] if whole else len(medians.runs) - 1


def _why_nothing(run: RunInfo, info: SeriesInfo, last: str) -> str:
    """Return why a run has no value of a series. `last` is the last run that has one."""
    _, bad, error, _ = run.points.get(info.point, PointCount())
    return error.removeprefix("failed: ") if bad else f"not measured since {day_of(last)}"


def _accepted_starts(
    runs: Sequence[str], name: str, series_id: str, accepted: Sequence[Acknowledgement]
) -> list[int]:
    """Return the position of the first run of each acknowledged level of a series."""
    return [
        sum(run < ack.run for run in runs)
        for ack in accepted
        if ack.holds(name, series_id, runs[-1])
    ]


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
            word=side_word(after.became - before.reference, info.better),
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
            towards = side_word(line.levels.side, line.info.better)
            if (line.verdict.word, towards) in (("unclear", "worse"), ("worse", "better")):
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
    return of_points + sorted(failed, key=lambda failure: failure.run, reverse=True)


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
    """A node that differs from the others in one series. `word` is worse or better.

    `differs` has the facts in which it differs from most of the others.
    """

    series: str
    word: str
    outlier: Outlier
    differs: str = ""


def nodes_of(medians: RunMedians) -> set[str]:
    """Return the nodes of the newest runs."""
    texts = [run.env["nodes"] for run in medians.runs[-NEWEST:] if "nodes" in run.env]
    return {name for text in texts for name in text.split(" | ")}


def recent_rows(store: Store, medians: RunMedians, series: Sequence[Series]) -> pa.Table:
    """Return the measured rows of these series in the newest runs. Raises StoreError."""
    runs = [run.run_id for run in medians.runs[-NEWEST:]]
    table = load_rows(store, suites=[medians.suite], runs=runs, columns=_COLUMNS, damaged=[])
    wanted = pa.array([line.info.series_id for line in series], pa.string())
    return table.filter(pc.and_(is_measured(table), pc.is_in(table["series_id"], wanted)))


def noise_report(series: Sequence[Series], rows: pa.Table) -> list[Noise]:
    """Return the noise of each series of recent rows, the noisiest between runs first."""
    values: dict[str, dict[str, list[float]]] = {}
    columns = [rows[name].to_pylist() for name in ("series_id", "run_id", "value")]
    for identity, run, value in zip(*columns, strict=True):
        values.setdefault(identity, {}).setdefault(run, []).append(value)
    report = []
    for line in series:
        runs = [np.array(own) for own in values.get(line.info.series_id, {}).values()]
        inside = [own.std(ddof=1) / abs(own.mean()) for own in runs if own.size > 2 and own.mean()]
        within = median(inside) if inside else None
        level = line.levels.levels[-1]
        worth = None
        if within is not None and len(runs) >= 20 and not level.unit:
            # the variance of a median of R repetitions, 1.57 s^2 / R, is equal to that between runs
            part = 1.57 * within**2
            own = max(level.noise**2 - part / median(map(len, runs)), (0.1 * level.noise) ** 2)
            worth = min(10, max(3, math.ceil(part / own)))
        report.append(Noise(line.name, len(runs), within, level.noise, level.unit, worth))
    return sorted(report, key=lambda noise: -noise.between)


def node_outliers(series: Sequence[Series], rows: pa.Table, tuning: Tuning) -> list[NodeOutlier]:
    """Return the nodes that differ from the others in these series over recent rows.

    Many series would name a node by chance. A node is named where several points agree, or where
    one is very sure. Series of one point come from the same samples and count once.
    """
    values = _by_node(rows)
    suspected: list[tuple[str, NodeOutlier]] = []
    points: set[str] = set()
    nodes: set[str] = set()
    for line in series:
        info = line.info
        own = values.get(line.info.series_id, {})
        min_effect, absolute = tuning.effect(
            info, np.array([v for each in own.values() for v in each])
        )
        if absolute or not own:
            continue
        points.add(info.point)
        nodes |= own.keys()
        for outlier in outliers(own, min_effect=min_effect):
            word = side_word(outlier.effect, info.better)
            suspected.append((info.point, NodeOutlier(line.name, word, outlier)))
    if not suspected:
        return []
    agreeing: dict[tuple[str, str], set[str]] = {}
    for point, suspect in suspected:
        agreeing.setdefault((suspect.outlier.node, suspect.word), set()).add(point)
    enough = confirming(len(points), len(nodes))
    sure = lone_gate(len(points))
    facts = facts_of_nodes(rows)
    found = [
        replace(suspect, differs=difference(facts, suspect.outlier.node))
        for _, suspect in suspected
        if len(agreeing[suspect.outlier.node, suspect.word]) >= enough
        or suspect.outlier.sigmas >= sure
    ]
    return sorted(found, key=lambda node: (node.word != "worse", -abs(node.outlier.effect)))


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

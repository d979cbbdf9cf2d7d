"""Changes of level in the history of a suite, and the points that look suspect in the last run."""

import bisect
import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfdag.regress.run_medians import RunMedians
from perfdag.regress.series import SeriesInfo, series_labels
from perfdag.regress.tuning import Tuning
from perfdag.results.result_files import day_of
from perfdag.stats.changes import HEAD, Change
from perfdag.stats.levels import Event, Levels, fold_levels
from perfdag.stats.robust import Array, robust_sigma, scale_for
from perfdag.stats.verdicts import Word, side

SUSPICIOUS, SUSPICIOUS_FLOORS = 0.15, 6.0


@dataclass(frozen=True)
class Acknowledgement:
    """From `run` on, the level of the series that match `series`, a glob or an id, is accepted."""

    series: str
    run: str
    reason: str
    until: str = ""

    def holds(self, name: str, series_id: str, day: str) -> bool:
        """Return whether it applies to a series on a day (YYYY-MM-DD)."""
        return (not self.until or day <= self.until) and (
            self.series == series_id or fnmatch.fnmatchcase(name, self.series)
        )


@dataclass(frozen=True)
class LevelChange:
    """A change of level of one series. `index` counts the runs of the history.

    `run` is the first run of the new level, `decided` the run that showed it by `rule`.
    """

    info: SeriesInfo
    name: str
    kind: str
    rule: str
    change: Change
    index: int
    run: str
    decided: str
    run_before: str
    word: Word
    min_effect: float
    absolute: bool
    environment: dict[str, tuple[str, str]]
    recent: tuple[float, ...]

    @property
    def size(self) -> str:
        """The effect in words: `-11.8 %`, or a number in the unit of the metric."""
        return percent(self.change.effect, self.absolute)


@dataclass(frozen=True)
class SeriesLevels:
    """The levels of one series with its changes. `alerts` are the open changes for the worse."""

    info: SeriesInfo
    name: str
    levels: Levels
    changes: tuple[LevelChange, ...]
    alerts: tuple[LevelChange, ...]


@dataclass(frozen=True)
class Suspect:
    """A point whose headline is far from its level in the last run, and worth measuring again."""

    point: str
    name: str
    effect: float


def percent(value: float | None, absolute: bool = False, sign: bool = True) -> str:
    """Return a relative number such as `-11.8 %`, an absolute one with its sign, or `-`."""
    if value is None:
        return "-"
    plus = "+" if sign else ""
    return f"{value:{plus}.3g}" if absolute else f"{100 * value:{plus}.1f} %"


def series_names(medians: RunMedians) -> list[str]:
    """Return the name of each series for people, in the order of the run medians."""
    labels = series_labels(medians.series)
    return [full_name(info, labels) for info in medians.series]


def full_name(info: SeriesInfo, labels: Mapping[str, str]) -> str:
    """Return entry, point label and metric of a series."""
    return " ".join(filter(None, (info.entry, labels.get(info.point, ""), info.name)))


def accepted_starts(
    medians: RunMedians, name: str, series_id: str, accepted: Sequence[Acknowledgement]
) -> list[int]:
    """Return the index of the first run of each acknowledged level of a series."""
    newest = medians.runs[-1].run_id if medians.runs else ""
    starts = [
        ack.run
        for ack in accepted
        if ack.run <= newest and ack.holds(name, series_id, day_of(newest))
    ]
    return [bisect.bisect_left(medians.runs, run, key=lambda run: run.run_id) for run in starts]


def series_levels(
    medians: RunMedians, tuning: Tuning, accepted: Sequence[Acknowledgement] = ()
) -> list[SeriesLevels]:
    """Return the levels of every series except canaries."""
    series = []
    for i, name in enumerate(series_names(medians)):
        info = medians.series[i]
        if info.canary:
            continue
        values = medians.value[i]
        min_effect, absolute = tuning.effect(info, values[np.isfinite(values)])
        levels = fold_levels(
            values,
            better=info.better,
            min_effect=min_effect,
            absolute=absolute,
            accepted=accepted_starts(medians, name, info.series_id, accepted),
        )
        changes = {
            event: _level_change(medians, info, name, values, event, min_effect, absolute)
            for event in levels.events
        }
        alerts = tuple(changes[event] for event in levels.alerts)
        series.append(SeriesLevels(info, name, levels, tuple(changes.values()), alerts))
    return series


def _level_change(
    medians: RunMedians,
    info: SeriesInfo,
    name: str,
    values: Array,
    event: Event,
    min_effect: float,
    absolute: bool,
) -> LevelChange:
    change = event.change
    present = np.flatnonzero(np.isfinite(values))
    at = int(np.searchsorted(present, change.index))
    before = int(present[at - 1])
    return LevelChange(
        info=info,
        name=name,
        kind=event.kind,
        rule=event.rule,
        change=change,
        index=change.index,
        run=medians.runs[change.index].run_id,
        decided=medians.runs[event.run].run_id,
        run_before=medians.runs[before].run_id,
        word=side(change.effect, info.better),
        min_effect=min_effect,
        absolute=absolute,
        environment=changed(medians, before, change.index),
        recent=tuple(float(value) for value in values[present[at : at + change.n_after]][-5:]),
    )


def changed(medians: RunMedians, before: int, after: int) -> dict[str, tuple[str, str]]:
    """Return what differs in the environment of two runs, or of the runs beside them.

    A change of level is located to within one run, so an upgrade may be one run off.
    """
    for i, j in ((before, after), (max(before - 1, 0), min(after + 1, len(medians.runs) - 1))):
        a, b = medians.runs[i].env, medians.runs[j].env
        keys = [*sorted({*a, *b} - {"nodes"}), "nodes"]
        differs = {
            key: (a.get(key, "-"), b.get(key, "-")) for key in keys if a.get(key) != b.get(key)
        }
        if differs:
            return differs
    return {}


def suspects(medians: RunMedians, tuning: Tuning, series: Sequence[SeriesLevels]) -> list[Suspect]:
    """Return the points whose headline got worse in the last run by 15 % and six noise floors."""
    points: dict[str, Suspect] = {}
    values_of = {info.series_id: medians.value[i] for i, info in enumerate(medians.series)}
    for line in series:
        info, values = line.info, values_of[line.info.series_id]
        past, newest = values[:-1], values[-1]
        finite = past[np.isfinite(past)]
        level = past[line.levels.start :]
        level = level[np.isfinite(level)]
        if not tuning.pages(info) or finite.size < HEAD or not level.size:
            continue
        scale = scale_for(np.append(finite, newest), tuning.effect(info, finite)[1])
        x = scale.apply(level)
        off = float(scale.apply([newest])[0] - np.median(x))
        floor = robust_sigma(x if x.size >= HEAD else scale.apply(finite))
        if (
            abs(off) > max(scale.gate(SUSPICIOUS), SUSPICIOUS_FLOORS * floor)
            and side(off, info.better) == "worse"
        ):
            points.setdefault(info.point, Suspect(info.point, line.name, scale.effect(off)))
    return list(points.values())

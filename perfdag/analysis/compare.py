"""Comparison of two sides, each one run or several: what differs, and an answer about each."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfdag.analysis.history import full_name
from perfdag.analysis.medians import (
    COLUMNS,
    RunMedians,
    codes,
    environment,
    group_values,
    is_measured,
    medians_of_rows,
    read_run_medians,
    series_labels,
)
from perfdag.analysis.selection import Selection, SelectionError
from perfdag.analysis.verdict import RANK, Answer, Tuning, compare_levels, compare_sides, counts
from perfdag.benchmark.contract import SIMULATED
from perfdag.results.schema import explain_unreadable, load_rows
from perfdag.results.summary import SeriesInfo
from perfdag.stats.levels import STEP, Levels, levels_of
from perfdag.stats.robust import Spread, median, spread
from perfdag.stats.scales import Array, finite
from perfdag.store.base import Store
from perfdag.units import plural

_Settings = dict[str, str]


def match(
    left: Iterable[SeriesInfo], right: Iterable[SeriesInfo]
) -> tuple[dict[str, str], dict[str, tuple[str, str]]]:
    """Return the pairs of points, and the parameters that were changed.

    The pairs are point of A -> point of B. A changed parameter is `entry.name` -> (value in A,
    value in B). A parameter is changed where all points of an entry have one value in A and another
    in B. Points that agree in everything else are a pair. A value that only one side has among
    several is a removed or new point.
    """
    a, b = _by_entry(left), _by_entry(right)
    shared = {point for points in a.values() for point in points} & {
        point for points in b.values() for point in points
    }
    pairs: dict[str, str] = {}
    differs: dict[str, tuple[str, str]] = {}
    for entry in a.keys() & b.keys():
        changed = _changed(list(a[entry].values()), list(b[entry].values()))
        if not changed:
            continue
        known = {
            _rest(flat, changed): point for point, flat in b[entry].items() if point not in shared
        }
        answers = {
            point: known[rest]
            for point, flat in a[entry].items()
            if point not in shared and (rest := _rest(flat, changed)) in known
        }
        if answers:
            pairs |= answers
            differs |= {f"{entry}.{name}": values for name, values in changed.items()}
    return pairs, dict(sorted(differs.items()))


def _by_entry(series: Iterable[SeriesInfo]) -> dict[str, dict[str, _Settings]]:
    points = {info.point: info for info in series}
    entries: dict[str, dict[str, _Settings]] = {}
    for point, info in points.items():
        set_values = {name: text for name, text in info.settings.items() if text != "null"}
        entries.setdefault(info.entry, {})[point] = set_values
    return entries


def _changed(a: list[_Settings], b: list[_Settings]) -> dict[str, tuple[str, str]]:
    """Return the names that have one value in A and another in B, `-` where unknown."""
    differs = {}
    for name in sorted({name for flat in (*a, *b) for name in flat}):
        before, after = ({flat.get(name, "-") for flat in side} for side in (a, b))
        if len(before) == len(after) == 1 and before != after:
            differs[name] = (before.pop(), after.pop())
    return differs


def _rest(flat: _Settings, changed: dict[str, tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, value) for name, value in flat.items() if name not in changed))


@dataclass(frozen=True)
class Row:
    """One series of both sides with the answer. `label` tells points of an entry apart.

    The medians `a` and `b` are those of the sides, `series_a` is the id of the series in A. Where
    the level rule decided, the effect is that of the levels in which the runs lie.
    """

    info: SeriesInfo
    label: str
    answer: Answer
    spread_a: Spread
    spread_b: Spread
    a: float
    b: float
    series_a: str
    note: str = ""

    @property
    def full_name(self) -> str:
        """The entry, the label of the point and the metric."""
        return " ".join(filter(None, (self.info.entry, self.label, self.info.name)))


@dataclass
class Comparison:
    """The result of comparing two sides. The lists of texts name what was not compared."""

    a: Selection
    b: Selection
    parameters: dict[str, tuple[str, str]] = field(default_factory=dict)
    environment: dict[str, tuple[str, str]] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    only_a: list[str] = field(default_factory=list)
    only_b: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    simulated: list[str] = field(default_factory=list)


_Key = tuple[str, str, str, str, str]


@dataclass
class _Side:
    selection: Selection
    series: dict[_Key, SeriesInfo]
    values: dict[_Key, Array]
    environment: dict[str, str]
    failed: dict[str, tuple[int, int, str, str]]


def compare_selections(
    a: tuple[Store, Selection],
    b: tuple[Store, Selection],
    tuning: Tuning,
) -> Comparison:
    """Compare two selections, which may be in different stores.

    Raises SelectionError where a side has no rows, and StoreError.
    """
    damaged: list[str] = []
    left, right = _side(*a, damaged), _side(*b, damaged)
    past = _Past(_past(b[0], b[1], damaged), tuning, a[1], b[1], a[0].root == b[0].root)
    comparison = Comparison(a[1], b[1], damaged=damaged)
    comparison.simulated = [
        letter
        for letter, side in (("A", left), ("B", right))
        if SIMULATED in side.environment.get("tool", "")
    ]
    comparison.environment = {
        key: (left.environment.get(key, "-"), right.environment.get(key, "-"))
        for key in sorted({*left.environment, *right.environment})
        if left.environment.get(key) != right.environment.get(key)
    }
    pairs, comparison.parameters = match(left.series.values(), right.series.values())
    old_keys = _rename_points(left, pairs)
    unpaired = [info for info in left.series.values() if info.point not in pairs]
    labels = series_labels([*right.series.values(), *unpaired])
    labels |= {before: labels[after] for before, after in pairs.items()}
    for key, info in right.series.items():
        if key not in left.series:
            comparison.only_b.append(full_name(info, labels))
        else:
            _compare(comparison, left, right, (old_keys.get(key, key), key), past, tuning, labels)
    comparison.only_a = [
        full_name(info, labels) for key, info in left.series.items() if key not in right.series
    ]
    for letter, side in (("A", left), ("B", right)):
        for point, (ok, bad, error, entry) in side.failed.items():
            comparison.failed.append(
                f"{letter}: {entry} {labels.get(point, point)}: "
                f"{bad} of {plural(ok + bad, 'sample')}, {error}"
            )
    comparison.rows.sort(key=_order)
    return comparison


def _rename_points(side: _Side, pairs: dict[str, str]) -> dict[_Key, _Key]:
    """Give the points of a side the ids of their counterparts. Return new key -> old key."""
    old_keys = {(pairs.get(key[0], key[0]), *key[1:]): key for key in side.series}
    side.series = {key: side.series[old] for key, old in old_keys.items()}
    side.values = {key: side.values[old] for key, old in old_keys.items()}
    return old_keys


class _Past:
    """The history of B's suite on B's cluster, with the levels of each series.

    Where both sides are single runs of it, their positions are `a` and `b`.
    """

    def __init__(
        self, medians: RunMedians, tuning: Tuning, a: Selection, b: Selection, same_store: bool
    ) -> None:
        at = {run.run_id: i for i, run in enumerate(medians.runs)}
        self.runs = [run.run_id for run in medians.runs]
        self.a = at.get(a.runs[0]) if same_store and len(a.runs) == 1 else None
        self.b = at.get(b.runs[0]) if len(b.runs) == 1 else None
        self._rows = {info.key: i for i, info in enumerate(medians.series)}
        self._medians, self._tuning = medians, tuning

    def decided(self, info: SeriesInfo) -> Answer | None:
        """Return what the level rule decided about the two runs, or None where it cannot."""
        i = self._rows.get(info.key)
        if i is None or self.a is None or self.b is None:
            return None
        values = self._medians.value[i]
        if not (np.isfinite(values[self.a]) and np.isfinite(values[self.b])):
            return None
        return compare_levels(values, self._levels(i, info), self.runs, self.a, self.b, info.better)

    def noise(self, info: SeriesInfo) -> float | None:
        """Return the noise of one run of a series, or None with fewer than three of them."""
        i = self._rows.get(info.key)
        if i is None or np.isfinite(self._medians.value[i]).sum() < STEP:
            return None
        return self._levels(i, info).levels[-1].noise

    def _levels(self, i: int, info: SeriesInfo) -> Levels:
        return levels_of(self._medians.value[i], **self._tuning.limits(info))


def _compare(
    comparison: Comparison,
    left: _Side,
    right: _Side,
    keys: tuple[_Key, _Key],
    past: _Past,
    tuning: Tuning,
    labels: dict[str, str],
) -> None:
    """Add the answer about one series, or the reason why there is none."""
    key = keys[1]
    before, info = left.series[key], right.series[key]
    if before.unit != info.unit:
        units = f"unit {before.unit} in A and {info.unit} in B, not compared"
        comparison.refused.append(f"{full_name(info, labels)}: {units}")
        return
    a, b = left.values[key], right.values[key]
    answer = past.decided(info) if keys[0] == keys[1] else None
    if answer is None:
        min_effect, absolute = tuning.effect(info, np.concatenate([a, b]))
        answer = compare_sides(
            a,
            b,
            better=info.better,
            min_effect=min_effect,
            absolute=absolute,
            runs_a=len(left.selection.runs),
            runs_b=len(right.selection.runs),
            noise=past.noise(info),
        )
    versions = (before.benchmark_version, info.benchmark_version)
    note = f"version {versions[0]} against {versions[1]}" if versions[0] != versions[1] else ""
    label = labels.get(info.point, "")
    spreads, medians = (spread(a), spread(b)), (median(a), median(b))
    comparison.rows.append(Row(info, label, answer, *spreads, *medians, before.series_id, note))


def _side(store: Store, selection: Selection, damaged: list[str]) -> _Side:
    """Read the rows of a side: repetitions of a single run, or run medians of several."""
    table = load_rows(
        store,
        suites=[selection.suite],
        runs=list(selection.runs),
        columns=list(COLUMNS),
        damaged=damaged,
    )
    if not table.num_rows:
        why = explain_unreadable(store, damaged[0]) if damaged else "no rows"
        raise SelectionError(f"{selection.words}: {why}")
    table = table.filter(pc.fill_null(pc.not_equal(table["benchmark"], "canary"), True))
    medians = medians_of_rows(table, selection.suite)
    failed: dict[str, tuple[int, int, str, str]] = {}
    for run in medians.runs:
        for point, (ok, bad, error, entry) in run.points.items():
            if bad:
                before = failed.get(point, (0, 0, "", ""))
                failed[point] = (before[0] + ok, before[1] + bad, error, entry)
    series = {info.key: info for info in medians.series}
    if len(selection.runs) == 1:
        values = _repetitions(table, {info.series_id: info.key for info in medians.series})
    else:
        values = {info.key: finite(medians.value[i]) for i, info in enumerate(medians.series)}
    return _Side(selection, series, values, environment(table), failed)


def _repetitions(table: pa.Table, keys: dict[str, Any]) -> dict[_Key, Array]:
    rows = table.filter(is_measured(table))
    which, ids = codes(rows["series_id"])
    groups, values = group_values(which, rows["value"].to_numpy().astype(np.float64))
    return {
        keys[ids[group]]: repetitions for group, repetitions in zip(groups, values, strict=True)
    }


def _past(store: Store, selection: Selection, damaged: list[str]) -> RunMedians:
    """Return the run medians of B's suite on B's cluster."""
    everything = read_run_medians(store, selection.suite)
    damaged.extend(key for key in everything.damaged if key not in damaged)
    cluster = next((run.cluster for run in everything.runs if run.run_id in selection.runs), "")
    return everything.on_cluster(cluster)


def _order(row: Row) -> tuple[Any, ...]:
    return (
        not row.info.headline,
        RANK.index(row.answer.word),
        -abs(row.answer.effect or 0),
        row.info.entry,
        row.label,
    )


def count(rows: list[Row]) -> str:
    """Return the number of series by word, such as `1 worse, 20 same`."""
    return counts([row.answer.word for row in rows]) or "no series in common"

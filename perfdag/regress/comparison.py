"""Comparison of two sides, each one run or several: what differs, and a verdict for each series."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfdag.benchmark.contract import SIMULATED
from perfdag.regress.changes import full_name
from perfdag.regress.environment import codes, environment
from perfdag.regress.matching import match
from perfdag.regress.rollup import read_run_medians
from perfdag.regress.run_medians import (
    COLUMNS,
    RunMedians,
    group_values,
    is_measured,
    medians_of_rows,
)
from perfdag.regress.selection import Selection, SelectionError
from perfdag.regress.series import SeriesInfo, series_labels
from perfdag.regress.tuning import Tuning, assumed_noise
from perfdag.results.schema import explain_unreadable, load_rows
from perfdag.stats.changes import WINDOW, change_points
from perfdag.stats.robust import Array, finite, middle, robust_sigma, scale_for
from perfdag.stats.verdicts import PAST_RUNS, Pool, Verdict, compare, pool
from perfdag.store.base import Store
from perfdag.units import plural

_RANK = {"worse": 0, "differs": 1, "better": 2, "inconclusive": 3, "no difference shown": 4}


@dataclass(frozen=True)
class Row:
    """One series of both sides with its verdict. `label` tells points of an entry apart."""

    info: SeriesInfo
    label: str
    verdict: Verdict
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
    *,
    everything: bool = True,
) -> Comparison:
    """Compare two selections, which may be in different stores.

    `everything` includes series that are not headlines. Raises SelectionError where a side has no
    rows, and StoreError.
    """
    damaged: list[str] = []
    left, right = _side(*a, damaged), _side(*b, damaged)
    past = _Past(_past(b[0], b[1], damaged))
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
        elif everything or info.headline:
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
    """Past run medians of the suite, and their noise by benchmark, metric and statistic."""

    def __init__(self, medians: RunMedians) -> None:
        self._medians = medians
        self._rows: dict[_Key, list[Array]] = {}
        for info, row in zip(medians.series, medians.value, strict=True):
            self._rows.setdefault(info.key, []).append(row)
        self._pools: dict[tuple[str, str, str, bool], Pool] = {}

    def of(self, keys: tuple[_Key, _Key]) -> Array:
        """Return the runs of a series, or of its counterpart where that has more."""
        rows = [row for key in dict.fromkeys(keys) for row in self._rows.get(key, ())]
        return max(rows, key=lambda row: int(np.isfinite(row).sum()), default=np.array([]))

    def similar(self, info: SeriesInfo, absolute: bool) -> Pool:
        """Return the pooled noise of all series of a benchmark and metric."""
        key = (info.benchmark, info.metric, info.stat, absolute)
        if key not in self._pools:
            values = [
                level_removed(self._medians.value[i], absolute)
                for i, other in enumerate(self._medians.series)
                if (other.benchmark, other.metric, other.stat) == key[:3]
            ]
            self._pools[key] = pool(scale_for(x, absolute).apply(x) for x in values)
        return self._pools[key]


def _compare(
    comparison: Comparison,
    left: _Side,
    right: _Side,
    keys: tuple[_Key, _Key],
    past: _Past,
    tuning: Tuning,
    labels: dict[str, str],
) -> None:
    """Add the verdict of one series, or the reason why there is none."""
    key = keys[1]
    before, info = left.series[key], right.series[key]
    if before.unit != info.unit:
        units = f"unit {before.unit} in A and {info.unit} in B, not compared"
        comparison.refused.append(f"{full_name(info, labels)}: {units}")
        return
    a, b = left.values[key], right.values[key]
    min_effect, absolute = tuning.effect(info, np.concatenate([a, b]))
    verdict = compare(
        a,
        b,
        level_removed(past.of(keys), absolute),
        better=info.better,
        min_effect=min_effect,
        absolute=absolute,
        runs_a=len(left.selection.runs),
        runs_b=len(right.selection.runs),
        similar=past.similar(info, absolute),
        assumed=assumed_noise(info, min_effect, absolute),
    )
    versions = (before.benchmark_version, info.benchmark_version)
    note = f"version {versions[0]} against {versions[1]}" if versions[0] != versions[1] else ""
    comparison.rows.append(Row(info, labels.get(info.point, ""), verdict, note))


def level_removed(values: Array, absolute: bool = False) -> Array:
    """Return past run medians without their changes of level, so that only noise is left.

    The detector runs only where the spread exceeds what successive differences explain.
    """
    recent = finite(values)[-WINDOW:]
    if recent.size < PAST_RUNS:
        return recent
    scale = scale_for(recent, absolute)
    x = scale.apply(recent)
    if robust_sigma(x) <= 1.25 * robust_sigma(np.diff(x)) / np.sqrt(2):
        return recent
    edges = [
        0,
        *(change.index for change in change_points(recent, absolute=absolute)),
        x.size,
    ]
    typical = middle(x)
    for start, end in pairwise(edges):
        x[start:end] += typical - middle(x[start:end])
    flat: Array = np.exp(x) if scale.kind == "log" else x * scale.unit
    return flat


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
    """Return run medians of B's suite on B's cluster, with those of A and without those of B."""
    everything = read_run_medians(store, selection.suite)
    damaged.extend(key for key in everything.damaged if key not in damaged)
    cluster = next((run.cluster for run in everything.runs if run.run_id in selection.runs), "")
    return everything.select(
        lambda run: run.run_id not in selection.runs and run.cluster == cluster
    )


def _order(row: Row) -> tuple[Any, ...]:
    return (
        not row.info.headline,
        _RANK[row.verdict.word],
        -abs(row.verdict.effect),
        row.info.entry,
        row.label,
    )


def count(rows: list[Row]) -> str:
    """Return the number of series by verdict, such as `1 worse, 20 no difference shown`."""
    labels = [row.verdict.word for row in rows]
    counts = [f"{labels.count(word)} {word}" for word in _RANK if word in labels]
    return ", ".join(counts) or "no series in common"

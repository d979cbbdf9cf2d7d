"""Comparison of two sides: runs, each one or several, and the two variants of a duet."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfdag.analysis.environment import (
    COLUMNS as ENVIRONMENT_COLUMNS,
    Changes,
    changes,
    environment,
)
from perfdag.analysis.medians import (
    COLUMNS,
    PointCount,
    medians_of_rows,
    point_names,
    read_run_medians,
)
from perfdag.analysis.verdict import (
    RANK,
    Tuning,
    Verdict,
    compare_levels,
    compare_sides,
    fraction,
    unless_apart,
    worst_kind,
)
from perfdag.benchmark.contract import SIMULATED
from perfdag.plan import A_BLOCK, Duet, Plan
from perfdag.results.run_store import RunStore, Selection, SelectionError, read_checks
from perfdag.results.schema import explain_unreadable, is_measured, load_rows
from perfdag.results.selections import explain_last, select
from perfdag.results.summary import (
    SERIES_COLUMNS,
    UNUSABLE_SPREAD,
    NamedSeries,
    SeriesInfo,
    values_by_series,
)
from perfdag.signals import EXIT_FAILED, EXIT_GATE, EXIT_OK, EXIT_UNCLEAR
from perfdag.stats.evidence import STEP
from perfdag.stats.levels import add_levels
from perfdag.stats.paired import Cost, Paired, paired, with_verdicts, within_limit
from perfdag.stats.robust import Spread, median, spread
from perfdag.stats.scale import Array, Nights, VerdictKind, finite
from perfdag.store.base import Store
from perfdag.store.s3 import open_store
from perfdag.units import plural

_Settings = dict[str, str]


def match(
    series_a: Iterable[SeriesInfo], series_b: Iterable[SeriesInfo]
) -> tuple[dict[str, str], dict[str, tuple[str, str]]]:
    """Return the pairs of points, and the parameters that were changed.

    The pairs are point of A -> point of B. A changed parameter is `entry.name` -> (value in A,
    value in B). A parameter is changed where all points of an entry have one value in A and another
    in B. Points that agree in everything else are a pair. A value that only one side has among
    several is a removed or new point.
    """
    a = _by_entry(series_a)
    b = _by_entry(series_b)
    shared = set[str]().union(*a.values()) & set[str]().union(*b.values())
    pairs: dict[str, str] = {}
    parameters: dict[str, tuple[str, str]] = {}
    for entry in a.keys() & b.keys():
        changed = _changed(list(a[entry].values()), list(b[entry].values()))
        if not changed:
            continue
        rests_a = {p: _rest(flat, changed) for p, flat in a[entry].items() if p not in shared}
        points_b = {_rest(flat, changed): p for p, flat in b[entry].items() if p not in shared}
        matches = {point: points_b[rest] for point, rest in rests_a.items() if rest in points_b}
        if matches:
            pairs |= matches
            parameters |= {f"{entry}.{name}": values for name, values in changed.items()}
    return pairs, dict(sorted(parameters.items()))


def _by_entry(series: Iterable[SeriesInfo]) -> dict[str, dict[str, _Settings]]:
    points = {info.point: info for info in series}
    entries: dict[str, dict[str, _Settings]] = {}
    for point, info in points.items():
        entries.setdefault(info.entry, {})[point] = {
            name: text for name, text in info.settings.items() if text != "null"
        }
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
class ComparedSeries(NamedSeries):
    """One series of both sides with the verdict.

    `a` and `b` are the medians of the sides with their spreads, `series_a` is the id of the series
    in A. Where the level rule decided, the effect is that of the levels in which the runs lie.
    """

    verdict: Verdict
    a: Spread
    b: Spread
    series_a: str
    note: str = ""


@dataclass(frozen=True)
class Comparison:
    """The result of comparing two sides. `left_out` names what was not compared, by reason."""

    a: Selection
    b: Selection
    parameters: dict[str, tuple[str, str]]
    changes: Changes
    simulated: list[str]
    series: list[ComparedSeries]
    left_out: dict[str, list[str]]


_Key = tuple[str, str, str, str, str]


@dataclass
class _Side:
    """The rows of a side, and what they say of its series and points."""

    rows: pa.Table
    series: dict[_Key, SeriesInfo]
    values: dict[_Key, Array]
    failed: dict[str, PointCount]

    def unusable(self) -> dict[str, float]:
        """Return the points none of whose headline values can be used, with their least spread."""
        shares: dict[str, list[float]] = {}
        for key, info in self.series.items():
            if info.headline:
                # A fraction near 0 is judged by its absolute spread: a loss of 0.01 % may double.
                share = spread(self.values[key]).share(least=float(info.unit == "1")) or 0.0
                shares.setdefault(info.point, []).append(share)
        smallest = {point: min(spreads) for point, spreads in shares.items()}
        return {point: share for point, share in smallest.items() if share > UNUSABLE_SPREAD}


def compare(
    a: str,
    b: str,
    store: str | Path | None = None,
    *,
    store_b: str | Path | None = None,
    suite: str | None = None,
) -> Comparison:
    """Compare two runs or selections, as `perfdag compare` does.

    `a` and `b` are ids, the beginnings of ids, `last`, `last~N`, `baseline:NAME`, or conditions
    such as `suite=net month=2026-10`. `store` is a folder or an address, and `store_b` that of B
    where it differs. Raises SelectionError where there is no such run, StoreError.
    """
    runs_a = RunStore(open_store(None if store is None else str(store)))
    runs_b = runs_a if store_b is None else RunStore(open_store(str(store_b)))
    side_a = select(runs_a, a, suite)
    same_suite = side_a.suite if store_b is None else None
    side_b = select(runs_b, b, suite or same_suite)
    explain_last(runs_a, a, side_a.runs[-1])
    explain_last(runs_b, b, side_b.runs[-1])
    return compare_selections((runs_a.store, side_a), (runs_b.store, side_b))


def compare_selections(a: tuple[Store, Selection], b: tuple[Store, Selection]) -> Comparison:
    """Compare two selections, which may be in different stores, by the checks of the suite of B.

    Raises SelectionError where a side has no rows, and StoreError.
    """
    tuning = Tuning(read_checks(b[0], b[1].runs[-1]))
    damaged: list[str] = []
    left = _side(*a, damaged)
    right = _side(*b, damaged)
    sides = {"A": left, "B": right}
    past = _Past(b[0], a[1], b[1], a[0].root == b[0].root, tuning, damaged)
    pairs, parameters = match(left.series.values(), right.series.values())
    # A re-measurement has some points alone, and their tools.
    of_b = {info.point for info in right.series.values()}
    common = {
        info.point for info in left.series.values() if pairs.get(info.point, info.point) in of_b
    }
    before = environment(_of_points(left.rows, common))
    after = environment(_of_points(right.rows, [pairs.get(point, point) for point in common]))
    simulated = [
        letter
        for letter, side in sides.items()
        if SIMULATED in " ".join(filter(None, pc.unique(side.rows["tool"]).to_pylist()))
    ]
    unusable = {letter: side.unusable() for letter, side in sides.items()}
    unpaired = [info for info in left.series.values() if info.point not in pairs]
    points = point_names([*right.series.values(), *unpaired])
    points |= {point_a: points[point_b] for point_a, point_b in pairs.items()}
    # the key that a series of A has in B
    keys = {(pairs.get(key[0], key[0]), *key[1:]): key for key in left.series}
    titles_a = {key: left.series[keys[key]].titled(points[key[0]].label) for key in keys}
    titles_b = {key: info.titled(points[key[0]].label) for key, info in right.series.items()}
    rows = list[ComparedSeries]()
    refused = list[str]()
    for key in [key for key in right.series if key in keys]:
        info = right.series[key]
        info_a = left.series[keys[key]]
        label = titles_b[key]
        if info_a.unit != info.unit:
            refused.append(f"{label}: unit {info_a.unit} in A and {info.unit} in B, not compared")
            continue
        values = left.values[keys[key]]
        band = spread(right.values[key])
        verdict = past.verdict(info, values, band, keys[key] == key)
        of_points = {"B": info.point, "A": info_a.point}
        shares = {letter: unusable[letter].get(point) for letter, point in of_points.items()}
        versions = info_a.benchmark_version, info.benchmark_version
        row = ComparedSeries(
            info=info,
            name=info.named(points[info.point].name),
            label=label,
            verdict=_usable(verdict, shares),
            a=spread(values),
            b=band,
            series_a=info_a.series_id,
            note="version {} against {}".format(*versions) if versions[0] != versions[1] else "",
        )
        rows.append(row)
    labels = {point: names.label for point, names in points.items()}
    failed = [
        f"{letter}: {', '.join(filter(None, (entry, labels.get(point, point))))}: "
        f"{bad} of {plural(ok + bad, 'sample')}, {error}"
        for letter, side in sides.items()
        for point, (ok, bad, error, entry) in side.failed.items()
    ]
    left_out = {
        "only_a": [title for key, title in titles_a.items() if key not in right.series],
        "only_b": [title for key, title in titles_b.items() if key not in keys],
        "failed": failed,
        "refused": refused,
        "damaged": damaged,
    }
    return Comparison(
        a=a[1],
        b=b[1],
        parameters=parameters,
        changes=changes(before, after, past.environments),
        simulated=simulated,
        series=sorted(rows, key=_order),
        left_out=left_out,
    )


class _Past:
    """The history of B's suite on B's cluster. `places` are the positions of single runs in it."""

    def __init__(
        self,
        store: Store,
        a: Selection,
        b: Selection,
        same_store: bool,
        tuning: Tuning,
        damaged: list[str],
    ) -> None:
        all_runs = read_run_medians(store, b.suite)
        damaged.extend(key for key in all_runs.damaged if key not in damaged)
        cluster = next((run.cluster for run in all_runs.runs if run.run_id in b.runs), "")
        medians = all_runs.on_cluster(cluster)
        self.runs = medians.run_ids
        self.tuning = tuning
        keys = [info.key for info in medians.series]
        self.values: dict[_Key, Array] = dict(zip(keys, medians.value, strict=True))
        self.nights = {key: medians.nights(row) for row, key in enumerate(keys)}
        self.sizes = len(a.runs), len(b.runs)
        self.places: tuple[int, int] | None = None
        if same_store and self.sizes == (1, 1) and {*a.runs, *b.runs} <= {*self.runs}:
            self.places = self.runs.index(a.runs[0]), self.runs.index(b.runs[0])
        self.environments = [
            run.env for run in medians.runs if same_store and run.run_id <= a.runs[0]
        ]

    def verdict(self, info: SeriesInfo, before: Array, b: Spread, same_point: bool) -> Verdict:
        """Return what the level rule decided about two runs, or what the values of both say.

        Without a common history, the noise is that of B's runs or of A's, `before`, where three of
        them are known. Runs of one history are judged as they were when they were the newest.
        """
        values = self.values.get(info.key, np.array([]))
        levels = self.tuning.limits(info, self.nights.get(info.key, Nights.of([])))
        # fewer nights have no level that could decide, and most series of a new suite have fewer
        if levels.measured >= STEP:
            add_levels(levels)
        a = spread(before)
        if same_point and self.places and values.size and np.isfinite(values[[*self.places]]).all():
            verdict = compare_levels(values, levels, self.runs, *self.places, info.better)
            if verdict:
                return unless_apart(verdict, levels, {"B": b, "A": a})
            return compare_sides(a, b, levels, info.better)
        if levels.measured < STEP and self.sizes[0] > 1:
            levels = self.tuning.limits(info, Nights.of(before))
            add_levels(levels)
        noise = levels.current.noise if levels.measured >= STEP else None
        return compare_sides(a, b, levels, info.better, self.sizes, noise)


def _side(store: Store, selection: Selection, damaged: list[str]) -> _Side:
    """Read the rows of a side: repetitions of a single run, or run medians of several."""
    suites = [selection.suite]
    runs = list(selection.runs)
    table = load_rows(store, suites=suites, runs=runs, columns=list(COLUMNS), damaged=damaged)
    if not table.num_rows:
        reason = explain_unreadable(store, damaged[0]) if damaged else "no rows"
        raise SelectionError(f"{selection.words}: {reason}")
    table = table.filter(pc.fill_null(pc.not_equal(table["benchmark"], "canary"), True))
    medians = medians_of_rows(table, selection.suite)
    counts: dict[str, PointCount] = {}
    for run in medians.runs:
        for point, (ok, bad, error, entry) in run.points.items():
            before = counts.get(point, PointCount())
            newest_error = error or before.error
            counts[point] = PointCount(before.ok + ok, before.bad + bad, newest_error, entry)
    values = {info.key: finite(medians.value[i]) for i, info in enumerate(medians.series)}
    if len(runs) == 1:
        keys = {info.series_id: info.key for info in medians.series}
        rows = table.filter(is_measured(table))
        by_series = values_by_series(rows)
        values = {keys[series]: np.array(of_one) for series, of_one in by_series.items()}
    series = {info.key: info for info in medians.series}
    failed = {point: count for point, count in counts.items() if count.bad}
    return _Side(table, series, values, failed)


def _of_points(rows: pa.Table, points: Collection[str]) -> pa.Table:
    """Return the rows of these points, or all where none of them has any."""
    of_points = rows.filter(pc.is_in(rows["point"], pa.array([*points], pa.string())))
    return of_points if of_points.num_rows else rows


def _usable(verdict: Verdict, shares: Mapping[str, float | None]) -> Verdict:
    """Return a verdict as unclear where the point was unusable in one of the runs."""
    for letter, share in shares.items():
        if share is not None and verdict.kind not in ("unclear", "failed"):
            reason = f"the samples of {letter} spread by {100 * share:,.0f} %"
            reason = f"{verdict.size}, but the point was unusable in {letter}: {reason}"
            return replace(verdict, kind="unclear", why=reason, noisy=True)
    return verdict


def _order(row: ComparedSeries) -> tuple[Any, ...]:
    """Return what sorts the series: headlines first, then by verdict, the largest effect first."""
    effect = abs(row.verdict.effect or 0)
    of_verdict = (RANK.index(row.verdict.kind), -effect)
    return not row.info.headline, *of_verdict, row.info.entry, row.label


_SAMPLE = ("run_id", "repetition", "phase", "status", "error", "subject", "value")


@dataclass(frozen=True)
class PairedSeries(NamedSeries):
    """One series of a duet with its verdict.

    `cost` is that of B against the limit of the duet, where there is one.
    """

    paired: Paired
    cost: Cost | None = None


@dataclass(frozen=True)
class DuetResult:
    """Verdicts on the series that both variants have in at least one block.

    `unpaired` names the other series and the variant that has them. `absent` names series that
    alert, and points without a headline, that the limit cannot be checked for. `failed` counts
    samples that were not ok by their reason. `damaged` names unreadable files. `changes` has what
    of the machine is recorded to differ between the variants.
    """

    duet: Duet
    series: list[PairedSeries]
    unpaired: list[str]
    absent: list[str]
    failed: Counter[str]
    damaged: list[str]
    changes: Changes

    @property
    def exit_code(self) -> int:
        """1: a sample failed, or none is ok; 3: beyond the limit, or no value of it; 5: unclear."""
        if self.failed:
            return EXIT_FAILED
        if self.duet.a.options.within is None:
            return EXIT_OK if self.series else EXIT_FAILED
        costs = {line.cost.kind for line in self.series if line.cost}
        if self.absent or "beyond" in costs:
            return EXIT_GATE
        return EXIT_UNCLEAR if "unclear" in costs else EXIT_OK

    @property
    def verdict(self) -> VerdictKind:
        """The verdict on the duet: that of the series that matters most."""
        kinds = {line.paired.kind for line in self.series}
        return "failed" if self.failed else worst_kind(kinds) or "failed"

    @property
    def decided(self) -> bool:
        """Whether more blocks would change no exit code, or no verdict where there is no limit."""
        if self.duet.a.options.within is None:
            return all(line.paired.kind != "unclear" for line in self.series)
        return self.exit_code != EXIT_UNCLEAR

    def data(self) -> dict[str, Any]:
        """Return the result as data for JSON.

        Effects are B against A, relative (0.1 is +10 %) unless the metric is a fraction.
        """
        # Each run's options name both sides.
        words_a, words_b = self.duet.a.options.words
        return asdict(
            DuetData(
                a={"run_id": self.duet.a.run_id, "words": words_a},
                b={"run_id": self.duet.b.run_id, "words": words_b},
                suite=self.duet.a.suite,
                blocks=self.duet.blocks,
                series=self.series,
                unpaired=self.unpaired,
                damaged=self.damaged,
                changes=self.changes,
            )
        )


@dataclass(frozen=True)
class DuetData:
    """A duet as `ab` prints it with --json. Its variants are their runs, and what makes them."""

    a: dict[str, str]
    b: dict[str, str]
    suite: str
    blocks: Sequence[str]
    series: Sequence[PairedSeries]
    unpaired: Sequence[str]
    damaged: Sequence[str]
    changes: Changes


def analyse(store: Store, duet: Duet, tuning: Tuning, *, everything: bool = False) -> DuetResult:
    """Return the verdict of each headline series, or of every series with `everything`.

    What alerts by the checks of the suite is also checked against the limit that the plan's options
    have as `within`: headline series, unless they say otherwise. Raises StoreError.
    """
    damaged: list[str] = []
    table = load_rows(
        store,
        suites=[duet.a.suite, duet.b.suite],
        runs=[duet.a.run_id, duet.b.run_id],
        columns=list(dict.fromkeys([*SERIES_COLUMNS, *_SAMPLE, *ENVIRONMENT_COLUMNS])),
        damaged=damaged,
    )
    rows = table.filter(is_measured(table))
    variants = (duet.a, duet.b)
    before, after = (
        environment(table.filter(pc.equal(table["run_id"], plan.run_id))) for plan in variants
    )
    a, b = (_block_medians(rows, plan, len(duet.blocks)) for plan in variants)
    series = list[PairedSeries]()
    unpaired = list[str]()
    absent = list[str]()
    compared: set[int] = set()
    for key in {**a, **b}:
        present = [side[key] for side in (a, b) if key in side]
        info = present[0][0]
        point_a = duet.a.points[key[0]]
        point_b = duet.b.points[key[0]]
        label = info.titled(_of_both(point_a.title, point_b.title))
        alerts = tuning.alerts(info)
        if info.headline or alerts:
            compared.add(key[0])
        elif not everything:
            continue
        values = [medians for _, medians in present]
        if len(values) == 2 and np.isfinite(values[0] + values[1]).any():
            name = info.named(_of_both(point_a.label, point_b.label))
            result = _compare_series(info, values[0], values[1], tuning, duet)
            series.append(PairedSeries(info, name, label, *result))
            continue
        if alerts and info.better in ("higher", "lower"):
            absent.append(label)
        variant = "A" if key in a else "B"
        reason = f"only {variant} has values" if len(values) == 1 else "no block has values of both"
        unpaired.append(f"{label}: {reason}")
    for i in sorted({*range(len(duet.a.points))} - compared):
        absent.append(_of_both(duet.a.points[i].full_title, duet.b.points[i].full_title))
        unpaired.append(f"{absent[-1]}: neither variant has a headline value")
    limited = duet.a.options.within is not None
    if limited and not absent and not any(line.cost for line in series):
        absent.append("the limit")
        unpaired.append("the limit: no series alerts that has values of both variants")
    pairs = with_verdicts([line.paired for line in series], duet.a.options.looks)
    series = [replace(line, paired=pair) for line, pair in zip(series, pairs, strict=True)]
    return DuetResult(
        duet, series, unpaired, absent, _failed(table), damaged, changes(before, after)
    )


def _failed(table: pa.Table) -> Counter[str]:
    """Count the samples that are not ok by their reason."""
    columns = ["run_id", "point", "repetition", "phase", "status", "error"]
    samples = {
        (row["run_id"], row["point"], row["repetition"]): row["error"] or row["status"]
        for row in table.select(columns).to_pylist()
        if row["phase"] == "measure" and row["status"] not in ("ok", "skipped")
    }
    return Counter(samples.values())


def _compare_series(
    info: SeriesInfo, a: Array, b: Array, tuning: Tuning, duet: Duet
) -> tuple[Paired, Cost | None]:
    """Compare one series. Check what alerts against the limit of the duet."""
    both = np.concatenate([a, b])
    both = both[np.isfinite(both)]
    limit = duet.a.options.within
    min_effect, absolute = tuning.effect(info, both)
    compare = partial(
        paired, a, b, better=info.better, min_effect=min_effect, looks=duet.a.options.looks
    )
    result = compare(absolute=absolute)
    if limit is None or not tuning.alerts(info):
        return result, None
    # The limit is a share, but `checks` may set an effect in the unit of the metric.
    return result, within_limit(compare(absolute=fraction(info, both)), limit)


def _block_medians(
    rows: pa.Table, plan: Plan, count: int
) -> dict[tuple[int, str, str, str, str], tuple[SeriesInfo, Array]]:
    """Return the block medians of each series, shape (blocks,), by point number and metric."""
    number = {point.id: i for i, point in enumerate(plan.points)}
    infos: dict[str, SeriesInfo] = {}
    blocks: dict[str, list[list[float]]] = {}
    for row in rows.filter(pc.equal(rows["run_id"], plan.run_id)).to_pylist():
        identity = row["series_id"]
        if row["point"] in number and identity not in infos:  # no canary
            infos[identity] = SeriesInfo.of(row)
            blocks[identity] = [[] for _ in range(count)]
        if identity in infos:
            blocks[identity][(row["repetition"] - 1) // A_BLOCK].append(row["value"])
    return {
        (number[info.point], *info.key[1:]): (info, np.array([*map(median, blocks[identity])]))
        for identity, info in infos.items()
    }


def _of_both(a: str, b: str) -> str:
    """Return what both variants call a point, or each of them."""
    return a if a == b else f"{a or '-'} | {b or '-'}"

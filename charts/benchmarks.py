"""The charts of each benchmark: one declaration each, and a function for what none can say."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure

from perfdag.analysis.pairs import (
    TOO_FEW,
    PairMatrix,
    Place,
    matrices,
    pair_groups,
    place_of,
    why_slow,
)
from perfdag.charts import draw, scale, style
from perfdag.charts.series import MARKS, amount, notes, runs_words
from perfdag.charts.view import ROWS, Chart, View, figures
from perfdag.results.labels import Facts
from perfdag.results.schema import facts_of_nodes
from perfdag.results.summary import PointState, Series
from perfdag.units import plural

HEADLINES = 3
"""Most metrics that are drawn of a benchmark without a declaration."""
LIMIT = 0.05
"""Overhead that is allowed where the suite sets no limit."""
NUMBERS = 12  # most hosts whose states carry their numbers
MOST_NAMES = 3
"""Slow nodes and links that are named."""
_SIZES: Any = {"x": "message_bytes", "log": True}


def overhead(points: Sequence[PointState], rows: pa.Table) -> Iterator[tuple[str, Figure]]:
    """Yield the overhead of each treatment with its 95 % interval, its limit and its verdict."""
    states = [state for state in points if _interval(state)][:ROWS]
    if not states:
        return
    words = [_verdict(state) for state in states]
    title = f"{words.count('passes')} of {len(states)} treatments pass"
    if len(states) == 1 and (interval := _interval(states[0])):
        title = f"Overhead {100 * interval[1]:.1f}\u00a0%: {words[0]}"
    note = "dot: mean; bar: 95 % interval, paired runs in ABBA order; shaded: beyond the limit"
    subtitle = f"{note}; {notes(points, rows)}"
    fig, (ax,) = style.figure([0.9 + 0.42 * len(states)], title=title, subtitle=subtitle)
    ends = [0.0]
    for row, (state, word) in enumerate(zip(states, words, strict=True)):
        low, mean, high = _interval(state) or (0.0, 0.0, 0.0)
        colour = {"passes": style.BETTER, "fails": style.WORSE}.get(word, style.UNCLEAR)
        ax.plot([low, high], [row, row], color=colour, lw=2, gid="interval", label="_")
        ax.plot([mean], [row], "o", color=colour, gid="mean", label=state.title)
        own = _figures(state)
        marks = [MARKS[name] for name in own["overhead", "mean"].coords if name in MARKS]
        pairs = own.get(("pairs_needed", "value"))
        needs = f": about {pairs.middle:.0f} pairs would tell" if pairs else ""
        text = "; ".join([word + (needs if word == "inconclusive" else ""), *marks, *_late(state)])
        text = word if style.is_narrow() else text
        place: Any = {"xytext": (0, 7), "textcoords": "offset points", "ha": "center"}
        ax.annotate(text, (mean, row), color=colour, **place)
        ends += [low, high, float(state.params.get("limit", LIMIT))]
    room = (max(ends) - min(ends)) * 0.1
    ax.set_xlim(min(ends) - room, max(ends) + room)
    for limit in {float(state.params.get("limit", LIMIT)) for state in states}:
        ax.axvspan(limit, max(ends) + room, color=style.WORSE, alpha=0.06, gid="limit")
    ax.xaxis.set_major_formatter(lambda value, _: f"{value * 100:g} %")
    ax.set_yticks(range(len(states)), [style.wrap(state.title) for state in states])
    ax.set_ylim(len(states) - 0.4, -0.7)
    ax.set_xlabel("overhead, lower is better")
    yield "overhead", fig


def _figures(state: PointState) -> dict[tuple[str, str], Series]:
    """Return the series of a point by metric and statistic, the first of each."""
    return {(series.metric, series.stat): series for series in reversed(state.series)}


def _interval(state: PointState) -> tuple[float, float, float] | None:
    names = ("overhead_bound", "low"), ("overhead", "mean"), ("overhead_bound", "high")
    own = _figures(state)
    if not all(name in own for name in names):
        return None
    low, mean, high = (own[name].middle for name in names)
    return low, mean, high


def _verdict(state: PointState) -> str:
    """Return passes (the interval is below the limit), fails (it is above), or inconclusive."""
    low, _, high = _interval(state) or (0.0, 0.0, 0.0)
    limit = float(state.params.get("limit", LIMIT))
    return "passes" if high < limit else "fails" if low > limit else "inconclusive"


def _late(state: PointState) -> list[str]:
    """Say in how many runs the treatment broke the latency bound of LoadGen, if in any."""
    own = [s for s in state.series if s.metric == "valid" and "fast" not in s.coords]
    values = [v for s in own if s.coords.get("side") == "treatment" for v in s.values]
    late = values.count(0)
    return [f"LoadGen says INVALID in {late} of {len(values)} runs"] if late else []


def headlines(states: Sequence[PointState], rows: pa.Table) -> Sequence[tuple[str, Figure]]:
    """Return the charts of a benchmark without a declaration: of its first headline metrics."""
    series = [series for state in states for series in state.series]
    own = [one for one in series if one.headline] or series
    units: dict[str, set[str]] = {}
    for one in own:
        units.setdefault(one.metric, set()).add(one.unit)
    drawn = [name for name, some in units.items() if len(some) == 1]  # as one axis has one unit
    return figures(states, rows, [View((name,)) for name in drawn[:HEADLINES]])


def pair_figures(points: Sequence[PointState], rows: pa.Table) -> Iterator[tuple[str, Figure]]:
    """Yield a matrix for each point of pairs and each of its headline metrics.

    `points` are those measured in pairs, and `rows` the rows that they summarise.
    """
    groups = pair_groups(points)
    where, facts = runs_words(rows), facts_of_nodes(rows)
    for number, states in enumerate(groups):
        slug = f"pairs-{number + 1}" if len(groups) > 1 else "pairs"
        drawn = list(matrices(states))
        if not drawn:
            about = PairMatrix(states, "").label
            yield slug, style.no_data(f"{about}: no valid sample in {plural(len(states), 'pair')}")
        for matrix in drawn:
            name = f"{slug}-{matrix.metric.replace('_', '-')}"
            yield name, _matrix_figure(matrix, f"{matrix.label}; {where}", facts)


def finding(matrix: PairMatrix, facts: Facts) -> tuple[str, str]:
    """Return the slow node or link, and the facts in which the slow ones differ."""
    metric = matrix.metric
    between = " between nodes" if matrix.on_one_node else ""
    if not matrix.between:
        return f"No valid sample{between}", ""
    first = next(iter(matrix.between.values()))
    if first.better not in ("higher", "lower"):
        return f"{metric} by pair", ""
    if not matrix.judges:
        ordered = sorted(matrix.between.values(), key=lambda series: series.middle)
        middle = ordered[len(ordered) // 2]
        value = amount(middle.middle, middle.display_unit)
        return f"{metric} {value} in the middle{between}", TOO_FEW
    if not matrix.slow:
        return f"No node and no link stands out in {metric}{between}", ""
    worst, *others = matrix.slow
    more = f" and {len(others)} more" if others else ""
    named = [worst, *others[: MOST_NAMES - 1]]
    reasons = [why_slow(part, facts) for part in named]
    if others:
        reasons.insert(0, "slow too: " + ", ".join(part.text for part in named[1:]))
    title = f"Slow in {metric}{between}: {worst.text}{more}"
    return title, "; ".join(filter(None, reasons))


def _matrix_figure(matrix: PairMatrix, about: str, facts: Facts) -> Figure:
    states, names, by_place = matrix.states, matrix.hosts, matrix.series
    same_node, count = matrix.on_one_node, len(names)
    title, why = finding(matrix, facts)
    grid = np.full((count, count), np.nan)
    for (a, b), series in by_place.items():
        grid[a, b] = series.middle
    subtitle = "; ".join(filter(None, (why, _matrix_subtitle(states, by_place), about)))
    fig, (ax,) = style.figure([min(6.5, 0.32 * count + 1.6)], title=title, subtitle=subtitle)
    finite = grid[np.isfinite(grid)]
    # colours over a tenth of the value at least, or noise of 1 % would look like a slow node
    middle = float(np.median(finite))
    low, high = min(float(finite.min()), 0.95 * middle), max(float(finite.max()), 1.05 * middle)
    norm = draw.color_norm([low, high])
    first = next(iter(by_place.values()))
    mesh = draw.heat(
        ax,
        grid,
        first.display_unit,
        norm,
        words=count <= (5 if style.is_narrow() else NUMBERS),
    )
    for a, b in sorted(same_node):
        hatch: Any = {"fill": False, "hatch": "////", "edgecolor": style.MUTED, "linewidth": 0}
        ax.fill([b, b + 1, b + 1, b], [a, a, a + 1, a + 1], gid="same-node", **hatch)
    failed = [place_of(state) for state in states if state.why]
    cross: Any = {"ls": "none", "marker": "X", "mfc": "none", "mec": style.MUTED, "ms": 8}
    ax.plot([b + 0.5 for _, b in failed], [a + 0.5 for a, _ in failed], gid="failed", **cross)
    step = max(1, count // (8 if style.is_narrow() else 24))
    places = np.arange(0, count, step) + 0.5
    ax.set_yticks(places, names[::step])
    rotation = 45 if max(map(len, names)) > 4 else 0
    ax.set_xticks(places, names[::step], rotation=rotation, ha="right")
    ax.invert_yaxis()
    ax.set_ylabel("first host")
    ax.set_xlabel("second host")
    bar = fig.colorbar(mesh, ax=ax, pad=0.01)
    unit = style.value_axis(bar.ax.yaxis, first.display_unit, high)
    bar.set_label(style.axis_label(matrix.metric, unit, first.better))
    return fig


def _matrix_subtitle(states: Sequence[PointState], by_place: Mapping[Place, Series]) -> str:
    """Return the number of samples, their spread, and what is missing."""
    counts = sorted({len(series.values) for series in by_place.values()})
    n = f"n={counts[0]}" if len(counts) == 1 else f"n={counts[0]} to {counts[-1]}"
    wide = [share for own in by_place.values() if (share := own.band.share()) is not None]
    parallel = int((states[0].shape.get("hosts") or {}).get("parallel_pairs", 1))
    used = [nodes for state in states for nodes in state.nodes if len(nodes) > 1]
    same = {len(set(nodes)) == 1 for nodes in used}
    failed, noisy = (
        sum(map(bool, own)) for own in ([c.why for c in states], [c.noise for c in states])
    )
    parts = [
        f"number: median of {n}",
        f"widest range {100 * max(wide):.0f} % of its median" if wide else "one sample a pair",
        f"concurrent: {parallel} pairs at once" if parallel > 1 else "one pair at a time",
        "all hosts on one node" if same == {True} else "",
        "hatched: both hosts on one node" if len(same) == 2 else "",
        f"X: no valid sample ({failed})" if failed else "",
        f"{plural(noisy, 'pair')} disturbed" if noisy else "",
    ]
    return "; ".join(part for part in parts if part)


CHARTS: Mapping[str, Sequence[Chart]] = {
    "fio": (
        View(("iops", "bandwidth")),
        View(("latency",), stats=("p50", "p99", "p99.9"), slug="latency"),
        View(("completion_latency",), tail=True, slug="percentiles"),
        View(("iops",), subjects=True, slug="workers"),
    ),
    "imb": (
        View(
            ("latency", "bandwidth"),
            stats=("mean", "value"),
            each="benchmark",
            slug="sizes",
            **_SIZES,
        ),
        View(("operation_time",), each="benchmark", slug="operations"),
    ),
    "iperf": (
        View(
            ("throughput", "retransmits", "lost_fraction", "jitter"),
            each="protocol",
            slug="throughput",
        ),
        View(("second_throughput",), x="second", each="protocol", subjects=True, slug="seconds"),
    ),
    "latency": (
        View(("transaction_rate",), slug="rate"),
        View(("latency",), stats=("p50", "p90", "p99"), slug="latency"),
    ),
    "openfoam": (
        View(("solve_time",), x="procs", ideal="time", slug="scaling"),
        View(("mesh_time", "decompose_time", "startup_time"), x="procs", slug="phases"),
        View(("step_time",), x="step", stats=("mean",), slug="steps"),
    ),
    "queue-scaling": (
        View(("throughput",), x="replicas", ideal="rate", slug="throughput"),
        View(("latency",), x="replicas", slug="latency"),
        View(("items", "failures"), subjects=True, slug="spread"),
    ),
    "rdma-bandwidth": (
        View(("bandwidth", "message_rate"), stats=("mean",), slug="sizes", **_SIZES),
    ),
    "rdma-latency": (View(("latency",), stats=("p50", "mean", "p99"), slug="sizes", **_SIZES),),
    "resnet50": (
        View(("throughput",), x="batch", each="scenario", slug="throughput"),
        View(("latency",), each="scenario", tail=True, slug="latency"),
    ),
    "resnet50-interference": (
        View(("rate", "tail"), subjects=True, slug="copies"),
        View(("rate_kept", "tail_inflation"), subjects=True, slug="kept"),
    ),
    "resnet50-overhead": (overhead,),
    "torchbench": (
        View(("samples_rate",), x="batch_size", slug="batches"),
        View(("batch_time", "time_to_first_batch"), stats=("p50", "value"), slug="times"),
    ),
    **dict.fromkeys(
        ("scale", "vmi-burst", "vmi-steady"),
        (scale.drawings, View(("api_calls",), slug="api-calls")),
    ),
}
"""What is drawn of a benchmark, in its order. Others have charts of their headline metrics."""

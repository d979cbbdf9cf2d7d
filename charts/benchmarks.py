"""The charts of each benchmark: one declaration each, and a function for what none can say."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure

from perfdag.analysis.pairs import (
    TOO_FEW,
    PairMatrix,
    matrices,
    pair_groups,
    place_of,
    why_slow,
)
from perfdag.charts import draw, scale, style
from perfdag.charts.series import amount, notes, span
from perfdag.charts.view import ROWS, Chart, View, figures
from perfdag.results.labels import Facts
from perfdag.results.schema import facts_of_nodes
from perfdag.results.summary import PointState
from perfdag.units import plural, scaled

HEADLINES = 3
"""Most metrics that are drawn of a benchmark without a declaration."""
NUMBERS = 12  # most hosts whose states carry their numbers
MOST_NAMES = 3
"""Slow nodes and links that are named."""
DEVIATION = 0.1
"""Deviation from the median of the pairs that has the full colour: noise has next to none."""
_WORSE_TO_BETTER = LinearSegmentedColormap.from_list(
    "deviation", [style.WORSE, "#f7f7f7", style.SERIES[0]]
)


@dataclass(frozen=True)
class Treatment:
    """The overhead of a treatment: its mean, its 95 % interval, and the limit."""

    state: PointState
    low: float
    mean: float
    high: float
    limit: float

    @property
    def verdict(self) -> str:
        """Passes (the interval is below the limit), fails (it is above), or inconclusive."""
        if self.high < self.limit:
            return "passes"
        return "fails" if self.low > self.limit else "inconclusive"

    @property
    def text(self) -> str:
        """The verdict, and what would decide an inconclusive one."""
        needed = [series.middle for series in self.state.series if series.metric == "pairs_needed"]
        if not needed or self.verdict != "inconclusive":
            return self.verdict
        return f"{self.verdict}: about {needed[0]:.0f} pairs would tell"


def _treatments(points: Sequence[PointState]) -> Iterator[Treatment]:
    """Yield the treatments with an interval."""
    for state in points:
        values = {(series.metric, series.stat): series.middle for series in reversed(state.series)}
        low = values.get(("overhead_bound", "low"))
        mean = values.get(("overhead", "mean"))
        high = values.get(("overhead_bound", "high"))
        if low is not None and mean is not None and high is not None:
            yield Treatment(state, low, mean, high, float(state.params["limit"]))


def overhead(points: Sequence[PointState], rows: pa.Table) -> Iterator[tuple[str, Figure]]:
    """Yield the overhead of each treatment with its 95 % interval, its limit and its verdict."""
    treatments = list(_treatments(points))[:ROWS]
    if not treatments:
        return
    verdicts = [treatment.verdict for treatment in treatments]
    title = f"{verdicts.count('passes')} of {len(verdicts)} treatments pass"
    if len(treatments) == 1:
        title = f"Overhead {100 * treatments[0].mean:.1f}\u00a0%: {verdicts[0]}"
    key = "dot: mean; bar: 95 % interval, paired runs in ABBA order; shaded: beyond the limit"
    remarks = [key, *notes(points, rows)]
    fig, (ax,) = style.figure([0.9 + 0.42 * len(treatments)], title, remarks)
    above: Any = {"xytext": (0, 7), "textcoords": "offset points", "ha": "center"}
    tones = {"passes": style.BETTER, "fails": style.WORSE}
    for row, treatment in enumerate(treatments):
        tone = tones.get(treatment.verdict, style.UNCLEAR)
        interval = [treatment.low, treatment.high]
        ax.plot(interval, [row, row], color=tone, lw=2, gid="interval", label="_")
        ax.plot(treatment.mean, row, "o", color=tone, gid="mean", label=treatment.state.title)
        text = treatment.verdict if style.is_narrow() else treatment.text
        ax.annotate(text, (treatment.mean, row), color=tone, **above)
    limits = {treatment.limit for treatment in treatments}
    low = min(0.0, *limits, *(treatment.low for treatment in treatments))
    high = max(0.0, *limits, *(treatment.high for treatment in treatments))
    room = (high - low) * 0.1
    for limit in limits:
        ax.axvspan(limit, high + room, color=style.WORSE, alpha=0.06, gid="limit")
    ax.xaxis.set_major_formatter(lambda value, _: f"{value * 100:g} %")
    ax.set(
        xlim=(low - room, high + room),
        ylim=(len(treatments) - 0.4, -0.7),
        yticks=range(len(treatments)),
        yticklabels=[style.wrap(treatment.state.title) for treatment in treatments],
        xlabel="overhead, lower is better",
    )
    yield "overhead", fig


def headlines(states: Sequence[PointState], rows: pa.Table) -> Sequence[tuple[str, Figure]]:
    """Return the charts of a benchmark without a declaration: of its first headline metrics."""
    measured = list(chain.from_iterable(state.series for state in states))
    deciding = [series for series in measured if series.headline] or measured
    units: dict[str, set[str]] = {}
    for series in deciding:
        units.setdefault(series.metric, set()).add(series.unit)
    drawn = [name for name, of_metric in units.items() if len(of_metric) == 1]  # on one axis
    return figures(states, rows, [View((name,)) for name in drawn[:HEADLINES]])


def pair_figures(points: Sequence[PointState], rows: pa.Table) -> Iterator[tuple[str, Figure]]:
    """Yield a matrix for each point of pairs and each of its headline metrics.

    `rows` are those of the pairs.
    """
    groups = pair_groups(points)
    facts = facts_of_nodes(rows)
    for number, states in enumerate(groups):
        slug = f"pairs-{number + 1}" if len(groups) > 1 else "pairs"
        drawn = list(matrices(states))
        if not drawn:
            about = PairMatrix(states, "").label
            yield slug, style.no_data(f"{about}: no valid sample in {plural(len(states), 'pair')}")
        for matrix in drawn:
            yield f"{slug}-{matrix.metric.replace('_', '-')}", _matrix_figure(matrix, facts)


def _finding(matrix: PairMatrix, facts: Facts) -> tuple[str, list[str]]:
    """Return the slow node or link, and the facts in which the slow ones differ."""
    metric = matrix.info.label
    between = " between nodes" if matrix.on_one_node else ""
    if not matrix.between:
        return f"No valid sample{between}", []
    if not matrix.judges:
        series = next(iter(matrix.between.values()))
        value = amount(_middle(matrix), series.display_unit)
        reasons = [TOO_FEW] if series.better in ("higher", "lower") else []
        return f"{metric} {value} in the middle{between}", reasons
    if not matrix.slow:
        return f"No node and no link stands out in {metric}{between}", []
    worst, *others = matrix.slow
    title = f"Slow in {metric}{between}: {worst.text}"
    reasons = [why_slow(part, facts) for part in matrix.slow[:MOST_NAMES]]
    if others:
        title += f" and {len(others)} more"
        reasons.insert(0, "slow too: " + ", ".join(part.text for part in others[: MOST_NAMES - 1]))
    return title, reasons


def _middle(matrix: PairMatrix) -> float:
    """Return the median of the pairs between nodes, or of all where there is none."""
    series = (matrix.between or matrix.series).values()
    return float(np.median([line.middle for line in series]))


def _matrix_figure(matrix: PairMatrix, facts: Facts) -> Figure:
    """Draw the deviation of each pair from the median: without a slow one, there is no colour."""
    names = matrix.hosts
    count = len(names)
    title, reasons = _finding(matrix, facts)
    remarks = [*reasons, *_matrix_notes(matrix), matrix.title]
    fig, (ax,) = style.figure([min(6.5, 0.32 * count + 1.4)], title, remarks)
    grid = np.full((count, count), np.nan)
    for place, series in matrix.series.items():
        grid[place] = series.middle
    colours = _WORSE_TO_BETTER
    if matrix.info.better == "lower":
        colours = colours.reversed()
    texts = None
    if count <= (5 if style.is_narrow() else NUMBERS):
        texts = draw.cell_texts(grid, matrix.info.display_unit)
    norm = Normalize(-DEVIATION, DEVIATION)
    mesh = draw.heat(ax, grid / _middle(matrix) - 1, norm, colours, texts, missing="")
    hatch: Any = {"fill": False, "hatch": "////", "edgecolor": style.MUTED, "linewidth": 0}
    for first, second in sorted(matrix.on_one_node):
        xs = [second, second + 1, second + 1, second]
        ax.fill(xs, [first, first, first + 1, first + 1], gid="same-node", **hatch)
    failed = [place_of(state) for state in matrix.states if state.why]
    cross: Any = {"ls": "none", "marker": "X", "mfc": "none", "mec": style.INK, "ms": 8}
    ax.plot([x + 0.5 for _, x in failed], [y + 0.5 for y, _ in failed], gid="failed", **cross)
    step = max(1, count // (8 if style.is_narrow() else 24))
    places = np.arange(0, count, step) + 0.5
    ax.set_yticks(places, names[::step])
    rotation = 45 if max(map(len, names)) > 4 else 0
    ax.set_xticks(places, names[::step], rotation=rotation, ha="right")
    ax.set(ylim=(count, 0), ylabel="first host", xlabel="second host")
    bar = fig.colorbar(mesh, ax=ax, pad=0.01, extend="both")
    bar.ax.yaxis.set_major_formatter(lambda value, _: f"{100 * value:+g} %")
    bar.set_label("against the median")
    return fig


def _matrix_notes(matrix: PairMatrix) -> Iterator[str]:
    """Yield the number of samples, their spread, and what is missing."""
    measured = matrix.series.values()
    _, unit = scaled(matrix.info.display_unit, max(series.middle for series in measured))
    yield f"number: median in {unit} of n={span(len(series.values) for series in measured)}"
    parallel = int((matrix.states[0].shape.get("hosts") or {}).get("parallel_pairs", 1))
    yield f"concurrent: {parallel} pairs at once" if parallel > 1 else "one pair at a time"
    used = chain.from_iterable(state.nodes for state in matrix.states)
    shared = [len(set(nodes)) == 1 for nodes in used if len(nodes) > 1]
    if matrix.on_one_node:
        yield "hatched: both hosts on one node"
    elif shared and all(shared):
        yield "all hosts on one node"
    failed = sum(bool(state.why) for state in matrix.states)
    if failed:
        yield f"X: no valid sample ({failed})"


CHARTS: Mapping[str, Sequence[Chart]] = {
    "fio": (
        View(("iops", "bandwidth")),
        View(("latency",), stats=("p50", "p99", "p99.9"), slug="latency"),
        View(("completion_latency",), stats=("p50", "p99", "p99.99"), slug="percentiles"),
        View(("iops",), subjects=True, slug="workers"),
    ),
    "imb": (
        View(
            ("latency", "bandwidth"),
            stats=("mean", "value"),
            facet="benchmark",
            slug="sizes",
            x="message_bytes",
        ),
        View(("operation_time",), facet="benchmark", slug="operations"),
    ),
    "iperf": (
        View(
            ("throughput", "retransmits", "lost_fraction", "jitter"),
            facet="protocol",
            slug="throughput",
        ),
        View(("second_throughput",), x="second", facet="protocol", subjects=True, slug="seconds"),
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
        View(("bandwidth", "message_rate"), stats=("mean",), slug="sizes", x="message_bytes"),
    ),
    "rdma-latency": (
        View(("latency",), stats=("p50", "mean", "p99"), slug="sizes", x="message_bytes"),
    ),
    "resnet50": (
        View(("throughput",), x="batch", facet="scenario", slug="throughput"),
        View(("latency",), facet="scenario", stats=("p50", "p90", "p99"), slug="latency"),
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

"""The charts of each benchmark: one declaration each, and a function for what none can say."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from matplotlib.figure import Figure

from perfdag.charts import scale, style
from perfdag.charts.series import MARKS, notes
from perfdag.charts.view import ROWS, Chart, View, figures
from perfdag.results.summary import PointState, Series

HEADLINES = 3
"""Most metrics that are drawn of a benchmark without a declaration."""
LIMIT = 0.05
"""Overhead that is allowed where the suite sets no limit."""
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
    heights = (0.9 + 0.42 * len(states),)
    fig, (ax,) = style.figure(heights=heights, title=title, subtitle=subtitle)
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
        ax.annotate(text, (mean, row), color=colour, fontsize=8.5, **place)
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

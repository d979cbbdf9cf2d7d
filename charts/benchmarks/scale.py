"""Charts of runs at scale: lifecycle, S-curves, ECDF, order and API calls.

All times are in seconds. Objects that did not reach a stage are left out and counted, never drawn
as 0.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from perfdag.benchmark.contract import SIMULATED
from perfdag.charts import style
from perfdag.charts.benchmarks import generic
from perfdag.charts.benchmarks.deltas import plot_by_order
from perfdag.charts.benchmarks.stages import Stage, calls_of, of_results
from perfdag.units import plural


@style.in_house_style
def timeline(stages: Sequence[Stage]) -> Figure:
    """Draw when objects reached each stage: first to last, with the middle half and the median.

    Totals are left out.
    """
    moments = _moments(stages)
    if not moments:
        return style.no_data("no stage was reached")
    last = max(moments, key=lambda stage: max(stage.at))
    fig, (ax,) = style.figure(
        heights=(0.34 * len(moments) + 0.9,),
        title=f"The last object reached {last.name.replace('_', ' ')} after {max(last.at):.3g} s",
        subtitle="line: first to last object; bar: middle half; tick: median",
    )
    for row, stage in enumerate(reversed(moments)):
        low, quarter, middle, three, high = np.percentile(stage.at, [0, 25, 50, 75, 100])
        ax.plot([low, high], [row, row], color=style.SERIES[0], linewidth=1)
        ax.barh(row, three - quarter, left=quarter, height=0.5, color=style.SERIES[0], alpha=0.5)
        ax.plot([middle], [row], "|", color=style.INK, markersize=11, markeredgewidth=2)
    ax.set_yticks(range(len(moments)), [_label(stage) for stage in reversed(moments)])
    ax.set_xlabel("seconds from the first submission")
    ax.set_xlim(left=0)
    return fig


def _label(stage: Stage) -> str:
    missing = f" ({stage.missing} never)" if stage.missing else ""
    return f"{stage.name.replace('_', ' ')}{missing}"


def _moments(stages: Sequence[Stage]) -> list[Stage]:
    """Return the stages that were reached, without totals, which repeat another stage."""
    names = {stage.name for stage in stages if stage.at}
    return [stage for stage in stages if stage.at and stage.name.partition("_to_")[2] not in names]


CALLS = 6
"""Lines of the most frequent requests."""
_STARTS = ("submitted", "created")


def _total(stage: Stage, stages: Sequence[Stage]) -> bool:
    """Whether the time of a stage contains other stages: it begins with the object."""
    finer = any(
        one_stage.name.endswith(f"_to_{stage.name}") and one_stage.since not in _STARTS
        for one_stage in stages
    )
    return stage.since in _STARTS and (
        finer or "_to_" in stage.name or stage.name in ("workload_running", "workload_ready")
    )


def _slowest(stages: Sequence[Stage]) -> Stage | None:
    """Return the stage with the largest median. A total counts where there is nothing else."""
    own_stages = [stage for stage in stages if stage.seconds]
    own = [stage for stage in own_stages if not _total(stage, own_stages)] or own_stages
    return max(own, key=lambda stage: float(np.median(stage.seconds)), default=None)


@style.in_house_style
def s_curves(stages: Sequence[Stage]) -> Figure:
    """Draw how many objects have reached each stage over time. Totals are left out."""
    moments = _moments(stages)
    if not moments:
        return style.no_data("no stage was reached")
    widest = _slowest(stages) or moments[0]
    fig, (ax,) = style.figure(
        heights=(3.6,), title=f"The widest gap is before {widest.name.replace('_', ' ')}"
    )
    for k, stage in enumerate(moments):
        at = sorted(stage.at)
        look = {key: value for key, value in style.look(k).items() if key != "marker"}
        ax.step(
            [*at, at[-1]],
            [*range(1, len(at) + 1), len(at)],
            where="post",
            label=_label(stage),
            **look,
        )
    ax.set_xlabel("seconds from the first submission")
    ax.set_ylabel("objects that reached it")
    ax.set_ylim(bottom=0)
    _legend(ax)
    return fig


@style.in_house_style
def ecdf(stages: Sequence[Stage]) -> Figure:
    """Draw the share of objects by time, for each stage.

    Objects that did not reach a stage keep its curve below 1.
    """
    reached = [stage for stage in stages if stage.seconds]
    slow = _slowest(stages)
    if slow is None:
        return style.no_data("no stage was reached")
    fig, (ax,) = style.figure(
        heights=(3.6,),
        title=f"Slowest stage: {slow.name.replace('_', ' ')}, "
        f"median {np.median(slow.seconds):.3g} s",
    )
    for k, stage in enumerate(reached):
        values = sorted(stage.seconds)
        total = len(values) + stage.missing
        look = {key: value for key, value in style.look(k).items() if key != "marker"}
        ax.step(
            values,
            [(i + 1) / total for i in range(len(values))],
            where="post",
            label=_label(stage),
            **look,
        )
    ax.set_xlabel("seconds since the stage before")
    ax.set_ylabel("share of objects")
    ax.set_ylim(0, 1.02)
    _legend(ax)
    return fig


def _legend(ax: Axes) -> None:
    """Place a long legend beside the curves, so that it does not cover them."""
    if len(ax.get_lines()) > len(style.SERIES):
        ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    else:
        ax.legend(loc="best")


@style.in_house_style
def by_order(stages: Sequence[Stage]) -> Figure:
    """Draw the latency of each stage by order of submission: does it grow with the objects?"""
    reached = [stage for stage in stages if stage.seconds]
    if not reached:
        return style.no_data("no stage was reached")
    fig, axes = style.figure(
        len(reached),
        (1.5,),
        title="Latency by order of submission",
        subtitle="line: running median",
        sharex=True,
    )
    for k, (ax, stage) in enumerate(zip(axes, reached, strict=True)):
        plot_by_order(ax, stage.order, stage.seconds, k)
        ax.set_title(f"{_label(stage)} since {stage.since.replace('_', ' ')}")
        ax.set_ylabel("seconds")
    axes[-1].set_xlabel("object, in order of submission")
    return fig


@style.in_house_style
def api_calls(counts: Mapping[int, Mapping[str, float]], of: str = "vms") -> Figure:
    """Draw requests over the number of VMs (or `of` objects), a line for each frequent request.

    The slope is the requests for each object.
    """
    what = {"vms": "VM", "objects": "object"}[of]
    sizes = sorted(counts)
    if not sizes:
        return style.no_data("no API calls were counted")
    total: dict[str, float] = defaultdict(float)
    for calls in counts.values():
        for call, count in calls.items():
            total[call] += count
    names = sorted(total, key=lambda name: -total[name])[:CALLS]
    top = names[0]
    per = counts[sizes[-1]].get(top, 0.0) / sizes[-1]
    title = f"{per:.3g} x {top} for each {what} at {sizes[-1]} {what}s"
    if len(sizes) == 1:
        return _calls_of_one(counts[sizes[0]], names, title)
    fig, (ax,) = style.figure(heights=(3.4,), title=title)
    for k, name in enumerate(names):
        ax.plot(sizes, [counts[size].get(name, 0.0) for size in sizes], label=name, **style.look(k))
    ax.set_xlabel(f"{what}s")
    ax.set_ylabel("requests")
    ax.set_ylim(bottom=0)
    ax.legend(loc="upper left")
    return fig


def _calls_of_one(counts: Mapping[str, float], names: Sequence[str], title: str) -> Figure:
    fig, (ax,) = style.figure(heights=(0.6 + 0.3 * len(names),), title=title)
    bars = ax.barh(
        names, [counts.get(name, 0.0) for name in names], color=style.SERIES[0], height=0.7
    )
    ax.bar_label(bars, padding=3, fmt="{:.0f}")
    ax.invert_yaxis()
    ax.set_xlabel("requests")
    ax.margins(x=0.1)
    return fig


def drawings(rows: pa.Table) -> Iterable[tuple[str, Figure]]:
    """Yield charts of objects and API calls: a set for each entry and size."""
    fake = any(SIMULATED in (text or "") for text in rows["tool"].unique().to_pylist())
    groups, calls = of_results(rows), calls_of(rows)
    for group in groups:
        own = f"-{group.entry}-{group.count}" if len(groups) > 1 else ""
        caption = f"{group.entry}: {plural(group.count, 'object')}" + (
            f", the last of {group.samples} samples" if group.samples > 1 else ""
        )
        for name, draw in (
            ("lifecycle", timeline),
            ("s-curves", s_curves),
            ("ecdf", ecdf),
            ("order", by_order),
        ):
            yield f"{name}{own}", _with_caption(draw(group.stages), caption, fake)
    for (entry, of), by_verb in calls.items():
        yield (
            f"api-calls-{entry}" if len(calls) > 1 else "api-calls",
            _with_caption(api_calls(by_verb, of), entry, fake),
        )


def _with_caption(figure: Figure, caption: str, fake: bool) -> Figure:
    """Write a caption under a figure. It says where nodes were simulated."""
    with style.house():
        text = f"{caption}; {SIMULATED}: the control plane alone" if fake else caption
        layout, room = figure.get_layout_engine(), 0.18 / figure.get_figheight()
        if isinstance(layout, ConstrainedLayoutEngine):
            left, bottom, width, height = layout.get()["rect"]
            layout.set(rect=(left, bottom + room, width, height - room))
        figure.text(0.988, 0.004, text, ha="right", va="bottom", fontsize=7.5, color=style.MUTED)
    return figure


def figures(rows: pa.Table) -> Iterable[tuple[str, Figure]]:
    """Yield charts of the benchmarks scale, vmi-burst and vmi-steady."""
    yield from drawings(rows)
    aggregate = rows.filter(pa.compute.is_null(rows["subject"]))
    aggregate = aggregate.filter(
        pa.compute.invert(
            pa.compute.is_in(aggregate["metric"], pa.array(["api_calls", "failures"]))
        )
    )
    yield from generic.figures(aggregate)

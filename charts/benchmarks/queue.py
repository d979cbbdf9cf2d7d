"""Charts of queue scaling: plain data in, a Figure out. Rates in items a second, times in seconds."""

import itertools
import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from perfdag.charts import style
from perfdag.stats.fairness import jain


@dataclass(frozen=True)
class Curve:
    """Throughput of one workload: replicas -> items a second of each repetition, and the law fitted to it where there is one.

    `law` is (items a second of one replica, sigma, kappa) of the Universal Scalability Law, `knee` the replicas beyond which it falls, `amdahl`
    the serial share by Amdahl's law. `gains`: replicas -> throughput relative to the step before, with its interval. `done`, `failed`: items
    done and requests failed by node, or by node and device. `latencies`: percentile -> replicas -> seconds.
    """

    name: str
    rates: Mapping[int, Sequence[float]]
    law: tuple[float, float, float] | None = None
    knee: float | None = None
    amdahl: float | None = None
    gains: Mapping[int, tuple[float, float, float]] = field(default_factory=dict)
    done: Mapping[str, float] = field(default_factory=dict)
    failed: Mapping[str, float] = field(default_factory=dict)
    latencies: Mapping[str, Mapping[int, float]] = field(default_factory=dict)

    @property
    def places(self) -> list[str]:
        """Nodes, or nodes and devices, that did anything or failed."""
        return sorted({*self.done, *self.failed})


@dataclass(frozen=True)
class Follow:
    """One queue under a changing load: seconds, backends there, backends needed, requests that wait and the longest wait in seconds.

    The last two are NaN where they were not had at a moment, and empty where they never were.
    """

    name: str
    at: Sequence[float]
    have: Sequence[float]
    needed: Sequence[float]
    depth: Sequence[float] = ()
    wait: Sequence[float] = ()


def throughput(curves: Sequence[Curve], title: str, subtitle: str) -> Figure:
    """Items a second over replicas with linear scaling and the fitted laws, one panel a workload; below it the share of linear, what
    each step gained, and the latency of requests.
    """
    curves = [curve for curve in curves if curve.rates]
    if not curves:
        return style.no_data()
    panels = [_rates, _shares]
    panels += [_gains] if any(curve.gains for curve in curves) else []
    panels += [_latencies] if any(curve.latencies for curve in curves) else []
    rows = len(panels)
    fig, axes = style.figure(
        rows,
        (3.2, *[1.5] * (rows - 1)),
        columns=len(curves),
        title=title,
        subtitle=subtitle,
        sharex="col",
    )
    for k, curve in enumerate(curves):
        for row, panel in enumerate(panels):
            panel(axes[row * len(curves) + k], curve, first=k == 0)
        axes[(rows - 1) * len(curves) + k].set_xlabel("replicas")
    return fig


def spread(curves: Sequence[Curve], title: str, subtitle: str) -> Figure:
    """Share of the items by node and device with the share of an even spread, and beside it what failed there, where anything did; one row
    of panels a workload.
    """
    curves = [curve for curve in curves if curve.places]
    panels = (
        [(_done, "share of the items (%); dashed: evenly spread")]
        if any(curve.done for curve in curves)
        else []
    )
    panels += [(_failed, "failed requests")] if any(curve.failed for curve in curves) else []
    if not panels:
        return style.no_data()
    titles = [
        textwrap.wrap(_fairness(curve), 96 // len(panels), break_on_hyphens=False)
        for curve in curves
    ]
    heights = [
        0.35 + 0.15 * len(lines) + 0.22 * len(curve.places)
        for lines, curve in zip(titles, curves, strict=True)
    ]
    heights[-1] += 0.3  # the axis of all
    shared: dict[str, Any] = {
        "sharex": "col",
        "sharey": "row",
        "width_ratios": (2.6, 1)[: len(panels)],
    }
    fig, axes = style.figure(
        len(curves), heights, len(panels), title=title, subtitle=subtitle, **shared
    )
    for number, curve in enumerate(curves):
        row = axes[number * len(panels) : (number + 1) * len(panels)]
        for ax, (draw, _) in zip(row, panels, strict=True):
            draw(ax, curve)
            ax.grid(axis="y", visible=False)
        row[0].set_yticks(range(len(curve.places)), curve.places)
        row[0].set_ylim(len(curve.places) - 0.5, -0.5)
        row[0].set_title("\n".join(titles[number]))
    for k, (_, label) in enumerate(panels):
        most = max(ax.dataLim.x1 for ax in axes[k :: len(panels)])
        ticks = MaxNLocator(5 - 2 * k, integer=True).tick_values(0, most)
        axes[k].set_xlim(0, 1.55 * most)  # room for the words beside the dots
        axes[k].set_xticks([tick for tick in ticks if tick <= most])
        axes[k - len(panels)].set_xlabel(label)
    return fig


def _fairness(curve: Curve) -> str:
    if not curve.done or len(curve.places) == 1:
        return curve.name
    index = jain([curve.done.get(name, 0.0) for name in curve.places])
    return f"{curve.name}: Jain's fairness index {index:.3f} (1: even, {1 / len(curve.places):.3g}: one did all)"


def _done(ax: Axes, curve: Curve) -> None:
    total = sum(curve.done.values())
    if not total:
        ax.text(
            0.5,
            0.5,
            "no valid repetition",
            ha="center",
            va="center",
            color=style.MUTED,
            transform=ax.transAxes,
        )
        return
    items = [curve.done.get(name, 0.0) for name in curve.places]
    ax.axvline(100 / len(curve.places), color=style.MUTED, linestyle=(0, (5, 2)), linewidth=1)
    shares = [100 * count / total for count in items]
    _dots(
        ax,
        shares,
        [f"{share:.1f} %, {count:.0f} items" for share, count in zip(shares, items, strict=True)],
        0,
    )


def _failed(ax: Axes, curve: Curve) -> None:
    counts = [curve.failed.get(name, math.nan) for name in curve.places]
    _dots(ax, counts, [f"{count:.0f}" for count in counts], 1)


def _dots(ax: Axes, values: Sequence[float], words: Sequence[str], look: int) -> None:
    """Values from the top down, each with its words beside it; NaN is none."""
    ax.plot(
        values,
        range(len(values)),
        linestyle="none",
        marker=style.MARKERS[look],
        color=style.SERIES[look],
        clip_on=False,
    )
    paper = {"facecolor": style.PAPER, "edgecolor": "none", "pad": 0.5}
    for at, (value, word) in enumerate(zip(values, words, strict=True)):
        if not math.isnan(value):
            ax.annotate(
                word,
                (value, at),
                xytext=(7, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
                bbox=paper,
            )


def _rates(ax: Axes, curve: Curve, first: bool) -> None:
    replicas = sorted(curve.rates)
    middle = [float(np.median(curve.rates[n])) for n in replicas]
    low, high = [min(curve.rates[n]) for n in replicas], [max(curve.rates[n]) for n in replicas]
    one = middle[0] / replicas[0]
    xs = np.linspace(replicas[0], replicas[-1], 200)
    ax.plot(xs, one * xs, color=style.MUTED, linestyle=(0, (5, 2)), linewidth=1, label="linear")
    if curve.law:
        rate, sigma, kappa = curve.law
        knee = f"predicted knee {curve.knee:.0f}" if curve.knee else "no knee"
        label = f"USL: serial {100 * sigma:.1f} %,\ncoherence {100 * kappa:.2f} %, {knee}"
        ax.plot(
            xs,
            rate * xs / (1 + sigma * (xs - 1) + kappa * xs * (xs - 1)),
            color=style.SERIES[1],
            label=label,
        )
    if curve.amdahl is not None:
        falling = one * xs / (1 + curve.amdahl * (xs - 1))
        ax.plot(
            xs,
            falling,
            color=style.SERIES[2],
            linestyle=(0, (1, 1.5)),
            label=f"Amdahl: serial {100 * curve.amdahl:.1f} %",
        )
    spread = [
        [m - a for m, a in zip(middle, low, strict=True)],
        [b - m for m, b in zip(middle, high, strict=True)],
    ]
    ax.errorbar(
        replicas,
        middle,
        yerr=spread,
        color=style.SERIES[0],
        marker="o",
        linestyle="none",
        capsize=3,
        label="measured",
    )
    ax.set_title(curve.name)
    ax.set_ylim(bottom=0)
    ax.legend(loc="upper left")
    if first:
        ax.set_ylabel("throughput (items/s)\nhigher is better")


def _shares(ax: Axes, curve: Curve, first: bool) -> None:
    replicas = sorted(curve.rates)
    one = float(np.median(curve.rates[replicas[0]])) / replicas[0]
    shares = [100 * float(np.median(curve.rates[n])) / (n * one) for n in replicas]
    ax.axhline(100, color=style.MUTED, linestyle=(0, (5, 2)), linewidth=1)
    ax.plot(replicas, shares, color=style.SERIES[0], marker="o")
    ax.set_xticks(replicas, [str(n) for n in replicas])
    ax.set_ylim(0, max(110.0, *shares))
    if first:
        ax.set_ylabel("efficiency (%)")


def _gains(ax: Axes, curve: Curve, first: bool) -> None:
    replicas = sorted(curve.gains)
    middle, low, high = (np.array([curve.gains[n][k] for n in replicas]) for k in range(3))
    before = {n: few for few, n in itertools.pairwise(sorted(curve.rates))}
    linear = [n / before[n] if n in before else np.nan for n in replicas]
    ax.plot(replicas, linear, color=style.MUTED, linestyle=(0, (5, 2)), linewidth=1, marker="_")
    ax.errorbar(
        replicas,
        middle,
        yerr=[middle - low, high - middle],
        color=style.SERIES[0],
        marker="o",
        linestyle="none",
        capsize=3,
    )
    ax.set_ylim(bottom=min(0.9, *low) if replicas else 0.9)
    if first:
        ax.set_ylabel("gain of a step")


def _latencies(ax: Axes, curve: Curve, first: bool) -> None:
    for number, (stat, seconds) in enumerate(sorted(curve.latencies.items())):
        replicas = sorted(seconds)
        ax.plot(
            replicas,
            [seconds[n] for n in replicas],
            color=style.SERIES[number],
            marker="o",
            label=stat,
        )
    ax.set_ylim(bottom=0)
    if curve.latencies:
        ax.legend(loc="upper left")
    if first:
        ax.set_ylabel("latency (s)\nlower is better")


def following(traces: Sequence[Follow], title: str, subtitle: str) -> Figure:
    """Backends over time against those needed: what is above the need is wasted, what is below is missing. Below them the requests that wait
    and the longest wait, where these are known. The panels of a queue stand under each other.
    """
    traces = [trace for trace in traces if trace.at]
    if not traces:
        return style.no_data()
    shown = [(trace, draw, height) for trace in traces for draw, height in _panels(trace)]
    heights = [height for _, _, height in shown]
    fig, axes = style.figure(len(shown), heights, title=title, subtitle=subtitle, sharex=True)
    for ax, (trace, draw, _) in zip(axes, shown, strict=True):
        draw(ax, trace)
        ax.set_ylim(bottom=0)
    fig.align_ylabels(axes)
    axes[0].legend(loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0)
    axes[-1].set_xlabel("seconds from the start of the load")
    return fig


def _panels(trace: Follow) -> Iterator[tuple[Callable[[Axes, Follow], None], float]]:
    """What is drawn of a queue, and its height in inches."""
    yield _backends, 1.9
    if trace.depth:
        yield _depth, 1.0
    if trace.wait:
        yield _wait, 1.0


def _backends(ax: Axes, trace: Follow) -> None:
    at, have, needed = (
        np.asarray(values, dtype=float) for values in (trace.at, trace.have, trace.needed)
    )
    ax.step(at, have, where="post", color=style.SERIES[0], label="backends")
    ax.step(
        at,
        needed,
        where="post",
        color=style.INK,
        linestyle=(0, (5, 2)),
        linewidth=1,
        label="needed",
    )
    edges, above, below = np.repeat(at, 2)[1:], np.repeat(have, 2)[:-1], np.repeat(needed, 2)[:-1]
    ax.fill_between(
        edges,
        below,
        np.maximum(above, below),
        color=style.SERIES[4],
        alpha=0.4,
        linewidth=0,
        label="wasted",
    )
    ax.fill_between(
        edges,
        below,
        np.minimum(above, below),
        color=style.SERIES[1],
        alpha=0.4,
        linewidth=0,
        label="missing",
    )
    ax.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    ax.set_ylabel("backends")
    ax.set_title(trace.name)


def _depth(ax: Axes, trace: Follow) -> None:
    ax.step(trace.at, trace.depth, where="post", color=style.SERIES[2])
    ax.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    ax.set_ylabel("requests\nwaiting")


def _wait(ax: Axes, trace: Follow) -> None:
    ax.step(trace.at, trace.wait, where="post", color=style.SERIES[3])
    name = style.value_axis(ax.yaxis, "s", max(1e-3, float(np.nanmax(trace.wait))), bins=3)
    ax.set_ylabel(f"longest\nwait ({name})")

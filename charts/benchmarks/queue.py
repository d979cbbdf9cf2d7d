"""Charts of the scaling of a queue. Rates are in items/s, times in seconds."""

import itertools
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from perfdag.charts import style
from perfdag.stats.robust import jain


@dataclass(frozen=True)
class Curve:
    """Throughput of one workload: replicas -> items/s of each repetition, and its fitted laws.

    `law` is (items/s of one replica, sigma, kappa) of the Universal Scalability Law. `amdahl` is
    the serial share by Amdahl's law. `gains` maps replicas to the throughput relative to the step
    before, with its interval. `done` and `failed` map nodes, or nodes and devices, to items done
    and requests failed. `latencies` maps percentile and replicas to seconds.
    """

    name: str
    rates: Mapping[int, Sequence[float]]
    law: tuple[float, float, float] | None = None
    amdahl: float | None = None
    gains: Mapping[int, tuple[float, float, float]] = field(default_factory=dict)
    done: Mapping[str, float] = field(default_factory=dict)
    failed: Mapping[str, float] = field(default_factory=dict)
    latencies: Mapping[str, Mapping[int, float]] = field(default_factory=dict)

    @property
    def places(self) -> list[str]:
        """Nodes, or nodes and devices, with items done or requests failed."""
        return sorted({*self.done, *self.failed})


def throughput(curves: Sequence[Curve], title: str, subtitle: str) -> Figure:
    """Draw throughput over replicas with linear scaling and fitted laws, one column a workload.

    Below it stand the share of linear scaling, the gain of each step, and the latency of requests.
    """
    curves = [curve for curve in curves if curve.rates]
    if not curves:
        return style.no_data()
    panels = [_rates, _shares]
    panels += [_gains] if any(curve.gains for curve in curves) else []
    panels += [_latencies] if any(curve.latencies for curve in curves) else []
    rows = len(panels)
    width = 84 // len(curves)
    names = [textwrap.fill(curve.name, width, break_on_hyphens=False) for curve in curves]
    curves = [replace(curve, name=name) for curve, name in zip(curves, names, strict=True)]
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
    """Draw the share of items by node and device beside an even share, one row per workload.

    Failed requests stand beside it where there are any.
    """
    curves = [curve for curve in curves if curve.places]
    panels = (
        [(_done, "share of the items (%); dashed: evenly spread")]
        if any(curve.done for curve in curves)
        else []
    )
    panels += [(_failures, "failed requests")] if any(curve.failed for curve in curves) else []
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
    common: dict[str, Any] = {
        "sharex": "col",
        "sharey": "row",
        "width_ratios": (2.6, 1)[: len(panels)],
    }
    fig, axes = style.figure(
        len(curves), heights, len(panels), title=title, subtitle=subtitle, **common
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
    least = f"{1 / len(curve.places):.3g}: one did all"
    return f"{curve.name}: Jain's fairness index {index:.3f} (1: even, {least})"


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


def _failures(ax: Axes, curve: Curve) -> None:
    counts = [curve.failed.get(name, math.nan) for name in curve.places]
    _dots(ax, counts, [f"{count:.0f}" for count in counts], 1)


def _dots(ax: Axes, values: Sequence[float], words: Sequence[str], look: int) -> None:
    """Draw values from the top down with words beside them. NaN is not drawn."""
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
    single = middle[0] / replicas[0]
    xs = np.linspace(replicas[0], replicas[-1], 200)
    ax.plot(xs, single * xs, color=style.MUTED, linestyle=(0, (5, 2)), linewidth=1, label="linear")
    if curve.law:
        rate, sigma, kappa = curve.law
        label = f"USL: serial {100 * sigma:.1f} %,\ncoherence {100 * kappa:.2f} %"
        ax.plot(
            xs,
            rate * xs / (1 + sigma * (xs - 1) + kappa * xs * (xs - 1)),
            color=style.SERIES[1],
            label=label,
        )
    if curve.amdahl is not None:
        falling = single * xs / (1 + curve.amdahl * (xs - 1))
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
    single = float(np.median(curve.rates[replicas[0]])) / replicas[0]
    shares = [100 * float(np.median(curve.rates[n])) / (n * single) for n in replicas]
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

"""Charts of queue scaling: plain data in, a Figure out. Rates in items a second, times in seconds."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from perfdag.charts import style


@dataclass(frozen=True)
class Curve:
    """Throughput of one workload: replicas -> items a second of each repetition, and the law fitted to it where there is one.

    `law` is (items a second of one replica, sigma, kappa) of the Universal Scalability Law, `knee` the replicas beyond which it falls, `amdahl`
    the serial share by Amdahl's law. `gains`: replicas -> throughput relative to the step before, with its interval. `done`: items by
    node, or by node and device. `latencies`: percentile -> replicas -> seconds.
    """

    name: str
    rates: Mapping[int, Sequence[float]]
    law: tuple[float, float, float] | None = None
    knee: float | None = None
    amdahl: float | None = None
    gains: Mapping[int, tuple[float, float, float]] = field(default_factory=dict)
    done: Mapping[str, float] = field(default_factory=dict)
    latencies: Mapping[str, Mapping[int, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Follow:
    """One queue under a changing load: seconds, backends there, backends needed."""

    name: str
    at: Sequence[float]
    have: Sequence[float]
    needed: Sequence[float]


def throughput(curves: Sequence[Curve], title: str, subtitle: str) -> Figure:
    """Items a second over replicas with linear scaling and the fitted laws, one panel a workload; below it the share of linear, what
    each step gained, and the latency of requests."""
    curves = [curve for curve in curves if curve.rates]
    if not curves:
        return style.no_data()
    panels = [_rates, _shares]
    panels += [_gains] if any(curve.gains for curve in curves) else []
    panels += [_latencies] if any(curve.latencies for curve in curves) else []
    rows = len(panels)
    fig, axes = style.figure(rows, (3.2, *[1.5] * (rows - 1)), columns=len(curves), title=title, subtitle=subtitle, sharex="col")
    for k, curve in enumerate(curves):
        for row, panel in enumerate(panels):
            panel(axes[row * len(curves) + k], curve, first=k == 0)
        axes[(rows - 1) * len(curves) + k].set_xlabel("replicas")
    return fig


def spread(curves: Sequence[Curve], title: str, subtitle: str) -> Figure:
    """Share of the items by node and device at the most replicas, one panel a workload, with the share of an even spread."""
    curves = [curve for curve in curves if sum(curve.done.values())]
    if not curves:
        return style.no_data()
    heights = [0.5 + 0.22 * len(curve.done) for curve in curves]
    fig, axes = style.figure(len(curves), heights, title=title, subtitle=subtitle, sharex=True)
    for ax, curve in zip(axes, curves, strict=True):
        total = sum(curve.done.values())
        names = sorted(curve.done, reverse=True)
        bars = ax.barh(names, [100 * curve.done[name] / total for name in names], color=style.SERIES[0], height=0.7)
        ax.bar_label(
            bars, [f"{100 * curve.done[name] / total:.1f} %, {curve.done[name]:.0f} items" for name in names], padding=3, fontsize=8
        )
        ax.axvline(100 / len(names), color=style.MUTED, linestyle=(0, (5, 2)), linewidth=1)
        ax.set_title(curve.name)
        ax.grid(axis="y", visible=False)
    axes[-1].set_xlim(0, 125)
    axes[-1].set_xticks(range(0, 101, 20))
    axes[-1].set_xlabel("share of the items (%); dashed: evenly spread")
    return fig


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
        ax.plot(xs, rate * xs / (1 + sigma * (xs - 1) + kappa * xs * (xs - 1)), color=style.SERIES[1], label=label)
    if curve.amdahl is not None:
        falling = one * xs / (1 + curve.amdahl * (xs - 1))
        ax.plot(xs, falling, color=style.SERIES[2], linestyle=(0, (1, 1.5)), label=f"Amdahl: serial {100 * curve.amdahl:.1f} %")
    spread = [[m - a for m, a in zip(middle, low, strict=True)], [b - m for m, b in zip(middle, high, strict=True)]]
    ax.errorbar(replicas, middle, yerr=spread, color=style.SERIES[0], marker="o", linestyle="none", capsize=3, label="measured")
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
    ax.errorbar(replicas, middle, yerr=[middle - low, high - middle], color=style.SERIES[0], marker="o", linestyle="none", capsize=3)
    ax.set_ylim(bottom=min(0.9, *low) if replicas else 0.9)
    if first:
        ax.set_ylabel("gain of a step")


def _latencies(ax: Axes, curve: Curve, first: bool) -> None:
    for number, (stat, seconds) in enumerate(sorted(curve.latencies.items())):
        replicas = sorted(seconds)
        ax.plot(replicas, [seconds[n] for n in replicas], color=style.SERIES[number], marker="o", label=stat)
    ax.set_ylim(bottom=0)
    if curve.latencies:
        ax.legend(loc="upper left")
    if first:
        ax.set_ylabel("latency (s)\nlower is better")


def following(traces: Sequence[Follow], title: str, subtitle: str) -> Figure:
    """Backends over time against those needed, one panel a queue; what is above the need is wasted, what is below is missing."""
    traces = [trace for trace in traces if trace.at]
    if not traces:
        return style.no_data()
    fig, axes = style.figure(len(traces), (1.9,), title=title, subtitle=subtitle, sharex=True)
    for ax, trace in zip(axes, traces, strict=True):
        at, have, needed = (np.asarray(values, dtype=float) for values in (trace.at, trace.have, trace.needed))
        ax.step(at, have, where="post", color=style.SERIES[0], label="backends")
        ax.step(at, needed, where="post", color=style.INK, linestyle=(0, (5, 2)), linewidth=1, label="needed")
        edges, above, below = np.repeat(at, 2)[1:], np.repeat(have, 2)[:-1], np.repeat(needed, 2)[:-1]
        ax.fill_between(edges, below, np.maximum(above, below), color=style.SERIES[4], alpha=0.4, linewidth=0, label="wasted")
        ax.fill_between(edges, below, np.minimum(above, below), color=style.SERIES[1], alpha=0.4, linewidth=0, label="missing")
        ax.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        ax.set_ylim(bottom=0)
        ax.set_ylabel("backends")
        ax.set_title(trace.name)
    axes[0].legend(loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0)
    axes[-1].set_xlabel("seconds from the start of the load")
    return fig

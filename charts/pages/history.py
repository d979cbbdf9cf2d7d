"""Charts of the history of a suite: levels and change points, recent runs, and noise."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from perfdag.charts.style import INK, MUTED, PNG_DPI, SERIES, arrow, figure, no_data, value_axis
from perfdag.regress.history import Series
from perfdag.regress.series import RunInfo
from perfdag.stats.robust import Array
from perfdag.stats.variability import Variability

A_PAGE = 12
SHOWN = 120
"""Runs of a small multiple; older ones are left out, which the subtitle says."""
BLUE_ORANGE = LinearSegmentedColormap.from_list(
    "perfdag-diverging", [SERIES[1], "#f6f6f4", SERIES[0]]
)
CLIP = 20.0
"""Per cent at which the overview's colours end."""


def pages(series: Sequence[Series], runs: Sequence[RunInfo], title: str) -> list[Figure]:
    """Draw small multiples of run medians, twelve per page in two columns.

    A band is the spread within a run, a line the level. A change is a dashed line with its size. A
    failed run is a tick at the foot, a change of the environment a mark on top.
    """
    if not series or not runs:
        return [no_data("no runs")]
    first = max(0, len(runs) - SHOWN)
    count = f"{len(runs) - first} of {len(runs)}"
    shown = f"runs {runs[first].run_id[:8]} to {runs[-1].run_id[:8]} ({count})"
    figures = []
    for start in range(0, len(series), A_PAGE):
        part = series[start : start + A_PAGE]
        rows = math.ceil(len(part) / 2)
        number = f", page {start // A_PAGE + 1}" if len(series) > A_PAGE else ""
        subtitle = (
            f"{shown}; points: run medians, band: range or interval within the run, line: level; "
            f"mark on top: kernel, image or tool changed, at the foot: failed samples{number}"
        )
        fig, axes = figure(rows=rows, heights=(1.55,), columns=2, title=title, subtitle=subtitle)
        fig.set_dpi(PNG_DPI)
        for ax, line in zip(axes, part, strict=False):
            _multiple(ax, line, runs, first)
        for ax in axes[len(part) :]:
            ax.set_axis_off()
        figures.append(fig)
    return figures


def _multiple(ax: Axes, series: Series, runs: Sequence[RunInfo], first: int) -> None:
    """One small multiple."""
    x = np.arange(first, len(runs))
    value, low, high = series.value[first:], series.low[first:], series.high[first:]
    ok = np.isfinite(value)
    ax.fill_between(
        x[ok], low[ok], high[ok], color=SERIES[0], alpha=0.18, linewidth=0, gid="spread"
    )
    ax.plot(
        x[ok],
        value[ok],
        linestyle="none",
        marker=".",
        markersize=3.5,
        color=SERIES[0],
        gid="medians",
    )
    for level in series.levels:
        if level.end > first:
            ax.plot(
                [max(level.start, first), level.end - 1],
                [level.value] * 2,
                color=INK,
                linewidth=1.1,
                gid="level",
            )
    for finding in series.findings:
        if finding.index < first:
            continue
        colour = {"worse": SERIES[1], "better": SERIES[0]}.get(finding.word, MUTED)
        ax.axvline(
            finding.index - 0.5, color=colour, linestyle=(0, (3, 2)), linewidth=1, gid="change"
        )
        ax.annotate(
            f"{finding.size} {finding.run[4:6]}-{finding.run[6:8]}",
            (finding.index - 0.5, 1),
            xycoords=("data", "axes fraction"),
            xytext=(-2, -2),
            textcoords="offset points",
            ha="right",
            va="top",
            fontsize=7,
            color=colour,
        )
    failed = [
        i for i in range(first, len(runs)) if runs[i].points.get(series.info.point, (0, 0))[1]
    ]
    ax.plot(
        failed,
        [0.03] * len(failed),
        transform=ax.get_xaxis_transform(),
        linestyle="none",
        marker="|",
        color=MUTED,
        gid="failed",
    )
    moved = [i for i in range(first + 1, len(runs)) if _versions(runs[i]) != _versions(runs[i - 1])]
    ax.plot(
        moved,
        [1.0] * len(moved),
        transform=ax.get_xaxis_transform(),
        linestyle="none",
        marker=7,
        markersize=4,
        color=INK,
        clip_on=False,
        gid="environment",
    )
    largest = float(np.nanmax(np.abs(value))) if ok.any() else 1.0
    unit = value_axis(ax.yaxis, series.info.unit, largest, bins=4)
    ax.set_title(f"{_short(series.name)} ({unit})" if unit else _short(series.name), fontsize=7.5)
    ax.set_xlim(first - 1, len(runs))
    ax.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: _day(runs, v)))
    ax.tick_params(labelsize=7)
    ax.set_ylabel(arrow(series.info.better), fontsize=6.5)


def _versions(run: RunInfo) -> dict[str, str]:
    return {key: value for key, value in run.env.items() if key != "nodes"}


def _day(runs: Sequence[RunInfo], position: float) -> str:
    i = round(position)
    return (
        f"{runs[i].run_id[4:6]}-{runs[i].run_id[6:8]}"
        if 0 <= i < len(runs) and abs(i - position) < 0.01
        else ""
    )


def _short(name: str, limit: int = 52) -> str:
    return name if len(name) <= limit else f"{name[: limit - 3]}..."


def overview(
    names: Sequence[str], better: Sequence[str], effects: Array, runs: Sequence[RunInfo], title: str
) -> Figure:
    """Draw series by recent runs as a heat map: orange for worse, blue for better."""
    if not len(names) or not effects.size:
        return no_data("no runs")
    good = np.array(
        [
            1.0 if direction == "higher" else -1.0 if direction == "lower" else 0.0
            for direction in better
        ]
    )
    signed = 100 * effects * good[:, None]
    size = np.nan_to_num(np.abs(effects)).max(axis=1)
    kept = np.sort(np.argsort(-size, kind="stable")[:60])
    subtitle = (
        "against the level of each series; orange is worse, blue is better, hatched: no value; "
        f"numbers: %; {len(kept)} of {len(names)} series"
    )
    fig, (ax,) = figure(heights=(max(1.4, 0.16 * len(kept) + 0.9),), title=title, subtitle=subtitle)
    fig.set_dpi(PNG_DPI)
    shown = np.ma.masked_invalid(signed[kept])
    ax.patch.set(hatch="////", edgecolor=MUTED, facecolor="white")
    mesh = ax.pcolormesh(shown, cmap=BLUE_ORANGE, vmin=-CLIP, vmax=CLIP, gid="overview")
    for (i, j), value in np.ndenumerate(100 * effects[kept]):
        if np.isfinite(value) and abs(value) >= 5 and len(kept) * effects.shape[1] <= 900:
            ax.text(
                j + 0.5, i + 0.5, f"{value:.0f}", ha="center", va="center", fontsize=5.5, color=INK
            )
    ax.set_yticks(np.arange(len(kept)) + 0.5, [_short(names[i], 44) for i in kept], fontsize=7)
    step = max(1, len(runs) // 10)
    ax.set_xticks(
        np.arange(0, len(runs), step) + 0.5,
        [f"{r.run_id[4:6]}-{r.run_id[6:8]}" for r in runs[::step]],
        fontsize=7,
    )
    ax.invert_yaxis()
    ax.grid(visible=False)
    bar = fig.colorbar(mesh, ax=ax, shrink=0.9, pad=0.01, extend="both")
    bar.set_label("worse   %   better", fontsize=7.5)
    return fig


def noise(report: Sequence[tuple[str, Variability]], title: str) -> Figure:
    """Draw the noise of each series, sorted: within runs, between runs and between nodes."""
    kept = [item for item in report if item[1].between or item[1].within][:60]
    if not kept:
        return no_data("too few runs to tell the noise")
    subtitle = (
        "detectable: change found nine times in ten with 20 runs before and 3 after; "
        "above 10 % between runs a series pages nobody"
    )
    fig, (ax,) = figure(heights=(max(1.6, 0.19 * len(kept) + 0.8),), title=title, subtitle=subtitle)
    fig.set_dpi(PNG_DPI)
    kinds = (
        ("within runs", "within", "o", SERIES[5]),
        ("between runs", "between", "s", SERIES[0]),
        ("between nodes", "nodes", "^", SERIES[1]),
        ("detectable", "detectable", "|", INK),
    )
    for label, attribute, marker, colour in kinds:
        at = [
            (100 * value, y)
            for y, (_, item) in enumerate(kept)
            if (value := getattr(item, attribute))
        ]
        if at:
            ax.plot(
                *zip(*at, strict=True),
                linestyle="none",
                marker=marker,
                color=colour,
                label=label,
                gid=attribute,
            )
    ax.set_xscale("log")
    for guide in (1, 2, 5, 10):
        ax.axvline(guide, color=MUTED, linewidth=0.7, linestyle=(0, (2, 2)), zorder=0)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    ax.set_yticks(range(len(kept)), [_short(name) for name, _ in kept], fontsize=7)
    ax.invert_yaxis()
    ax.set_xlabel("relative noise (%)")
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, fontsize=7)
    return fig

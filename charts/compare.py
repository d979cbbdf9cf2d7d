"""Charts of comparisons: the forest plot of effects with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from perfdag.charts.style import INK, MUTED, PNG_DPI, SERIES, figure, no_data

MOST_ROWS = 60
COLOURS = {"better": SERIES[0], "worse": SERIES[1], "differs": SERIES[3]}
"""Blue and orange keep apart with every common colour blindness; what is not shown is grey."""
MARKERS = {"better": "^", "worse": "v", "differs": "D", "no difference shown": "o", "inconclusive": "o"}


@dataclass(frozen=True)
class Effect:
    """One line of the plot: relative effect (0.1 is +10 %) and its interval, None where the noise is unknown."""

    label: str
    effect: float
    low: float | None
    high: float | None
    word: str


def forest(effects: Sequence[Effect], title: str, subtitle: str = "", absolute: int = 0) -> Figure:
    """Effects sorted by size, one line each, the largest gain on top; grey is not shown, hollow is inconclusive.

    Above 60 series those with a verdict come first and the rest is left out, which the subtitle says, as it does how many are not
    drawn because they are compared in their own unit (`absolute`).
    """
    if not effects:
        return no_data(f"{absolute} series, compared in their own unit: see the table" if absolute else "no series in common")
    if absolute:
        subtitle += f"; not drawn: {absolute} compared in their own unit"
    shown = sorted(effects, key=lambda each: (each.word not in COLOURS, -abs(each.effect)))[:MOST_ROWS]
    shown.sort(key=lambda each: each.effect)
    if len(shown) < len(effects):
        subtitle += f"; {len(shown)} of {len(effects)} series, largest effects"
    fig, (ax,) = figure(heights=(max(1.6, 0.19 * len(shown) + 0.7),), title=title, subtitle=subtitle)
    fig.set_dpi(PNG_DPI)  # long labels are laid out at the resolution they are drawn at, or hinting pushes them off the edge
    for y, each in enumerate(shown):
        colour = COLOURS.get(each.word, MUTED)
        if each.low is not None and each.high is not None:
            ax.plot([100 * each.low, 100 * each.high], [y, y], color=colour, linewidth=1.6, gid="interval", zorder=2)
        ax.plot(
            [100 * each.effect],
            [y],
            marker=MARKERS.get(each.word, "o"),
            color=colour,
            markerfacecolor="none" if each.word == "inconclusive" else colour,
            linestyle="none",
            gid=each.word.replace(" ", "-"),
            zorder=3,
        )
    ax.axvline(0, color=INK, linewidth=0.9, zorder=1)
    ax.set_yticks(range(len(shown)), [each.label for each in shown], fontsize=7.5)
    ax.set_ylim(-0.7, len(shown) - 0.3)
    ax.grid(axis="y", visible=False)
    ax.set_xlabel("B against A (%)")
    return fig

"""Charts of comparisons: a forest plot of effects, and ratios by message size."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, TwoSlopeNorm
from matplotlib.figure import Figure

from perfdag.charts.style import (
    INK,
    MUTED,
    ON_PALE,
    PALE,
    PAPER,
    PNG_DPI,
    SERIES,
    caption,
    figure,
    in_house_style,
    no_data,
    on_cell,
    size_columns,
)

MOST_ROWS = 60
COLOURS = {"better": SERIES[0], "worse": SERIES[1]}
"""Blue and orange keep apart with every common colour blindness; what is not shown is grey."""
MARKERS = {"better": "^", "worse": "v"}


@dataclass(frozen=True)
class Effect:
    """One line of the plot: relative effect (0.1 is +10 %), and its interval if known."""

    label: str
    effect: float
    low: float | None
    high: float | None
    word: str


@in_house_style
def forest(effects: Sequence[Effect], title: str, subtitle: str = "", absolute: int = 0) -> Figure:
    """Draw effects sorted by size, the largest gain on top.

    Grey is the same, hollow markers are unclear. Above 60 series, those with a
    verdict come first. The subtitle counts what is left out and what has its own unit (`absolute`).
    """
    if not effects:
        return no_data(
            f"{absolute} series, compared in their own unit: see the table"
            if absolute
            else "no series in common"
        )
    if absolute:
        subtitle += f"; not drawn: {absolute} compared in their own unit"
    largest = sorted(effects, key=lambda effect: (effect.word not in COLOURS, -abs(effect.effect)))[
        :MOST_ROWS
    ]
    largest.sort(key=lambda effect: effect.effect)
    if len(largest) < len(effects):
        subtitle += f"; {len(largest)} of {len(effects)} series, largest effects"
    fig, (ax,) = figure(
        heights=(max(1.6, 0.19 * len(largest) + 0.7),), title=title, subtitle=subtitle
    )
    # Lay out long labels at the resolution of the file, or hinting pushes them off the edge.
    fig.set_dpi(PNG_DPI)
    for y, effect in enumerate(largest):
        colour = COLOURS.get(effect.word, MUTED)
        if effect.low is not None and effect.high is not None:
            ax.plot(
                [100 * effect.low, 100 * effect.high],
                [y, y],
                color=colour,
                linewidth=1.6,
                gid="interval",
                zorder=2,
            )
        ax.plot(
            [100 * effect.effect],
            [y],
            marker=MARKERS.get(effect.word, "o"),
            color=colour,
            markerfacecolor="none" if effect.word == "unclear" else colour,
            linestyle="none",
            gid=effect.word,
            zorder=3,
        )
    ax.axvline(0, color=INK, linewidth=0.9, zorder=1)
    ax.set_yticks(range(len(largest)), [effect.label for effect in largest], fontsize=7.5)
    ax.set_ylim(-0.7, len(largest) - 0.3)
    ax.grid(axis="y", visible=False)
    ax.set_xlabel("B against A (%)")
    return fig


@dataclass(frozen=True)
class Ratio:
    """One cell of the map: relative effect of B at a message size in bytes, and the verdict."""

    row: str
    size: float
    effect: float
    word: str


@in_house_style
def ratios(cells: Sequence[Ratio], title: str, subtitle: str = "") -> Figure:
    """Draw log2 of B over A by message size: blue for better, orange for worse, blank for noise."""
    cells = [cell for cell in cells if cell.effect > -1]
    if not cells:
        return no_data("no series over message sizes in common")
    rows = list(dict.fromkeys(cell.row for cell in cells))
    sizes = sorted({cell.size for cell in cells})
    first_rows = rows[:MOST_ROWS]
    grid = np.full((len(first_rows), len(sizes)), np.nan)
    words: dict[tuple[int, int], str] = {}
    for cell in cells:
        if cell.row in first_rows and cell.word != "same":
            y, x = first_rows.index(cell.row), sizes.index(cell.size)
            sign = {"better": 1, "worse": -1}.get(cell.word)
            grid[y, x] = np.nan if sign is None else sign * abs(math.log2(1 + cell.effect))
            words[y, x] = f"{100 * cell.effect:+.0f}"
    legend = (
        "number: % that B differs from A; blue: better, orange: worse; "
        "blank: same; number without colour: unclear"
    )
    legend += (
        f"; first {len(first_rows)} of {len(rows)} rows" if len(first_rows) < len(rows) else ""
    )
    heights = (0.26 * len(first_rows) + 1.1,)
    fig, (ax,) = figure(
        heights=heights,
        title=title,
        subtitle=caption(legend, subtitle),
    )
    fig.set_dpi(PNG_DPI)  # as in forest
    most = max([0.1, *np.abs(grid[np.isfinite(grid)])])
    colours = LinearSegmentedColormap.from_list("verdicts", [SERIES[1], PALE, SERIES[0]])
    edges = np.arange(len(sizes) + 1), np.arange(len(first_rows) + 1)
    ax.set_facecolor(PALE)
    mesh = ax.pcolormesh(
        *edges,
        grid,
        cmap=colours,
        norm=TwoSlopeNorm(0.0, -most, most),
        gid="ratios",
        edgecolors=PAPER,
        linewidth=0.5,
    )
    for (y, x), word in words.items():
        colour = on_cell(mesh, grid[y, x]) if np.isfinite(grid[y, x]) else ON_PALE
        ax.text(x + 0.5, y + 0.5, word, ha="center", va="center", fontsize=5.5, color=colour)
    ax.set_yticks(np.arange(len(first_rows)) + 0.5, first_rows, fontsize=7.5)
    ax.invert_yaxis()
    size_columns(ax, sizes)
    ax.grid(visible=False)
    return fig

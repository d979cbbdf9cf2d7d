"""Charts of comparisons: a forest plot of effects, and ratios by message size."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, TwoSlopeNorm
from matplotlib.figure import Figure

from perfdag.analysis.verdict import counts
from perfdag.charts.style import (
    BETTER,
    INK,
    MUTED,
    ON_PALE,
    PALE,
    PAPER,
    PNG_DPI,
    UNCLEAR,
    WORSE,
    figure,
    in_house_style,
    no_data,
    on_cell,
)
from perfdag.stats.levels import Word
from perfdag.units import setting

MOST_ROWS = 60
COLOURS = {"better": BETTER, "worse": WORSE, "unclear": UNCLEAR}
MARKERS = {"better": "^", "worse": "v"}
STEPS = (1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 4.0)
"""Ratios that the axis can name."""
MOST_DOUBLINGS = 2.0
"""Doublings or halvings beyond which an effect or an interval ends in an arrow head."""


@dataclass(frozen=True)
class Effect:
    """One line of the plot: relative effect (0.1 is +10 %), and its interval if known."""

    label: str
    effect: float
    low: float | None
    high: float | None
    word: Word


@in_house_style
def forest(effects: Sequence[Effect], title: str, subtitle: str = "", absolute: int = 0) -> Figure:
    """Draw B over A on a log axis, the worse series first, then the better ones, by size.

    The others are drawn where no series is worse or better. The subtitle counts what is left out
    and what has its own unit (`absolute`).
    """
    if not effects:
        return no_data(
            f"{absolute} series, compared in their own unit: see the table"
            if absolute
            else "no series in common"
        )
    if absolute:
        subtitle += f"; not drawn: {absolute} compared in their own unit"
    decided = [effect for effect in effects if effect.word in MARKERS]
    largest = sorted(decided or effects, key=lambda e: (e.word != "worse", -abs(_log2(e.effect))))
    largest, left = largest[:MOST_ROWS], largest[MOST_ROWS:]
    left += [effect for effect in effects if decided and effect.word not in MARKERS]
    if left:
        subtitle += f"; not drawn: {counts([effect.word for effect in left])}"
    limit = 1.1 * min(MOST_DOUBLINGS, max(0.14, *(abs(_log2(e.effect)) for e in largest)))
    fig, (ax,) = figure(
        heights=(max(1.6, 0.19 * len(largest) + 0.7),), title=title, subtitle=subtitle
    )
    # Lay out long labels at the resolution of the file, or hinting pushes them off the edge.
    fig.set_dpi(PNG_DPI)
    for y, effect in enumerate(largest):
        colour = COLOURS.get(effect.word, MUTED)
        marks: list[tuple[float, str, str]] = [
            (effect.effect, MARKERS.get(effect.word, "o"), effect.word)
        ]
        if effect.low is not None and effect.high is not None:
            ends = [max(_log2(effect.low), -limit), min(_log2(effect.high), limit)]
            ax.plot(ends, [y, y], color=colour, linewidth=1.6, gid="interval", zorder=2)
            marks += [(effect.low, "|", "end"), (effect.high, "|", "end")]
        for value, mark, gid in marks:
            x = _log2(value)
            ax.plot(
                [min(max(x, -limit), limit)],
                [y],
                marker=">" if x > limit else "<" if x < -limit else mark,
                color=colour,
                markerfacecolor="none" if effect.word == "unclear" else colour,
                linestyle="none",
                gid=gid,
                zorder=3,
                clip_on=False,
            )
    ax.axvline(0, color=INK, linewidth=0.9, zorder=1)
    ax.set_yticks(range(len(largest)), [effect.label for effect in largest], fontsize=7.5)
    ax.set_ylim(len(largest) - 0.3, -0.7)
    ax.grid(axis="y", visible=False)
    ax.set_xlim(-limit, limit)
    steps = [step for step in STEPS if step <= 2**limit][-2:]
    ticks = sorted([1.0, *steps, *(1 / step for step in steps)])
    ax.set_xticks(np.log2(ticks), [f"{100 * (tick - 1):+.3g} %" for tick in ticks])
    ax.set_xlabel("B against A, log scale")
    return fig


def _log2(effect: float) -> float:
    """Return the logarithm to base 2 of the ratio that a relative effect stands for."""
    return math.log2(1 + effect) if effect > -1 else -math.inf


@dataclass(frozen=True)
class Ratio:
    """One cell of the map: relative effect of B at a message size in bytes, and the verdict."""

    row: str
    size: float
    effect: float
    word: Word


@in_house_style
def ratios(cells: Sequence[Ratio], title: str, subtitle: str = "") -> Figure:
    """Draw log2 of B over A by message size: teal is better, red worse, blank the same."""
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
        "number: % that B differs from A; teal: better, red: worse; "
        "blank: same; number without colour: unclear"
    )
    legend += (
        f"; first {len(first_rows)} of {len(rows)} rows" if len(first_rows) < len(rows) else ""
    )
    heights = (0.26 * len(first_rows) + 1.1,)
    fig, (ax,) = figure(
        heights=heights,
        title=title,
        subtitle=f"{legend}; {subtitle}".removesuffix("; "),
    )
    fig.set_dpi(PNG_DPI)  # as in forest
    most = max([0.1, *np.abs(grid[np.isfinite(grid)])])
    colours = LinearSegmentedColormap.from_list("verdicts", [WORSE, PALE, BETTER])
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
    step = max(1, len(sizes) // 10)
    ticks = [setting("message", int(size)) for size in sizes[::step]]
    ax.set_xticks(np.arange(0, len(sizes), step) + 0.5, ticks)
    ax.set_xlabel("message size")
    ax.grid(visible=False)
    return fig

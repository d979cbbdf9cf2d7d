"""The house style of charts: colours, units on axes, and marks of failures."""

import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from perfdag.units import scaled, short

INK = "#1f2328"
MUTED = "#667080"
GRID = "#dde1e6"
PAPER = "#ffffff"
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
WORSE = "#b3261e"
BETTER = "#006a7a"
UNCLEAR = "#7a5200"
"""Colours of verdicts, as in report.css. They keep apart with every common colour blindness."""
MARKERS = ("o", "s", "^", "D", "v", "P")
DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 2)),
    (0, (1, 1.5)),
    (0, (5, 1.5, 1, 1.5)),
    (0, (8, 2)),
    (0, (3, 1, 1, 1, 1, 1)),
)
PNG_DPI = 144


@dataclass(frozen=True)
class Size:
    """The width of a figure in inches, and the letters in a line of its title and subtitle."""

    width: float
    title: int
    subtitle: int


PHONE = Size(3.75, 34, 48)
HALF = Size(6.75, 70, 100)
FULL = Size(13.75, 145, 205)
"""The widths of a phone, and of half a page and a page of 1,320 pixels.

A page shows a point as 4/3 pixels, so that all letters have one size.
"""
_OURS: Any = {
    **{name: value for name, value in matplotlib.rcParamsDefault.items() if name != "backend"},
    "axes.axisbelow": True,
    "axes.edgecolor": MUTED,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.labelsize": 9,
    "axes.linewidth": 0.7,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": MUTED,
    "axes.titlelocation": "left",
    "axes.titlesize": 9,
    "axes.unicode_minus": False,
    "figure.facecolor": PAPER,
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "svg.fonttype": "none",
    "svg.hashsalt": "perfdag",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": MUTED,
    "xtick.labelcolor": INK,
    "xtick.labelsize": 9,
    "ytick.color": MUTED,
    "ytick.labelcolor": INK,
    "ytick.labelsize": 9,
}
"""Every setting, so that nothing of a user's matplotlibrc counts."""
house = partial(matplotlib.rc_context, _OURS)
"""Applies the house style, also as a decorator, while figures are drawn and written."""
_NARROW = ContextVar("narrow", default=False)


@contextmanager
def narrow() -> Iterator[None]:
    """Draw figures for a phone: legends below, fewer ticks, and no numbers in small cells."""
    before = _NARROW.set(True)
    try:
        yield
    finally:
        _NARROW.reset(before)


def is_narrow() -> bool:
    """Return whether figures are drawn for a phone."""
    return _NARROW.get()


def wrap(name: str, width: int = 0) -> str:
    """Return a name in at most three lines of `width` letters, or as long as a row has room for."""
    width = width or (16 if is_narrow() else 30)
    lines = textwrap.wrap(name, width, max_lines=3, placeholder=" ...", break_on_hyphens=False)
    return "\n".join(lines or [name])


def figure(
    heights: Sequence[float],
    title: str = "",
    remarks: Iterable[str] = (),
    *,
    wide: bool = False,
    sharex: bool = False,
) -> tuple[Figure, list[Axes]]:
    """Return a figure, half a page wide or a page, and its panels of `heights` inches.

    `title` is the result in words, and `remarks` say how to read it; empty ones are left out.
    """
    size = PHONE if is_narrow() else FULL if wide else HALF
    subtitle = "; ".join(filter(None, remarks))
    title_lines = textwrap.wrap(title, size.title, break_on_hyphens=False)
    subtitle_lines = textwrap.wrap(subtitle, size.subtitle, break_on_hyphens=False)
    # In inches; places in a figure are shares of its height from below.
    title_height = 0.2 * len(title_lines)
    head = title_height + 0.17 * len(subtitle_lines) + 0.1
    height = sum(heights) + head
    below_head = (0, 0, 1, 1 - head / height)
    layout = ConstrainedLayoutEngine(rect=below_head, h_pad=0.06, w_pad=0.03, hspace=0.03)
    fig = Figure(figsize=(size.width, height), layout=layout)
    axes = fig.subplots(len(heights), squeeze=False, height_ratios=heights, sharex=sharex)
    big: Any = {"fontsize": 11, "fontweight": "bold", "color": INK}
    fig.text(0.002, 1 - 0.06 / height, "\n".join(title_lines), va="top", gid="title", **big)
    top = 1 - (0.09 + title_height) / height
    fig.text(0.002, top, "\n".join(subtitle_lines), va="top", gid="subtitle", color=MUTED)
    return fig, list(axes.flat)


def no_data(reason: str = "no data") -> Figure:
    """Return a figure with a message instead of data."""
    lines = textwrap.wrap(reason, 34 if is_narrow() else 60)
    fig, (ax,) = figure([1.0 + 0.2 * len(lines)])
    ax.set_axis_off()
    text = "\n".join(lines)
    ax.text(0.5, 0.5, text, color=MUTED, ha="center", va="center", transform=ax.transAxes)
    return fig


def look(index: int) -> tuple[str, str, Any]:
    """Return colour, marker and dash of a series by number. A repeated colour has another dash."""
    repetition, k = divmod(index, len(SERIES))
    return SERIES[k], MARKERS[k], DASHES[(k + repetition) % len(DASHES)]


HOVERS: WeakKeyDictionary[Line2D, list[str]] = WeakKeyDictionary()
"""Texts for the marks of lines: the SVG shows one where the mouse is on the mark."""


def linear_axis(axis: Any, unit: str, largest: float) -> str:
    """Set the ticks of an axis whose limits are set, in a base unit. Return the unit's name."""
    factor, name = scaled(unit, largest)
    # round numbers of the scaled unit, whose factor may be a power of two
    low, high = np.divide(axis.get_view_interval(), factor)
    ticks = MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    axis.set_major_locator(FixedLocator(np.multiply(ticks, factor).tolist()))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / factor:.6g}"))
    return name


def log_axis(axis: Any, unit: str) -> None:
    """Set the ticks of a log axis in a base unit, with the unit at each."""
    low, high = sorted(axis.get_view_interval())
    decades = math.log10(high / low) if low > 0 else 9
    across = axis.axis_name == "x"  # labels stand side by side there, and need more room
    subs = (1.0, 3.0) if decades < (1.2 if across else 2.5) else (1.0,)
    ticks = 4 if across and is_narrow() else 12
    axis.set_major_locator(LogLocator(base=10, subs=subs, numticks=ticks))
    axis.set_major_formatter(FuncFormatter(lambda value, _: short(value, unit)))
    axis.set_minor_locator(NullLocator())  # a tenth of the time of a chart, for ticks nobody reads


def axis_label(metric: str, unit: str, better: str | None) -> str:
    """Return the label of an axis: `throughput (Gbit/s), higher is better`."""
    name = metric + (f" ({unit})" if unit else "")
    return f"{name}, {better} is better" if better in ("higher", "lower") else name


def on_cell(mesh: ScalarMappable, value: float) -> str:
    """Return the colour of text on the cell of a value: the one with more contrast.

    The luminance is that of https://www.w3.org/TR/WCAG22/#dfn-relative-luminance.
    """
    rgb = np.asarray(mesh.to_rgba(np.array([value])))[0, :3]
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    luminance = linear @ (0.2126, 0.7152, 0.0722)
    # not black and white, which a page changes for its dark mode
    return "#000001" if luminance > 0.179 else "#fffffe"

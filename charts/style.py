"""House style: colours, units on axes, marks of failures, and reproducible files."""

import io
import math
import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from perfdag.units import short

INK, MUTED, GRID, PAPER = "#1f2328", "#667080", "#dde1e6", "#ffffff"
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
MARKERS = ("o", "s", "^", "D", "v", "P")
DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 2)),
    (0, (1, 1.5)),
    (0, (5, 1.5, 1, 1.5)),
    (0, (8, 2)),
    (0, (3, 1, 1, 1, 1, 1)),
)
WIDTH = 7.2  # inches
PNG_DPI = 144
RC: Any = {
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
    "axes.titlesize": 8.5,
    "axes.unicode_minus": False,
    "figure.facecolor": PAPER,
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "svg.fonttype": "none",
    "svg.hashsalt": "perfdag",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": MUTED,
    "xtick.labelcolor": INK,
    "xtick.labelsize": 8.5,
    "ytick.color": MUTED,
    "ytick.labelcolor": INK,
    "ytick.labelsize": 8.5,
}


@contextmanager
def house() -> Iterator[None]:
    """The house style while figures are made and written."""
    with matplotlib.rc_context(RC):
        yield


def figure(
    rows: int = 1,
    heights: Sequence[float] = (3.2,),
    columns: int = 1,
    title: str = "",
    subtitle: str = "",
    **shared: Any,
) -> tuple[Figure, list[Axes]]:
    """A figure of WIDTH inches with `rows` panels of `heights` inches each, and its axes, row by row.

    `title` says the finding, `subtitle` how many samples, what the band is, and of which run. `shared` goes to Figure.subplots
    (sharex, sharey).
    """
    named = "=" in title.split(" ", 1)[0]  # `bs=4KiB` is how a suite writes it
    lines = textwrap.wrap(
        title if named else title[:1].upper() + title[1:], 78, break_on_hyphens=False
    )
    under = textwrap.wrap(subtitle, 104, break_on_hyphens=False)
    all_heights = [heights[min(i, len(heights) - 1)] for i in range(rows)]
    head = 0.2 * len(lines) + 0.17 * len(under) + 0.1
    with house():
        room = (0, 0, 1, 1 - head / (sum(all_heights) + head))
        layout = ConstrainedLayoutEngine(rect=room, h_pad=0.06, w_pad=0.05, hspace=0.03)
        fig = Figure(figsize=(WIDTH, sum(all_heights) + head), layout=layout)
        axes = fig.subplots(rows, columns, squeeze=False, height_ratios=all_heights, **shared)
        top = sum(all_heights) + head
        if lines:
            fig.text(
                0.012,
                1 - 0.06 / top,
                "\n".join(lines),
                va="top",
                fontsize=11,
                fontweight="bold",
                color=INK,
                gid="title",
            )
        if under:
            at = 1 - (0.09 + 0.2 * len(lines)) / top
            fig.text(
                0.012, at, "\n".join(under), va="top", fontsize=8.5, color=MUTED, gid="subtitle"
            )
    return fig, list(axes.flat)


def no_data(why: str = "no data") -> Figure:
    """Return a figure that says there is nothing to draw."""
    fig, (ax,) = figure(heights=(1.2,))
    ax.set_axis_off()
    ax.text(
        0.5, 0.5, why, ha="center", va="center", color=MUTED, fontsize=12, transform=ax.transAxes
    )
    return fig


def look(index: int) -> dict[str, Any]:
    """Colour, marker and dash of the series with that number; a colour that comes again has another dash."""
    again, k = divmod(index, len(SERIES))
    return {
        "color": SERIES[k],
        "marker": MARKERS[k],
        "linestyle": DASHES[(k + again) % len(DASHES)],
    }


_PREFIXES = {
    "s": [(1e-6, "us"), (1e-3, "ms"), (1.0, "s")],
    "B": [(2.0 ** (10 * p), f"{n}B") for p, n in enumerate(("", "Ki", "Mi", "Gi", "Ti", "Pi"))],
}
for _unit in ("bit/s", "B/s", "1/s"):
    _name = "/s" if _unit == "1/s" else _unit
    _PREFIXES[_unit] = [
        (10.0 ** (3 * p), f"{n}{_name}") for p, n in enumerate(("", "k", "M", "G", "T", "P"))
    ]


def scaled(unit: str, largest: float) -> tuple[float, str]:
    """(factor, name) of the multiple of a base unit that suits values up to `largest`: ("bit/s", 2e10) gives (1e9, "Gbit/s")."""
    steps = _PREFIXES.get(unit, [(1.0, "" if unit == "1" else unit)])
    fitting = [step for step in steps if step[0] <= abs(largest)] if math.isfinite(largest) else []
    return fitting[-1] if fitting else steps[0]


class _ScaledLocator(MaxNLocator):
    """Round numbers of the scaled unit, not of the base unit (matters where the factor is a power of two)."""

    def __init__(self, factor: float, nbins: int) -> None:
        super().__init__(nbins=nbins, steps=[1, 2, 2.5, 5, 10])
        self._by = factor

    def tick_values(self, vmin: float, vmax: float) -> Any:
        return np.asarray(super().tick_values(vmin / self._by, vmax / self._by)) * self._by


def value_axis(axis: Any, unit: str, largest: float, *, log: bool = False, bins: int = 6) -> str:
    """Ticks of an axis that carries values in a base unit; returns the unit's name for the axis label ("" where ticks carry it)."""
    if log:
        _log10_ticks(axis, unit)
        return ""
    factor, name = scaled(unit, largest)
    axis.set_major_locator(_ScaledLocator(factor, bins))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / factor:.6g}"))
    return name


def _log10_ticks(axis: Any, unit: str) -> None:
    low, high = sorted(axis.get_view_interval())
    decades = math.log10(high / low) if low > 0 else 9
    wide = axis.axis_name == "x"  # labels stand side by side there, and need more room
    subs = (
        (1.0, 2.0, 5.0)
        if decades < (1.2 if wide else 2.5)
        else (1.0, 3.0)
        if decades < 2.5
        else (1.0,)
    )
    axis.set_major_locator(LogLocator(base=10, subs=subs, numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: short(value, unit)))
    axis.set_minor_locator(NullLocator())  # a tenth of the time of a chart, for ticks nobody reads


def size_axis(
    axis: Any, sizes: Sequence[float], unit: str = "B", zero: float | None = None
) -> None:
    """Ticks of a log2 axis at the sizes that are there, at most about ten, labelled `4 B`, `64 KiB`, `1 MiB`.

    `zero` is the place left of the smallest size where a size of zero is drawn, since a log axis has none.
    """
    some = sorted({size for size in sizes if size > 0})
    step = max(1, math.ceil(len(some) / 10))
    ticks = [
        *([zero] if zero is not None else []),
        *some[step - 1 if zero is not None else 0 :: step],
    ]

    def say(value: float, _: int | None = None) -> str:
        size = 0.0 if value == zero else value
        return short(size, "B").replace(" ", "\n") if unit == "B" else f"{size:.6g}"

    axis.set_major_locator(FixedLocator(ticks))
    axis.set_major_formatter(FuncFormatter(say))
    axis.set_minor_locator(NullLocator())


def size_columns(ax: Axes, sizes: Sequence[float]) -> None:
    """Names of message sizes in bytes under the columns of a map, about ten of them."""
    step = max(1, len(sizes) // 10)
    ax.set_xticks(
        np.arange(0, len(sizes), step) + 0.5,
        [short(size, "B").replace(" ", "\n") for size in sizes[::step]],
    )
    ax.set_xlabel("message size")


def arrow(better: str | None) -> str:
    """Return the better direction, such as `higher is better`, or nothing where there is none."""
    return f"{better} is better" if better in ("higher", "lower") else ""


def metric_text(metric: str) -> str:
    """Return the name of a metric for people: `user CPU` for `user_cpu`."""
    return re.sub(
        r"\b(iops|cpu|rtt|gpu|api)\b", lambda match: match[0].upper(), metric.replace("_", " ")
    )


def axis_label(metric: str, unit: str, better: str | None) -> str:
    """`throughput (Gbit/s), higher is better`."""
    name = metric_text(metric)
    return ", ".join(part for part in (f"{name} ({unit})" if unit else name, arrow(better)) if part)


def cross(ax: Axes, x: Sequence[float], y: Sequence[float], transform: Any = None) -> None:
    """Hollow grey crosses: points that have no valid sample. One artist."""
    ax.plot(
        x,
        y,
        linestyle="none",
        marker="X",
        markersize=8,
        markerfacecolor="none",
        markeredgecolor=MUTED,
        markeredgewidth=1.1,
        clip_on=False,
        transform=transform or ax.transData,
        gid="failed",
        zorder=4,
    )


_FONT = re.compile(rb"'DejaVu Sans'(, sans-serif)?")
_ID = re.compile(rb' id="([^"]*)"')
_USED = re.compile(rb'(?:url\(#|xlink:href="#)([^")]+)')
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")


def to_bytes(fig: Figure) -> tuple[bytes, bytes]:
    """A figure as (SVG, PNG). No date, no random ids: equal input gives equal bytes."""
    with house(), warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "Glyph .* missing"
        )  # names in any script: the browser's fonts have them
        svg, png = io.BytesIO(), io.BytesIO()
        engine = fig.get_layout_engine()
        if engine is not None:
            engine.execute(fig)
            # laid out once, both files share it; with any engine, a placeholder too, each saving would draw the figure twice
            fig.set_layout_engine(None)
            _round_positions(fig)
        fig.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
        fig.savefig(png, format="png", dpi=PNG_DPI, metadata={"Software": None})
    return _clean(svg.getvalue()), png.getvalue()


def _round_positions(fig: Figure) -> None:
    """The layout's solver differs from process to process in the last bits, which ids in the SVG are made of."""
    for axes in fig.axes:
        x, y, width, height = axes.get_position(original=True).bounds
        axes.set_position((round(x, 6), round(y, 6), round(width, 6), round(height, 6)))


def _clean(svg: bytes) -> bytes:
    """Only ids that are used (artists of several panels share theirs), characters XML allows, and a font list for other machines."""
    used = set(_USED.findall(svg))
    svg = _ID.sub(lambda match: match[0] if match[1] in used else b"", svg)
    return _FONT.sub(b"'DejaVu Sans', Verdana, sans-serif", _CONTROL.sub(b" ", svg))

"""resnet50-overhead: the interval of a cost against its limit."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from perfdag.charts import style
from perfdag.charts.benchmarks.generic import pages
from perfdag.charts.benchmarks.resnet50_marks import with_marks
from perfdag.charts.dots import wrap
from perfdag.charts.series import Cell, read, runs_words

LIMIT = 0.05


def figures(rows: pa.Table) -> Iterable[tuple[str, Figure]]:
    """Yield overhead with its 95 % interval, limit and verdict."""
    cells = read(rows)
    where = runs_words(rows)
    intervals = [(cell, *interval) for cell in cells if (interval := _interval(cell)) is not None]
    if not intervals:
        yield "overhead", style.no_data(f"{cells[0].label}: {cells[0].why or 'no interval'}"[:110])
        return
    title = _finding(intervals)
    for slug, some, note in pages(cells, "overhead"):
        yield slug, _intervals(some, title, style.caption(note, where))


def _finding(intervals: Sequence[tuple[Cell, float, float, float]]) -> str:
    """Return the title: the only overhead and its verdict, or how many treatments pass."""
    words = [verdict(low, high, limit_of(cell)) for cell, _, low, high in intervals]
    if len(intervals) > 1:
        return f"{words.count('passes')} of {len(intervals)} treatments pass"
    cell, mean, low, high = intervals[0]
    title = f"Overhead {mean * 100:.1f} % ({low * 100:.1f} to {high * 100:.1f} %): {words[0]}"
    return with_marks(title, _coords(cell))


def _intervals(cells: Sequence[Cell], title: str, where: str) -> Figure:
    """Draw a row a point: its interval and verdict, or a cross and the reason."""
    subtitle = (
        f"dot: mean; bar: 95 % interval, paired runs in ABBA order; dashed: the limit; {where}"
    )
    fig, (ax,) = style.figure(heights=(1.0 + 0.45 * len(cells),), title=title, subtitle=subtitle)
    ends, limits = [0.0], {limit_of(cell) for cell in cells}
    for row, cell in enumerate(cells):
        if (interval := _interval(cell)) is None:
            _reason(ax, row, cell.why or "no interval")
            continue
        _bar(ax, row, cell, *interval)
        ends += interval
    for limit in limits:
        ax.axvline(limit, color=style.INK, linestyle=(0, (4, 2)), linewidth=1)
    ends += limits
    room = (max(ends) - min(ends)) * 0.08
    ax.set_xlim(min(ends) - room, max(ends) + room)
    ax.xaxis.set_major_formatter(lambda value, _: f"{value * 100:g} %")
    ax.set_yticks(range(len(cells)), [wrap(cell.label) for cell in cells])
    ax.set_ylim(len(cells) - 0.4, -0.6)
    ax.set_xlabel("overhead of the treatment, lower is better")
    return fig


def _bar(ax: Axes, row: int, cell: Cell, mean: float, low: float, high: float) -> None:
    word = verdict(low, high, limit_of(cell))
    color = {"passes": style.BETTER, "fails": style.WORSE}.get(word, style.UNCLEAR)
    ax.errorbar(
        [mean],
        [row],
        xerr=[[mean - low], [high - mean]],
        fmt="o",
        color=color,
        capsize=4,
        mfc="none" if cell.why else color,
    )
    ax.annotate(
        _words(cell, word),
        (mean, row),
        xytext=(0, 7),
        textcoords="offset points",
        ha="center",
        fontsize=8,
    )


def _reason(ax: Axes, row: int, why: str) -> None:
    left = ax.get_yaxis_transform()
    style.cross(ax, [0.0], [row], left)
    words = textwrap.shorten(why, 80, placeholder=" ...")
    ax.text(0.025, row, words, transform=left, va="center", fontsize=8, color=style.MUTED)


def verdict(low: float, high: float, limit: float) -> str:
    """Return passes (the interval is below the limit), fails (it is above), or inconclusive."""
    return "passes" if high < limit else "fails" if low > limit else "inconclusive"


def limit_of(cell: Cell) -> float:
    """Return the limit of the suite."""
    return float(cell.state.params.get("limit", LIMIT))


def _words(cell: Cell, word: str) -> str:
    pairs = cell.middle("pairs_needed")
    text = (
        f"{word}: about {pairs:.0f} pairs would tell"
        if word == "inconclusive" and pairs is not None
        else word
    )
    text += _late(cell)
    return with_marks(f"{text} (no valid sample)" if cell.why else text, _coords(cell))


def _late(cell: Cell) -> str:
    """Return in how many runs the treatment broke the latency bound of LoadGen.

    The verdict does not depend on it. A smoke test is left out: LoadGen calls its few queries
    invalid, and its marks say so.
    """
    treatments = [
        series
        for series in cell.series("valid")
        if series.coords.get("side") == "treatment" and "fast" not in series.coords
    ]
    valid = [value for series in treatments for value in series.values]
    late = sum(value == 0 for value in valid)
    return f"; LoadGen says INVALID of the treatment in {late} of {len(valid)} runs" if late else ""


def _coords(cell: Cell) -> Mapping[str, Any]:
    return cell.series("overhead")[0].coords


def _interval(cell: Cell) -> tuple[float, float, float] | None:
    mean = cell.middle("overhead")
    low, high = (cell.middle("overhead_bound", end) for end in ("low", "high"))
    return None if mean is None or low is None or high is None else (mean, low, high)

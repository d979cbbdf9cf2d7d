"""resnet50-overhead: the interval of a cost against its limit, and a matrix of antagonists."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from perfdag.charts import style
from perfdag.charts.benchmarks.resnet50_marks import marked
from perfdag.charts.series import Cell, read, runs_words

LIMIT = 0.05
_COLORS = {"passes": "#c9dfee", "fails": "#f0b48f", "inconclusive": "#f3ece4"}


def figures(rows: pa.Table) -> Iterable[tuple[str, Figure]]:
    """Yield overhead with its 95 % interval, limit and verdict, and a matrix of antagonists."""
    cells = read(rows)
    where = runs_words(rows)
    judged = [(cell, *interval) for cell in cells if (interval := _interval(cell)) is not None]
    failed = [
        f"{cell.label}: {cell.why or 'no interval'}"[:110]
        for cell in cells
        if _interval(cell) is None
    ]
    if not judged:
        yield "overhead", style.no_data(failed[0])
        return
    words = [verdict(low, high, limit_of(cell)) for cell, _, low, high in judged]
    _, mean, low, high = judged[0]
    title = f"Overhead {mean * 100:.1f} % ({low * 100:.1f} to {high * 100:.1f} %): {words[0]}"
    title = marked(title, _coords(judged[0][0]))
    if len(judged) > 1:
        title = f"{words.count('passes')} of {len(judged)} treatments pass"
    subtitle = (
        f"dot: mean; bar: 95 % interval, paired runs in ABBA order; dashed: the limit; {where}"
    )
    fig, (ax,) = style.figure(heights=(1.0 + 0.45 * len(judged),), title=title, subtitle=subtitle)
    for number, (cell, mean, low, high) in enumerate(judged):
        color = style.SERIES[number % len(style.SERIES)]
        ax.errorbar(
            [mean],
            [number],
            xerr=[[mean - low], [high - mean]],
            fmt="o",
            color=color,
            capsize=4,
            mfc="none" if cell.why else color,
        )
        ax.annotate(
            _words(cell, words[number]),
            (mean, number),
            xytext=(0, 7),
            textcoords="offset points",
            ha="center",
            fontsize=8,
        )
    limits = {limit_of(cell) for cell, *_ in judged}
    for limit in limits:
        ax.axvline(limit, color=style.INK, linestyle=(0, (4, 2)), linewidth=1)
    ends = [0.0, *limits, *(value for _, *interval in judged for value in interval)]
    room = (max(ends) - min(ends)) * 0.08
    ax.set_xlim(min(ends) - room, max(ends) + room)
    ax.xaxis.set_major_formatter(lambda value, _: f"{value * 100:g} %")
    ax.set_yticks(range(len(judged)), [cell.label for cell, *_ in judged])
    ax.set_ylim(len(judged) - 0.4, -0.6)
    ax.set_xlabel("overhead of the treatment, lower is better")
    if failed:
        ax.text(
            0.01, 0.02, "\n".join(failed[:3]), transform=ax.transAxes, fontsize=8, color=style.MUTED
        )
    yield "overhead", fig
    beside = [interval for interval in judged if "antagonist" in interval[0].state.params]
    if beside:
        yield "matrix", _matrix(beside, where)


def _matrix(beside: Sequence[tuple[Cell, float, float, float]], where: str) -> Figure:
    """Return victims against antagonists: what each victim keeps, and its verdict."""
    placed = {
        (victim(cell.state.params), antagonist(cell.state.params)): (
            1 / (1 + mean),
            verdict(low, high, limit_of(cell)),
        )
        for cell, mean, low, high in beside
    }
    victims, antagonists = (list(dict.fromkeys(key[side] for key in placed)) for side in (0, 1))
    passing = sum(word == "passes" for _, word in placed.values())
    title = f"{passing} of {len(placed)} victims keep what their limit asks"
    subtitle = f"what a victim keeps beside an antagonist, and the verdict; {where}"
    fig, (ax,) = style.figure(heights=(0.9 + 0.5 * len(victims),), title=title, subtitle=subtitle)
    for (row, column), (kept, word) in placed.items():
        at = antagonists.index(column), victims.index(row)
        ax.add_patch(Rectangle(at, 1, 1, facecolor=_COLORS[word], edgecolor="white"))
        text = f"{kept * 100:.0f} % {word}"
        ax.text(at[0] + 0.5, at[1] + 0.5, text, ha="center", va="center", fontsize=9)
    ax.set_xlim(0, len(antagonists))
    ax.set_ylim(len(victims), 0)
    ax.set_xticks([number + 0.5 for number in range(len(antagonists))], antagonists)
    ax.set_yticks([number + 0.5 for number in range(len(victims))], victims)
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    ax.grid(visible=False)
    return fig


def victim(params: Mapping[str, Any]) -> str:
    """Return what the measured model is: its runtime, scenario, batch and precision."""
    runtime, scenario = params.get("runtime", "torch"), params.get("scenario", "offline")
    return f"{runtime} {scenario} b{params.get('batch', 1)} {params.get('precision', 'fp32')}"


def antagonist(params: Mapping[str, Any]) -> str:
    """Return the antagonist's command, or the model that it is."""
    beside = params["antagonist"]
    return victim(beside["model"]) if beside.get("model") else " ".join(beside["command"])[:40]


def verdict(low: float, high: float, limit: float) -> str:
    """Return passes (the interval is below the limit), fails (it is above), or inconclusive."""
    return "passes" if high < limit else "fails" if low > limit else "inconclusive"


def limit_of(cell: Cell) -> float:
    """Return the limit of the suite."""
    return float(cell.state.params.get("limit", LIMIT))


def _words(cell: Cell, word: str) -> str:
    needed = next((series.middle for series in cell.series("pairs_needed") if series.values), None)
    text = (
        f"{word}: about {needed:.0f} pairs would tell"
        if word == "inconclusive" and needed is not None
        else word
    )
    text += _late(cell)
    return marked(f"{text} (no valid sample)" if cell.why else text, _coords(cell))


def _late(cell: Cell) -> str:
    """Return in how many runs the treatment broke the latency bound of LoadGen.

    The verdict does not depend on it. A smoke test is left out: LoadGen calls its few queries
    invalid, and its marks say so.
    """
    treated = [
        series
        for series in cell.series("valid")
        if series.coords.get("side") == "treatment" and "fast" not in series.coords
    ]
    valid = [value for series in treated for value in series.values]
    late = sum(value == 0 for value in valid)
    return f"; LoadGen says INVALID of the treatment in {late} of {len(valid)} runs" if late else ""


def _coords(cell: Cell) -> Mapping[str, Any]:
    return cell.series("overhead")[0].coords


def _interval(cell: Cell) -> tuple[float, float, float] | None:
    mean = next((series.middle for series in cell.series("overhead") if series.values), None)
    low = next(
        (series.middle for series in cell.series("overhead_bound", "low") if series.values), None
    )
    high = next(
        (series.middle for series in cell.series("overhead_bound", "high") if series.values), None
    )
    return None if mean is None or low is None or high is None else (mean, low, high)

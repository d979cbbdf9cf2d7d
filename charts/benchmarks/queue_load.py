"""queue-load: latency over rate, with the bound and the highest rate that holds it."""

from collections.abc import Iterable, Sequence

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from perfdag.charts import style
from perfdag.charts.benchmarks.generic import points
from perfdag.charts.series import Cell, alike, read, runs_words, valid, words_without
from perfdag.units import plural

PANELS = 4
"""Settings of a figure; the others are in the rows."""
STATS = ("p50", "p90", "p95", "p99")
Trials = dict[str, list[tuple[float, float, bool]]]
"""(rate in 1/s, latency in s, whether the trial was a full one) by statistic."""


def figures(rows: pa.Table) -> Iterable[tuple[str, Figure]]:
    """Yield latency over rate, with a panel for each setting."""
    cells = read(rows)
    settings = [
        (group, trials)
        for group in alike(cells, ("rate",))
        if (trials := trials_of(rows, [cell.state.point for cell in group]))
    ]
    with style.house():
        if not settings:
            yield from points(cells, ["peak_rate"], runs_words(rows), "latency")
            return
        panels = settings[:PANELS]
        left = len(settings) - len(panels)
        subtitle = style.caption(
            "from the scheduled time; hollow: short trials; dotted: the bound, dashed: the peak",
            f"first {PANELS} of {len(settings)} settings" if left else "",
            runs_words(rows),
        )
        fig, axes = style.figure(
            len(panels), [2.6], title=finding([group for group, _ in panels]), subtitle=subtitle
        )
        for ax, (group, trials) in zip(axes, panels, strict=True):
            _panel(ax, group, trials)
        axes[-1].set_xlabel("requests a second")
        yield "latency", fig


def trials_of(rows: pa.Table, points: Sequence[str]) -> Trials:
    """Return the trials of the valid samples of some points, by rate."""
    trial_rows = valid(rows, "trial_latency")
    trial_rows = trial_rows.filter(
        pc.is_in(trial_rows["point"].cast(pa.string()), pa.array(points))
    )
    trials: Trials = {}
    for row in trial_rows.select(["coords", "stat", "value"]).to_pylist():
        at = orjson.loads(row["coords"])
        trials.setdefault(row["stat"], []).append((at["rate"], row["value"], at["full"]))
    return {stat: sorted(trials[stat]) for stat in STATS if stat in trials}


def finding(groups: Iterable[Sequence[Cell]]) -> str:
    """Return the title: the highest rate of each setting, or where its latency was measured."""
    texts = []
    for group in groups:
        name = words_without(group[0], ("rate",)) or group[0].state.entry
        peak = group[0].first("peak_rate")
        if peak:
            percentile, bound = (group[0].state.params.get(key) for key in ("percentile", "bound"))
            texts.append(f"{name}: {percentile} holds {bound:g} s up to {peak.middle:.4g}/s")
        else:
            texts.append(f"{name}: latency at {plural(len(group), 'rate')}")
    return "; ".join(texts)


def _panel(ax: Axes, group: Sequence[Cell], trials: Trials) -> None:
    for number, (stat, values) in enumerate(trials.items()):
        look = style.look(number)
        full = [(rate, seconds) for rate, seconds, whole in values if whole]
        short = [(rate, seconds) for rate, seconds, whole in values if not whole]
        ax.plot(*zip(*full, strict=True), label=stat, **look)
        if short:
            hollow = look | {"linestyle": "none", "markerfacecolor": style.PAPER}
            ax.plot(*zip(*short, strict=True), **hollow)
    peak = group[0].first("peak_rate")
    if peak:
        bound = float(group[0].state.params["bound"])
        ax.axhline(bound, color=style.MUTED, linewidth=0.8, linestyle=(0, (2, 2)))
        ax.axvline(peak.middle, color=style.INK, linewidth=1, linestyle=(0, (5, 2)))
    ax.set_xlim(left=0)
    ax.set_ylim(bottom=0)
    name = style.value_axis(ax.yaxis, "s", ax.get_ylim()[1], bins=4)
    ax.set_ylabel(f"latency ({name})")
    ax.set_title(words_without(group[0], ("rate",)) or group[0].state.entry)
    style.legend_beside(ax)

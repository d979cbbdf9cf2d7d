"""queue-autoscale: backends over time against those that the load needs."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from perfdag.charts import style
from perfdag.charts.benchmarks import queue
from perfdag.charts.benchmarks.generic import points
from perfdag.charts.benchmarks.queue_scaling import by_subject, evenness
from perfdag.charts.benchmarks.sweeps import FIGURES
from perfdag.charts.series import read, runs_words, valid


@dataclass(frozen=True)
class Trace:
    """One queue under a changing load: seconds, backends, backends needed, and waiting requests.

    `depth` counts the requests that wait, `wait` is the age of the oldest in seconds. Both are NaN
    where they were not read, and empty where they were never read.
    """

    name: str
    at: Sequence[float]
    have: Sequence[float]
    need: Sequence[float]
    depth: Sequence[float] = ()
    wait: Sequence[float] = ()


def draw_traces(traces: Sequence[Trace], title: str, subtitle: str) -> Figure:
    """Draw backends over time against those needed, and below them the requests that wait.

    Backends above the need are wasted, those below it are missing.
    """
    traces = [trace for trace in traces if trace.at]
    if not traces:
        return style.no_data()
    panels = [(trace, draw, height) for trace in traces for draw, height in _panels(trace)]
    heights = [height for _, _, height in panels]
    fig, axes = style.figure(len(panels), heights, title=title, subtitle=subtitle, sharex=True)
    for ax, (trace, draw, _) in zip(axes, panels, strict=True):
        draw(ax, trace)
        ax.set_ylim(bottom=0)
    fig.align_ylabels(axes)
    style.legend_beside(axes[0])
    axes[-1].set_xlabel("seconds from the start of the load")
    return fig


def _panels(trace: Trace) -> Iterator[tuple[Callable[[Axes, Trace], None], float]]:
    """Yield the panels of a queue, with their height in inches."""
    yield _backends, 1.9
    if trace.depth:
        yield _depth, 1.0
    if trace.wait:
        yield _wait, 1.0


def _backends(ax: Axes, trace: Trace) -> None:
    at, have, need = (
        np.asarray(values, dtype=float) for values in (trace.at, trace.have, trace.need)
    )
    ax.step(at, have, where="post", color=style.SERIES[0], label="backends")
    ax.step(
        at,
        need,
        where="post",
        color=style.INK,
        linestyle=(0, (5, 2)),
        linewidth=1,
        label="needed",
    )
    edges, above, below = np.repeat(at, 2)[1:], np.repeat(have, 2)[:-1], np.repeat(need, 2)[:-1]
    for bound, color, label in ((np.maximum, 4, "wasted"), (np.minimum, 1, "missing")):
        ax.fill_between(
            edges,
            below,
            bound(above, below),
            color=style.SERIES[color],
            alpha=0.4,
            linewidth=0,
            label=label,
        )
    ax.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    ax.set_ylabel("backends")
    ax.set_title(trace.name)


def _depth(ax: Axes, trace: Trace) -> None:
    ax.step(trace.at, trace.depth, where="post", color=style.SERIES[2])
    ax.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    ax.set_ylabel("requests\nwaiting")


def _wait(ax: Axes, trace: Trace) -> None:
    ax.step(trace.at, trace.wait, where="post", color=style.SERIES[3])
    name = style.value_axis(ax.yaxis, "s", max(1e-3, float(np.nanmax(trace.wait))), bins=3)
    ax.set_ylabel(f"longest\nwait ({name})")


TRACES = ("replicas", "needed", "depth", "wait")
SCORES = ("reaction", "overshoot", "wasted")
OTHERS = ("release", "missing", "oscillations", "latency")


def figures(rows: pa.Table) -> Iterable[tuple[str, Figure]]:
    """Yield two figures of scores, the trace of each point, and the failures, if any."""
    cells = read(rows)
    where = runs_words(rows)
    with style.house():
        yield from points(cells, SCORES, where, "scores")
        if any(cell.series(name) for cell in cells for name in OTHERS):
            yield from points(cells, OTHERS, where, "scores-more")
        with_traces = [(cell, own) for cell in cells if (own := traces(rows, cell.state.point))]
        cut = f"first {FIGURES} of {len(with_traces)} points" if len(with_traces) > FIGURES else ""
        for number, (cell, own) in enumerate(with_traces[:FIGURES], 1):
            title = f"{cell.label}: backends there and backends needed"
            note = style.caption("first repetition", cut, where)
            yield f"following-{number}", draw_traces(own, title, note)
        failing = [
            queue.Curve(cell.label, {}, failed=failed)
            for cell in cells
            if (failed := by_subject(rows, cell.state.point, "failures"))
        ]
        if failing:
            yield (
                "failures",
                queue.spread(
                    failing, evenness(failing), f"failed requests of all repetitions; {where}"
                ),
            )


def traces(rows: pa.Table, point: str) -> list[Trace]:
    """Return the traces of the queues of a point in its first valid repetition."""
    of_point = valid(rows.filter(pc.equal(rows["point"], point)), *TRACES)
    values = of_point.select(["order_index", "metric", "coords", "value"]).to_pylist()
    by_queue: dict[str, dict[str, dict[float, float]]] = {}
    if values:
        first = min(row["order_index"] for row in values)
        for row in values:
            if row["order_index"] == first:
                at = orjson.loads(row["coords"])
                by = by_queue.setdefault(at["queue"], {name: {} for name in TRACES})
                by[row["metric"]][at["elapsed"]] = row["value"]
    result = []
    for name, values in sorted(by_queue.items()):
        at = sorted(set(values["replicas"]) & set(values["needed"]))
        columns = ([by.get(t, math.nan) for t in at] if by else [] for by in values.values())
        result.append(Trace(name, at, *columns))
    return result

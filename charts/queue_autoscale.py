"""Backends over time against those that the load needs, from the rows of queue-autoscale."""

from collections.abc import Iterable

import pyarrow as pa
from matplotlib.figure import Figure

from perfdag.charts import queue, style
from perfdag.charts.generic import dot_figure
from perfdag.charts.series import Cell, read, runs_words

SCORES = ("reaction", "overshoot", "wasted")


def figures(rows: pa.Table) -> Iterable[tuple[str, Figure]]:
    """One figure a point with the trace of its first repetition, and one of all scores."""
    cells = read(rows)
    where = runs_words(rows)
    with style.house():
        yield "scores", dot_figure(cells, SCORES, where)
        for number, cell in enumerate(cells):
            title = f"{cell.label}: backends there and backends needed"
            yield f"following-{number + 1}", queue.following(traces(cell), title, f"first repetition; {where}")


def traces(cell: Cell) -> list[queue.Follow]:
    """The traces of a point's queues."""
    found: dict[str, dict[str, dict[float, float]]] = {}
    for name in ("replicas", "needed"):
        for each in cell.series(name):
            if each.values:
                by = found.setdefault(str(each.coords["queue"]), {"replicas": {}, "needed": {}})
                by[name][float(each.coords["elapsed"])] = float(each.values[0])
    follow = []
    for name, values in sorted(found.items()):
        at = sorted(set(values["replicas"]) & set(values["needed"]))
        follow.append(queue.Follow(name, at, [values["replicas"][t] for t in at], [values["needed"][t] for t in at]))
    return follow

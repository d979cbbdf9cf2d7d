"""Backends over time against those that the load needs, from the rows of queue-autoscale."""

import math
from collections.abc import Iterable

import pyarrow as pa
from matplotlib.figure import Figure

from perfdag.charts import queue, style
from perfdag.charts.generic import dot_figure
from perfdag.charts.queue_scaling import by_subject, evenness
from perfdag.charts.series import Cell, read, runs_words

TRACED = ("replicas", "needed", "depth", "wait")
SCORES = ("reaction", "overshoot", "wasted")


def figures(rows: pa.Table) -> Iterable[tuple[str, Figure]]:
    """One figure a point with the trace of its first repetition, one of all scores, and one of what failed where, where anything did."""
    cells = read(rows)
    where = runs_words(rows)
    with style.house():
        yield "scores", dot_figure(cells, SCORES, where)
        for number, cell in enumerate(cells):
            title = f"{cell.label}: backends there and backends needed"
            yield f"following-{number + 1}", queue.following(traces(cell), title, f"first repetition; {where}")
        failing = [
            queue.Curve(cell.label, {}, failed=failed) for cell in cells if (failed := by_subject(rows, cell.state.point, "failures"))
        ]
        if failing:
            yield "failures", queue.spread(failing, evenness(failing), f"failed requests of all repetitions; {where}")


def traces(cell: Cell) -> list[queue.Follow]:
    """The traces of a point's queues."""
    found: dict[str, dict[str, dict[float, float]]] = {}
    for name in TRACED:
        for each in cell.series(name):
            if each.values:
                by = found.setdefault(str(each.coords["queue"]), {name: {} for name in TRACED})
                by[name][float(each.coords["elapsed"])] = float(each.values[0])
    follow = []
    for name, values in sorted(found.items()):
        at = sorted(set(values["replicas"]) & set(values["needed"]))
        columns = ([one.get(t, math.nan) for t in at] if one else [] for one in values.values())
        follow.append(queue.Follow(name, at, *columns))
    return follow

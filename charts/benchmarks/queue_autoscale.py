"""queue-autoscale: backends over time against those that the load needs."""

import math
from collections.abc import Iterable

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.figure import Figure

from perfdag.charts import style
from perfdag.charts.benchmarks import queue, queue_trace
from perfdag.charts.benchmarks.generic import dot_figure
from perfdag.charts.benchmarks.queue_scaling import by_subject, evenness
from perfdag.charts.series import read, runs_words, valid

TRACED = ("replicas", "needed", "depth", "wait")
SCORES = ("reaction", "overshoot", "wasted")
OTHERS = ("release", "missing", "oscillations", "latency")


def figures(rows: pa.Table) -> Iterable[tuple[str, Figure]]:
    """Yield two figures of scores, the trace of each point, and the failures, if any."""
    cells = read(rows)
    where = runs_words(rows)
    with style.house():
        yield "scores", dot_figure(cells, SCORES, where)
        yield "scores-more", dot_figure(cells, OTHERS, where)
        for number, cell in enumerate(cells):
            title = f"{cell.label}: backends there and backends needed"
            yield (
                f"following-{number + 1}",
                queue_trace.draw_traces(
                    traces(rows, cell.state.point), title, f"first repetition; {where}"
                ),
            )
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


def traces(rows: pa.Table, point: str) -> list[queue_trace.Trace]:
    """Return the traces of the queues of a point in its first valid repetition."""
    of_point = valid(rows.filter(pc.equal(rows["point"], point)), *TRACED)
    kept = of_point.select(["order_index", "metric", "coords", "value"]).to_pylist()
    by_queue: dict[str, dict[str, dict[float, float]]] = {}
    if kept:
        first = min(row["order_index"] for row in kept)
        for row in kept:
            if row["order_index"] == first:
                at = orjson.loads(row["coords"])
                by = by_queue.setdefault(at["queue"], {name: {} for name in TRACED})
                by[row["metric"]][at["elapsed"]] = row["value"]
    shown = []
    for name, values in sorted(by_queue.items()):
        at = sorted(set(values["replicas"]) & set(values["needed"]))
        columns = ([by.get(t, math.nan) for t in at] if by else [] for by in values.values())
        shown.append(queue_trace.Trace(name, at, *columns))
    return shown

"""Throughput and efficiency over replicas, from the rows of queue-scaling."""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure

from perfdag.charts import queue, style
from perfdag.charts.series import Cell, read, runs_words

PANELS = 3


def figures(rows: pa.Table) -> Iterable[tuple[str, Figure]]:
    """Up to three workloads a figure."""
    cells = read(rows)
    with style.house():
        for start in range(0, max(1, len(cells)), PANELS):
            curves = [curve(cell) for cell in cells[start : start + PANELS]]
            slug = "throughput" if len(cells) <= PANELS else f"throughput-{start // PANELS + 1}"
            yield slug, queue.throughput(curves, finding(curves), f"median and range of the repetitions; {runs_words(rows)}")


def curve(cell: Cell) -> queue.Curve:
    """One point's throughput by replicas, and the median of its fitted laws."""
    rates = {int(each.coords["replicas"]): list(each.values) for each in cell.series("throughput") if each.values}
    law = [[value for each in cell.series(name) for value in each.values] for name in ("single_rate", "serial_share", "coherence")]
    fitted = (float(np.median(law[0])), float(np.median(law[1])), float(np.median(law[2]))) if all(law) else None
    return queue.Curve(cell.label, rates, fitted)


def finding(curves: Iterable[queue.Curve]) -> str:
    """The title: efficiency at the most replicas of each workload."""
    said = []
    for each in curves:
        if each.rates:
            few, most = min(each.rates), max(each.rates)
            one = float(np.median(each.rates[few])) / few
            said.append(f"{each.name}: {100 * float(np.median(each.rates[most])) / (most * one):.0f} % of linear at {most} replicas")
    return "; ".join(said) or "No throughput was measured"

"""Throughput and efficiency over replicas, from the rows of queue-scaling."""

from collections.abc import Collection, Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.figure import Figure

from perfdag.charts import queue, style
from perfdag.charts.series import Cell, read, runs_words

PANELS = 2


def figures(rows: pa.Table) -> Iterable[tuple[str, Figure]]:
    """Up to two workloads a figure: more would push the legends into the curves."""
    cells = read(rows)
    with style.house():
        for start in range(0, max(1, len(cells)), PANELS):
            curves = [curve(cell) for cell in cells[start : start + PANELS]]
            slug = "throughput" if len(cells) <= PANELS else f"throughput-{start // PANELS + 1}"
            said = f"median and range of the repetitions; gain: median of the ratios and of their 95 % intervals; {runs_words(rows)}"
            yield slug, queue.throughput(curves, finding(curves), said)
        shared = [worked for cell in cells if (worked := where(rows, cell)).places]
        if shared:
            said = "items at the most replicas, all valid repetitions"
            said += (
                "; failures at any number, of all" if any(each.failed for each in shared) else ""
            )
            yield "spread", queue.spread(shared, evenness(shared), f"{said}; {runs_words(rows)}")


def where(rows: pa.Table, cell: Cell) -> queue.Curve:
    """Items of a point by node and device, summed over its valid repetitions, and failures over all: one that had any is not valid."""
    point = cell.state.point
    return queue.Curve(
        cell.label,
        {},
        done=by_subject(rows, point, "items", ("ok",)),
        failed=by_subject(rows, point, "failures"),
    )


def by_subject(
    rows: pa.Table, point: str, metric: str, statuses: Collection[str] = ()
) -> dict[str, float]:
    """A metric of a point by node and device, summed over its repetitions of these statuses (none named: of all)."""
    found: dict[str, float] = {}
    wanted = pc.and_(
        pc.and_(pc.equal(rows["metric"], metric), pc.equal(rows["point"], point)),
        pc.equal(rows["phase"], "measure"),
    )
    for row in (
        rows.filter(pc.fill_null(wanted, False)).select(["subject", "value", "status"]).to_pylist()
    ):
        if row["status"] in (statuses or (row["status"],)):
            found[row["subject"]] = found.get(row["subject"], 0.0) + row["value"]
    return found


def evenness(curves: Iterable[queue.Curve]) -> str:
    """The title: the device that did most, against an even share, and the one that failed most."""
    said = []
    for each in curves:
        words = []
        if each.done:
            name, most = max(each.done.items(), key=lambda pair: pair[1])
            even = "" if len(each.places) == 1 else f" ({100 / len(each.places):.0f} % if even)"
            words.append(f"{name} did {100 * most / sum(each.done.values()):.0f} %{even}")
        if each.failed:
            name, most = max(each.failed.items(), key=lambda pair: pair[1])
            words.append(f"{most:.0f} of {sum(each.failed.values()):.0f} failures on {name}")
        said.append(f"{each.name}: {', '.join(words)}")
    return "; ".join(said)


def curve(cell: Cell) -> queue.Curve:
    """One point's throughput and gains by replicas, and the medians of its fitted laws."""
    rates = {
        int(each.coords["replicas"]): list(each.values)
        for each in cell.series("throughput")
        if each.values
    }
    rate, sigma, kappa, knee, amdahl = (
        middle(cell, name)
        for name in ("single_rate", "serial_share", "coherence", "knee", "amdahl_share")
    )
    law = None if rate is None or sigma is None or kappa is None else (rate, sigma, kappa)
    gains: dict[int, dict[str, float]] = {}
    for each in cell.series("gain"):
        if each.values:
            gains.setdefault(int(each.coords["replicas"]), {})[each.stat] = float(
                np.median(each.values)
            )
    bands = {n: (at["value"], at["lower"], at["upper"]) for n, at in gains.items() if len(at) == 3}
    latencies: dict[str, dict[int, float]] = {}
    for each in cell.series("latency"):
        if each.values:
            latencies.setdefault(each.stat, {})[int(each.coords["replicas"])] = float(
                np.median(each.values)
            )
    return queue.Curve(cell.label, rates, law, knee, amdahl, bands, latencies=latencies)


def middle(cell: Cell, metric: str) -> float | None:
    """The median of a metric that is one number a repetition; None where there is none."""
    values = [value for each in cell.series(metric) for value in each.values]
    return float(np.median(values)) if values else None


def finding(curves: Iterable[queue.Curve]) -> str:
    """The title: efficiency at the most replicas of each workload."""
    said = []
    for each in curves:
        if each.rates:
            few, most = min(each.rates), max(each.rates)
            one = float(np.median(each.rates[few])) / few
            said.append(
                f"{each.name}: {100 * float(np.median(each.rates[most])) / (most * one):.0f} % of linear at {most} replicas"
            )
    return "; ".join(said) or "No throughput was measured"

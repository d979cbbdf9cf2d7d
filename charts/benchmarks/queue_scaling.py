"""queue-scaling: throughput and efficiency over replicas."""

from collections.abc import Collection, Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.figure import Figure

from perfdag.charts import style
from perfdag.charts.benchmarks import queue
from perfdag.charts.benchmarks.sweeps import FIGURES
from perfdag.charts.series import Cell, read, runs_words

PANELS = 2


def figures(rows: pa.Table) -> Iterable[tuple[str, Figure]]:
    """Yield up to two workloads per figure. With more, the legends would cover the curves."""
    every, most = read(rows), PANELS * FIGURES
    cells = every[:most]
    cut = f"; first {most} of {len(every)} points" if len(every) > most else ""
    with style.house():
        for start in range(0, max(1, len(cells)), PANELS):
            curves = [curve(cell) for cell in cells[start : start + PANELS]]
            slug = "throughput" if len(cells) <= PANELS else f"throughput-{start // PANELS + 1}"
            subtitle = (
                "median and range of the repetitions; "
                f"gain: median of the ratios and of their 95 % intervals{cut}; {runs_words(rows)}"
            )
            yield slug, queue.throughput(curves, finding(curves), subtitle)
        spreads = [spread for cell in cells if (spread := where(rows, cell)).places]
        if spreads:
            subtitle = f"items at the most replicas, all valid repetitions{cut}"
            subtitle += (
                "; failures at any number, of all"
                if any(shares.failed for shares in spreads)
                else ""
            )
            yield (
                "spread",
                queue.spread(spreads, evenness(spreads), f"{subtitle}; {runs_words(rows)}"),
            )


def where(rows: pa.Table, cell: Cell) -> queue.Curve:
    """Return the items of a point by node and device, and its failures.

    Items are summed over valid repetitions, failures over all: a repetition with a failure is
    invalid.
    """
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
    """Return a metric of a point by node and device, summed over repetitions of these statuses.

    Without `statuses`, all repetitions count.
    """
    totals: dict[str, float] = {}
    mask = pc.and_(
        pc.and_(pc.equal(rows["metric"], metric), pc.equal(rows["point"], point)),
        pc.equal(rows["phase"], "measure"),
    )
    for row in (
        rows.filter(pc.fill_null(mask, False)).select(["subject", "value", "status"]).to_pylist()
    ):
        if row["status"] in (statuses or (row["status"],)):
            totals[row["subject"]] = totals.get(row["subject"], 0.0) + row["value"]
    return totals


def evenness(curves: Iterable[queue.Curve]) -> str:
    """Return the title: the devices with most items, against an even share, and most failures."""
    texts = []
    for shares in curves:
        words = []
        if shares.done:
            name, most = max(shares.done.items(), key=lambda pair: pair[1])
            even = "" if len(shares.places) == 1 else f" ({100 / len(shares.places):.0f} % if even)"
            words.append(f"{name} did {100 * most / sum(shares.done.values()):.0f} %{even}")
        if shares.failed:
            name, most = max(shares.failed.items(), key=lambda pair: pair[1])
            words.append(f"{most:.0f} of {sum(shares.failed.values()):.0f} failures on {name}")
        texts.append(f"{shares.name}: {', '.join(words)}")
    return "; ".join(texts)


def curve(cell: Cell) -> queue.Curve:
    """Return throughput and gains of one point by replicas, and the medians of its fitted laws."""
    rates = {
        int(series.coords["replicas"]): list(series.values)
        for series in cell.series("throughput")
        if series.values
    }
    rate, sigma, kappa, amdahl = (
        cell.middle(name, "value")
        for name in ("single_rate", "serial_share", "coherence", "amdahl_share")
    )
    law = None if rate is None or sigma is None or kappa is None else (rate, sigma, kappa)
    gains: dict[int, dict[str, float]] = {}
    for series in cell.series("gain"):
        if series.values:
            gains.setdefault(int(series.coords["replicas"]), {})[series.stat] = float(
                np.median(series.values)
            )
    bands = {n: (at["value"], at["lower"], at["upper"]) for n, at in gains.items() if len(at) == 3}
    latencies: dict[str, dict[int, float]] = {}
    for series in cell.series("latency"):
        if series.values:
            latencies.setdefault(series.stat, {})[int(series.coords["replicas"])] = float(
                np.median(series.values)
            )
    return queue.Curve(cell.label, rates, law, amdahl, bands, latencies=latencies)


def finding(curves: Iterable[queue.Curve]) -> str:
    """Return the title: the efficiency of each workload at the most replicas."""
    texts = []
    for curve in curves:
        if curve.rates:
            few, most = min(curve.rates), max(curve.rates)
            single = float(np.median(curve.rates[few])) / few
            percent = 100 * float(np.median(curve.rates[most])) / (most * single)
            texts.append(f"{curve.name}: {percent:.0f} % of linear at {most} replicas")
    return "; ".join(texts) or "No throughput was measured"

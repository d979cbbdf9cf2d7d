"""The IOPS of each host of a distributed fio point."""

import textwrap
from collections import Counter
from collections.abc import Sequence
from statistics import median

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from perfdag.charts import style
from perfdag.charts.series import Cell, valid

PANELS, WORKERS = 6, 16
ROW = 0.22  # inches of a worker
Values = dict[str, list[float]]
"""IOPS of each worker, a value a sample."""


def figure(rows: pa.Table, cells: Sequence[Cell], where: str) -> Figure | None:
    """Draw a panel for each point and direction, or return None without several workers.

    Points whose workers differ most come first.
    """
    points = sorted(_by_point(rows, cells).items(), key=lambda item: _lag(item[1]))
    if not points:
        return None
    panels = points[:PANELS]
    name, workers = panels[0]
    title = f"slowest worker: {_slowest(workers)[0]}, at {_lag(workers):.2f} of the median one" + (
        f", of {name}" if len(points) > 1 else ""
    )
    cut = (
        f"{len(panels)} of {len(points)} points, whose workers are furthest apart"
        if len(panels) < len(points)
        else ""
    )
    legend = "dot: median of a worker's samples; ticks: each of them"
    fig, axes = style.figure(
        len(panels),
        [
            ROW * min(len(workers), WORKERS) + 0.6 + len(name) // 90 * 0.15
            for name, workers in panels
        ],
        title=title,
        subtitle=style.caption(legend, cut, where),
    )
    for ax, (name, workers) in zip(axes, panels, strict=True):
        _panel(ax, name, workers)
    return fig


def _by_point(rows: pa.Table, cells: Sequence[Cell]) -> dict[str, Values]:
    """Return point and direction -> IOPS of its workers in the valid samples."""
    own = valid(rows, "iops")
    own = own.filter(pc.is_valid(own["subject"]))
    values: dict[tuple[str, str], Values] = {}
    for row in own.select(["point", "coords", "subject", "value"]).to_pylist():
        direction = str(orjson.loads(row["coords"] or "{}").get("direction", ""))
        values.setdefault((row["point"], direction), {}).setdefault(row["subject"], []).append(
            row["value"]
        )
    labels = {cell.state.point: cell.label for cell in cells}
    ways = Counter(point for point, _ in values)
    names = {
        key: f"{labels.get(key[0], '')} ({key[1]})" if ways[key[0]] > 1 else labels.get(key[0], "")
        for key in values
    }
    return {names[key]: workers for key, workers in values.items() if len(workers) > 1}


def _slowest(workers: Values) -> list[str]:
    return sorted(workers, key=lambda worker: median(workers[worker]))


def _lag(workers: Values) -> float:
    """Return the IOPS of the slowest worker over those of the median worker."""
    middles = [median(values) for values in workers.values()]
    return min(middles) / median(middles) if median(middles) else 1.0


def _panel(ax: Axes, name: str, workers: Values) -> None:
    names = _slowest(workers)[:WORKERS]
    look = style.look(0)
    for y, worker in enumerate(names):
        values = workers[worker]
        ax.plot(
            values, [y] * len(values), "|", color=look["color"], alpha=0.6, gid=f"samples {worker}"
        )
        ax.plot([median(values)], [y], "o", color=look["color"], gid=f"median {worker}")
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.5, -0.5)
    largest = max(value for worker in names for value in workers[worker])
    ax.set_xlim(0, largest * 1.08)
    unit = style.value_axis(ax.xaxis, "1/s", largest)
    cut = f", the {len(names)} slowest of {len(workers)}" if len(names) < len(workers) else ""
    ax.set_title(textwrap.fill(name + cut, 90, break_on_hyphens=False))
    ax.set_xlabel(style.axis_label("iops", unit, "higher"))

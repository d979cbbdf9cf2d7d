"""torchbench: time of a batch by point, and samples per second over the batch size."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import orjson
import pyarrow as pa
from matplotlib.figure import Figure

from perfdag.charts import lines, style
from perfdag.charts.benchmarks.generic import points
from perfdag.charts.series import (
    Cell,
    alike,
    band_words,
    read,
    runs_words,
    value_words,
    words_without,
)
from perfdag.results.summary import Series

_NAME_PARAMS = ("model", "test", "device", "precision")
"""Parameters in the name of a line."""


def figures(rows: pa.Table) -> Iterable[tuple[str, Figure]]:
    """Yield the times of batches, and lines of samples per second over several batch sizes."""
    cells, where = read(rows), runs_words(rows)
    precisions = _precisions(rows)
    for cell in cells:
        if precisions.get(cell.state.point, "fp32") != "fp32" and not cell.state.params.get(
            "precision"
        ):
            cell.label += f" in {precisions[cell.state.point]}"
    yield from points(cells, ["batch_time", "time_to_first_batch"], where)
    curves = _by_batch(cells, precisions)
    if any(len(line.series) > 1 for line in curves):
        yield "batches", _batches(curves, where)


def _precisions(rows: pa.Table) -> dict[str, str]:
    """Return the precision of each point, which may be the default of the model for its device."""
    precisions: dict[str, str] = {}
    for group in rows.group_by(["point", "env"]).aggregate([]).to_pylist():
        precision = (orjson.loads(group["env"] or "{}").get("sample") or {}).get("precision")
        if precision:
            precisions[group["point"]] = precision
    return precisions


def _by_batch(cells: Sequence[Cell], precisions: Mapping[str, str]) -> list[lines.Line]:
    """Return a line for each model and shape. Equal names are extended by what differs."""
    named_lines: list[tuple[list[Cell], lines.Line]] = []
    for group in alike(cells, ("batch_size",)):
        rates = {
            float(cell.state.params["batch_size"]): rate for cell in group if (rate := _rate(cell))
        }
        if rates:
            named_lines.append((group, lines.Line(_name(group[0], precisions), rates)))
    names = Counter(line.name for _, line in named_lines)
    for group, line in named_lines:
        if names[line.name] > 1:
            line.name = (
                f"{line.name} {words_without(group[0], ('batch_size', *_NAME_PARAMS))}".strip()
            )
        line.name += " ~" if any(cell.noisy for cell in group) else ""
    return [line for _, line in named_lines]


def _rate(cell: Cell) -> Series | None:
    return cell.first("samples_rate")


def _name(cell: Cell, precisions: Mapping[str, str]) -> str:
    params = {**cell.state.params}
    params["precision"] = params.get("precision") or precisions.get(cell.state.point)
    name = " ".join(str(params[part]) for part in _NAME_PARAMS if params.get(part))
    return name + (" compiled" if params.get("compile") else "")


def _batches(curves: Sequence[lines.Line], where: str) -> Figure:
    fastest = max(
        (series for line in curves for series in line.series.values()),
        key=lambda series: series.middle,
    )
    name, batch = next(
        (line.name, x) for line in curves for x, series in line.series.items() if series is fastest
    )
    legend = band_words(lines.series_of(curves), "line", "band")
    noisy = "~: a sample was disturbed" if any(line.name.endswith("~") for line in curves) else ""
    title = f"{name.removesuffix(' ~')}: {value_words(fastest)} samples at batch size {batch:.0f}"
    fig, (ax,) = style.figure(
        1, (lines.height(curves),), title=title, subtitle=style.caption(legend, noisy, where)
    )
    lines.panel(ax, curves, metric="samples_rate", x_label="batch size", x_unit="1")
    return fig

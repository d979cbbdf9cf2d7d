"""torchbench: time of a batch by point, and samples a second over the batch size where it was varied."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import orjson
import pyarrow as pa
from matplotlib.figure import Figure

from perfdag.charts import lines, style
from perfdag.charts.generic import dot_figure
from perfdag.charts.series import (
    Cell,
    Series,
    alike,
    band_words,
    read,
    runs_words,
    value_words,
    words_without,
)


def figures(rows: pa.Table) -> Iterable[tuple[str, Figure]]:
    """Dots of batch time and first batch; lines of samples a second where a model ran with two or more batch sizes."""
    cells, where = read(rows), runs_words(rows)
    if not cells:
        yield "points", style.no_data()
        return
    used = _precisions(rows)
    for cell in cells:
        if used.get(cell.state.point, "fp32") != "fp32" and not cell.state.params.get("precision"):
            cell.label += f" in {used[cell.state.point]}"
    yield "points", dot_figure(cells, ["batch_time", "time_to_first_batch"], where)
    made = _by_batch(cells, used)
    if any(len(line.series) > 1 for line in made):
        yield "batches", _batches(made, where)


def _precisions(rows: pa.Table) -> dict[str, str]:
    """The precision that each point was computed in, which is the model's default for its device where none was asked for."""
    found: dict[str, str] = {}
    for each in rows.group_by(["point", "env"]).aggregate([]).to_pylist():
        used = (orjson.loads(each["env"] or "{}").get("sample") or {}).get("precision")
        if used:
            found[each["point"]] = used
    return found


def _by_batch(cells: Sequence[Cell], used: Mapping[str, str]) -> list[lines.Line]:
    """A line for each model and shape; lines that would have one name say what tells them apart."""
    made: list[tuple[list[Cell], lines.Line]] = []
    for group in alike(cells, ("batch_size",)):
        rates = {
            float(cell.state.params["batch_size"]): rate for cell in group if (rate := _rate(cell))
        }
        if rates:
            made.append((group, lines.Line(_name(group[0], used), rates)))
    names = Counter(line.name for _, line in made)
    for group, line in made:
        if names[line.name] > 1:
            line.name = f"{line.name} {words_without(group[0], ('batch_size', 'model', 'test', 'device', 'precision'))}".strip()
        line.name += " ~" if any(cell.noisy for cell in group) else ""
    return [line for _, line in made]


def _rate(cell: Cell) -> Series | None:
    return next((each for each in cell.series("samples_rate") if each.values), None)


def _name(cell: Cell, used: Mapping[str, str]) -> str:
    params = {**cell.state.params}
    params["precision"] = params.get("precision") or used.get(cell.state.point)
    name = " ".join(
        str(params[part]) for part in ("model", "test", "device", "precision") if params.get(part)
    )
    return name + (" compiled" if params.get("compile") else "")


def _batches(made: Sequence[lines.Line], where: str) -> Figure:
    fastest = max(
        (each for line in made for each in line.series.values()), key=lambda each: each.middle
    )
    name, batch = next(
        (line.name, x) for line in made for x, each in line.series.items() if each is fastest
    )
    said = (
        band_words(each for line in made for each in line.series.values())
        .replace("dot", "line")
        .replace("bar", "band")
    )
    noisy = "~: a sample was disturbed" if any(line.name.endswith("~") for line in made) else ""
    title = f"{name.removesuffix(' ~')}: {value_words(fastest)} samples at batch size {batch:.0f}"
    fig, (ax,) = style.figure(
        title=title, subtitle="; ".join(part for part in (said, noisy, where) if part)
    )
    lines.panel(ax, made, metric="samples_rate", x_label="batch size", x_unit="1")
    return fig

"""The chart of each benchmark, and all pictures of a run."""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from perfdag.charts import dots, lines, style
from perfdag.charts.benchmarks import generic, pairs, sweeps
from perfdag.charts.files import to_bytes
from perfdag.charts.pages import words
from perfdag.charts.series import (
    Cell,
    band_words,
    failed_labels,
    metrics,
    of_benchmark,
    read,
    runs_words,
    sweep,
    swept_param,
)
from perfdag.results.runs import load_plan
from perfdag.results.schema import load_rows
from perfdag.results.trust import trust_in
from perfdag.store.open import open_store
from perfdag.units import plural

Figures = Callable[[pa.Table], Iterable[tuple[str, Figure]]]
Put = Callable[[str, bytes], Any]


@dataclass(frozen=True)
class Picture:
    """One figure of a benchmark as files. `title` is its result in words."""

    benchmark: str
    slug: str
    title: str
    svg: bytes
    png: bytes

    @property
    def name(self) -> str:
        """File name without its suffix."""
        return f"{self.benchmark}-{self.slug}"


@cache
def chart(benchmark: str) -> Figures:
    """Return the function that draws a benchmark: of an entry point, a module, or generic."""
    for point in entry_points(group="perfdag.charts", name=benchmark):
        entry = point.load()
        return _figures(entry) or entry
    name = benchmark.replace("-", "_")
    module = f"perfdag.charts.benchmarks.{name}"
    if name.isidentifier() and find_spec(module) is not None:
        return _figures(import_module(module)) or generic.figures
    return generic.figures


def _figures(module: Any) -> Figures | None:
    function: Figures | None = getattr(module, "figures", None)
    return function


def benchmarks(table: pa.Table) -> list[str]:
    """Return the benchmarks of the rows in their order, without the canary."""
    return [name for name in pc.unique(table["benchmark"]).to_pylist() if name and name != "canary"]


def draw(table: pa.Table) -> Iterator[Picture]:
    """Yield the pictures of all benchmarks. A chart that fails becomes a picture of its error."""
    for name in benchmarks(table):
        rows = of_benchmark(table, name)
        with style.house():
            try:
                for slug, figure in _all(name, rows):
                    yield _picture(name, slug, figure)
            except Exception as error:
                reason = f"the chart of {name} failed ({type(error).__name__}: {error})"
                yield _picture(name, "error", style.no_data(f"{reason}; the rows are complete"))


def _all(name: str, rows: pa.Table) -> Iterator[tuple[str, Figure]]:
    """Yield the charts of a benchmark: its own, and a matrix of points measured in pairs."""
    if not pc.any(pc.equal(rows["phase"], "measure")).as_py():
        yield "points", style.no_data()
        return
    of_pairs = pc.is_valid(rows["pair"])
    whole = rows.filter(pc.invert(of_pairs))
    if whole.num_rows:
        yield from chart(name)(whole)
    if whole.num_rows < rows.num_rows:
        yield from pairs.figures(rows.filter(of_pairs))


def file_name(benchmark: str) -> str:
    """Return the part of a file name that stands for the benchmark."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", benchmark)


def _picture(benchmark: str, slug: str, figure: Figure) -> Picture:
    clean = re.sub(r"[^a-z0-9]+", "-", slug.lower()).strip("-") or "chart"
    title = next((text.get_text() for text in figure.texts if text.get_gid() == "title"), "")
    svg, png = to_bytes(figure)
    return Picture(file_name(benchmark), clean, " ".join(title.split()), svg, png)


def render(table: pa.Table, to: Path | str | Put) -> list[str]:
    """Draw every benchmark as SVG and PNG into a folder or through a callback. Return the names."""
    return put_all(draw(table), to)


def put_all(pictures: Iterable[Picture], to: Path | str | Put) -> list[str]:
    """Write pictures into a folder or through a callback. Return the names of the files."""
    put = to if callable(to) else _folder(Path(to))
    names = []
    for picture in pictures:
        for name, data in (
            (f"{picture.name}.svg", picture.svg),
            (f"{picture.name}.png", picture.png),
        ):
            put(name, data)
            names.append(name)
    return names


def _folder(folder: Path) -> Put:
    folder.mkdir(parents=True, exist_ok=True)
    return lambda name, data: (folder / name).write_bytes(data)


PANELS = 5


@style.in_house_style
def overview(table: pa.Table) -> Figure:
    """Draw the first headline metric of each benchmark as lines over what was swept, or as dots."""
    own_cells = [(name, read(of_benchmark(table, name))) for name in benchmarks(table)[:PANELS]]
    own_cells = [
        (name, shown)
        for name, cells in own_cells
        if (shown := [cell for cell in cells if cell.why or metrics([cell])])
    ]
    if not own_cells:
        return style.no_data()
    cells = [cell for _, own in own_cells for cell in own]
    suite = next((name for name in table["suite"].unique().to_pylist() if name), "")
    series = [series for cell in cells for series in cell.state.series if series.headline]
    noisy = "~ and hollow: a sample was disturbed" if any(cell.noisy for cell in cells) else ""
    machine = "; ".join(
        kind for kind in table["env_class"].unique().to_pylist() if kind and " x [" not in kind
    )
    _, ended = words.how_it_ended(cells)
    trust = trust_in(table, [cell.state for cell in cells])
    fig, axes = style.figure(
        len(own_cells),
        [_height(own) for _, own in own_cells],
        title=f"Suite {suite}: {plural(len(cells), 'point')} of "
        f"{plural(len(own_cells), 'benchmark')}. {ended} Trust: {trust.level}.",
        subtitle=style.caption(band_words(series), noisy, machine, runs_words(table)),
    )
    for ax, (name, own) in zip(axes, own_cells, strict=True):
        _panel(ax, name, own)
    return fig


def _swept(cells: Sequence[Cell]) -> str | None:
    return sweep([series for cell in cells for series in cell.series("latency", "mean")])


def _param(cells: Sequence[Cell]) -> str | None:
    return swept_param([cell for cell in cells if not cell.why])


def _height(cells: Sequence[Cell]) -> float:
    metric = (metrics(cells) or [""])[0]
    if coordinate := _swept(cells):
        return lines.height(*_latencies(cells, coordinate), 2.6)
    if param := _param(cells):
        return lines.height(sweeps.curves(cells, metric, param), failed_labels(cells))
    return dots.height(cells, dots.groups(cells, metric))


def _panel(ax: Axes, name: str, cells: Sequence[Cell]) -> None:
    coordinate = _swept(cells)
    metric = (metrics(cells) or [""])[0]
    if coordinate is None and (param := _param(cells)):
        lines.panel(
            ax,
            sweeps.curves(cells, metric, param),
            metric=metric,
            x_label=f"{name}: {param.replace('_', ' ')}",
            x_unit="1",
            failed=failed_labels(cells),
        )
        return
    if coordinate is None:
        dots.panel(ax, cells, dots.groups(cells, metric), metric)
        ax.set_xlabel(": ".join(filter(None, (name, ax.get_xlabel()))))
        return
    kind = cells[0].state.params.get("benchmark")
    curves, failed = _latencies(cells, coordinate)
    lines.panel(
        ax,
        curves,
        metric="latency",
        x_label=f"{' '.join(filter(None, (name, kind)))}: {coordinate.replace('_', ' ')}",
        log_y=True,
        failed=failed,
    )


def _latencies(cells: Sequence[Cell], coordinate: str) -> tuple[list[lines.Line], list[str]]:
    """Return lines of latency of the first operation, and its points without a valid sample."""
    kind = cells[0].state.params.get("benchmark")
    own = [cell for cell in cells if cell.state.params.get("benchmark") == kind]
    short = {
        cell.state.point: " ".join(w for w in cell.label.split(" ") if w != f"benchmark={kind}")
        for cell in own
    }
    pairs = [
        (short[cell.state.point] + (" ~" if cell.noisy else ""), series)
        for cell in own
        for series in cell.series("latency", "mean")
    ]
    failed = [
        f"{short[cell.state.point]}: {(cell.why or '').split(':')[0]}" for cell in own if cell.why
    ]
    return lines.lines_of(pairs, coordinate)[: sweeps.MOST_LINES], failed


def main(argv: Sequence[str]) -> int:
    """Draw a stored run into a PNG or SVG file."""
    if len(argv) != 3:
        sys.stderr.write("usage: python -m perfdag.charts.pages.pick ROOT RUN FILE.png\n")
        return 2
    store = open_store(argv[0])
    plan = load_plan(store, argv[1])
    table = load_rows(store, suites=[plan.suite], runs=[plan.run_id])
    with style.house():
        svg, png = to_bytes(overview(table))
    Path(argv[2]).write_bytes(svg if argv[2].endswith(".svg") else png)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

"""The chart of each benchmark, and all pictures of a run."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.figure import Figure

from perfdag.charts import style
from perfdag.charts.benchmarks import generic, pairs
from perfdag.charts.files import to_bytes
from perfdag.charts.series import of_benchmark

Figures = Callable[[pa.Table], Iterable[tuple[str, Figure]]]


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

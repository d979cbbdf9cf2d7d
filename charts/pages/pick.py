"""The chart of each benchmark, and all pictures of a run."""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import entry_points

import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.figure import Figure

from perfdag.charts import pairs, style
from perfdag.charts.benchmarks import CHARTS, headlines
from perfdag.charts.files import to_bytes, to_svg
from perfdag.charts.series import of_benchmark
from perfdag.charts.view import Chart, figures


@dataclass(frozen=True)
class Picture:
    """One figure of a benchmark as files. `title` is its result in words.

    `narrow` is an SVG for phones, or empty.
    """

    benchmark: str
    slug: str
    title: str
    svg: bytes
    png: bytes
    narrow: bytes = b""

    @property
    def name(self) -> str:
        """File name without its suffix."""
        return f"{self.benchmark}-{self.slug}"


def charts(benchmark: str) -> Sequence[Chart]:
    """Return what is drawn of a benchmark: its declaration, an entry point, or its headlines."""
    if own := CHARTS.get(benchmark):
        return own
    found = entry_points(group="perfdag.charts", name=benchmark)
    return next((list(point.load()) for point in found), (headlines,))


def benchmarks(table: pa.Table) -> list[str]:
    """Return the benchmarks of the rows in their order, without the canary."""
    return [name for name in pc.unique(table["benchmark"]).to_pylist() if name and name != "canary"]


def draw(table: pa.Table) -> Iterator[Picture]:
    """Yield the pictures of all benchmarks. A chart that fails becomes a picture of its error."""
    for name in benchmarks(table):
        rows = of_benchmark(table, name)
        with style.house():
            try:
                small: dict[str, bytes] = {}
                with style.narrow(), suppress(Exception):  # what fails is told below
                    small.update((slug, to_svg(figure)) for slug, figure in _all(name, rows))
                for slug, figure in _all(name, rows):
                    yield _picture(name, slug, figure, small.get(slug, b""))
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
        yield from figures(whole, charts(name))
    if whole.num_rows < rows.num_rows:
        yield from pairs.figures(rows.filter(of_pairs))


def file_name(benchmark: str) -> str:
    """Return the part of a file name that stands for the benchmark."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", benchmark)


def _picture(benchmark: str, slug: str, figure: Figure, narrow: bytes = b"") -> Picture:
    clean = re.sub(r"[^a-z0-9]+", "-", slug.lower()).strip("-") or "chart"
    title = next((text.get_text() for text in figure.texts if text.get_gid() == "title"), "")
    svg, png = to_bytes(figure)
    return Picture(file_name(benchmark), clean, " ".join(title.split()), svg, png, narrow)

"""The pictures of a run: figures as reproducible SVG and PNG files, and inside its page."""

import base64
import io
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from html import escape
from importlib.metadata import entry_points
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from markupsafe import Markup
from matplotlib.figure import Figure

from perfdag.charts import style
from perfdag.charts.benchmarks import CHARTS, headlines, pair_figures
from perfdag.charts.style import HOVERS, PNG_DPI, house
from perfdag.charts.view import Chart, figures
from perfdag.results.summary import PointState, Summary

INLINE = 200_000  # bytes of an SVG above which its PNG stands in, where that is smaller
NARROW = 60_000  # bytes of an SVG for phones above which the wide one scrolls there
_VARIABLES = {
    style.INK: "var(--ink)",
    style.MUTED: "var(--muted)",
    style.GRID: "var(--grid)",
    style.PAPER: "var(--paper)",
    style.WORSE: "var(--bad)",
    style.BETTER: "var(--good)",
    style.UNCLEAR: "var(--noisy)",
    **{colour: f"var(--s{i})" for i, colour in enumerate(style.SERIES)},
}


def to_bytes(fig: Figure, dpi: int = PNG_DPI) -> tuple[bytes, bytes]:
    """Return a figure as (SVG, PNG). Equal input gives equal bytes: no date and no random ids."""
    svg = to_svg(fig, hovers=True)  # and its layout, which both files share
    png = io.BytesIO()
    with house(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")
        fig.savefig(png, format="png", dpi=dpi, metadata={"Software": None})
    return svg, png.getvalue()


def to_svg(fig: Figure, *, hovers: bool = False) -> bytes:
    """Return a figure as SVG, with `hovers` as titles of its marks."""
    file = io.BytesIO()
    with house(), warnings.catch_warnings():
        # names in any script: the browser's fonts have them
        warnings.filterwarnings("ignore", "Glyph .* missing")
        engine = fig.get_layout_engine()
        if engine is not None:
            engine.execute(fig)
            # With an engine, each saving would lay out the figure.
            fig.set_layout_engine(None)
            for axes in fig.axes:
                # The last bits of the layout vary by process, and ids depend on them.
                x, y, width, height = axes.get_position(original=True).bounds
                axes.set_position((round(x, 6), round(y, 6), round(width, 6), round(height, 6)))
        lines = chain.from_iterable(axes.lines for axes in fig.axes)
        marks = [line for line in lines if hovers and line in HOVERS]
        for number, line in enumerate(marks):
            line.set_gid(f"marks-{number}")
        fig.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    svg = _with_titles(file.getvalue(), [HOVERS[line] for line in marks])
    # Only ids in use, only characters that XML allows, and fonts of other machines.
    used = set(re.findall(rb'(?:url\(#|xlink:href="#)([^")]+)', svg))
    svg = re.sub(rb' id="([^"]*)"', lambda match: match[0] if match[1] in used else b"", svg)
    svg = re.sub(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]", b" ", svg)
    return re.sub(rb"'DejaVu Sans'(, sans-serif)?", b"'DejaVu Sans', Verdana, sans-serif", svg)


def _with_titles(svg: bytes, hovers: Sequence[list[str]]) -> bytes:
    """Put hover texts as titles into the marks of each line, whose ids have its number."""

    def with_titles(group: re.Match[bytes]) -> bytes:
        texts = hovers[int(group[1])]
        if group[0].count(b"<use ") != len(texts):
            return group[0]  # a mark lies outside of the figure
        titles = iter(f"><title>{escape(text)}</title></use>".encode() for text in texts)
        return re.sub(rb"(<use [^>]*?)/>", lambda mark: mark[1] + next(titles), group[0])

    return re.sub(rb'(?s)<g id="marks-(\d+)">.*?</g>\s*</g>', with_titles, svg)


def printable(value: Any) -> Any:
    """Replace the characters that a page may not hold."""
    if isinstance(value, Markup):
        return value
    return re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]", " ", str(value))


@dataclass(frozen=True)
class Picture:
    """One figure of a benchmark as files. `title` is its result in words.

    `narrow` is an SVG for phones, or empty. A `wide` one is as wide as a page; `draw` makes the
    figure anew, so that it can be one.
    """

    benchmark: str
    slug: str
    title: str
    svg: bytes
    png: bytes
    narrow: bytes = b""
    wide: bool = False
    draw: Callable[[], Figure] | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """File name without its suffix."""
        return f"{self.benchmark}-{self.slug}"


def fill_rows(drawn: Sequence[Picture]) -> Sequence[Picture]:
    """Return pictures of which none stands alone in a row of two: the last one takes its row."""
    draw = drawn[-1].draw if len(drawn) % 2 else None
    if draw is None:
        return drawn
    figure = draw()
    figure.set_figwidth(style.FULL.width)
    svg, png = to_bytes(figure)
    return [*drawn[:-1], replace(drawn[-1], svg=svg, png=png, wide=True)]


def charts(benchmark: str) -> Sequence[Chart]:
    """Return what is drawn of a benchmark: its declaration, an entry point, or its headlines."""
    if benchmark in CHARTS:
        return CHARTS[benchmark]
    declared = entry_points(group="perfdag.charts", name=benchmark)
    return next((list(point.load()) for point in declared), (headlines,))


def benchmarks(table: pa.Table) -> list[str]:
    """Return the benchmarks of the rows in their order, without the canary."""
    return [name for name in pc.unique(table["benchmark"]).to_pylist() if name and name != "canary"]


def draw_pictures(run: Summary) -> Iterator[Picture]:
    """Yield the pictures of all benchmarks. A chart that fails becomes a picture of its error."""
    for name in benchmarks(run.table):
        rows = run.table.filter(pc.equal(run.table["benchmark"], name))
        states = [state for state in run.points if state.benchmark == name]
        with style.house():
            try:
                small: dict[str, bytes] = {}
                with style.narrow(), suppress(Exception):  # what fails is told below
                    small.update(
                        (slug, to_svg(figure)) for slug, figure in _all(name, states, rows)
                    )
                for slug, figure in _all(name, states, rows):
                    picture = picture_of(name, slug, figure, small.get(slug, b""))
                    yield replace(picture, draw=partial(_one, name, states, rows, slug))
            except Exception as error:
                reason = f"the chart of {name} failed ({type(error).__name__}: {error})"
                yield picture_of(name, "error", style.no_data(f"{reason}; the rows are complete"))


def _all(name: str, states: Sequence[PointState], rows: pa.Table) -> Iterator[tuple[str, Figure]]:
    """Yield the charts of a benchmark: its own, and a matrix of points measured in pairs."""
    of_pairs = pc.is_valid(rows["pair"])
    without_pair = rows.filter(pc.invert(of_pairs))
    if without_pair.num_rows:
        alone = [state for state in states if state.pair is None]
        yield from figures(alone, without_pair, charts(name))
    if without_pair.num_rows < rows.num_rows:
        yield from pair_figures(states, rows.filter(of_pairs))


@house()
def _one(name: str, states: Sequence[PointState], rows: pa.Table, slug: str) -> Figure:
    """Return one chart of a benchmark."""
    return next(figure for of_chart, figure in _all(name, states, rows) if of_chart == slug)


def file_name(text: str) -> str:
    """Return the part of a file name that stands for a benchmark or a slug."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", text)


def picture_of(benchmark: str, slug: str, figure: Figure, narrow: bytes = b"") -> Picture:
    """Return a figure with its files."""
    title = next((text.get_text() for text in figure.texts if text.get_gid() == "title"), "")
    names = (file_name(benchmark), file_name(slug), " ".join(title.split()))
    svg, png = to_bytes(figure)
    return Picture(*names, svg, png, narrow, wide=figure.get_figwidth() > style.HALF.width)


def inline_picture(drawn: Picture, number: int) -> Markup:
    """Return a picture inside the page, with a second one for phones.

    It is SVG in the colours of the page, or a smaller PNG.
    """
    title = Markup.escape(printable(drawn.title))
    kinds = ["wide"] if drawn.wide else []
    if len(drawn.svg) > INLINE and len(drawn.png) * 4 / 3 < len(drawn.svg):
        data = base64.b64encode(drawn.png).decode()
        shown = f'<img alt="{title}" src="data:image/png;base64,{data}">'
    else:
        shown = _svg(drawn.svg, f"c{number}-", f'role="img" tabindex="0" aria-label="{title}"')
        if 0 < len(drawn.narrow) <= NARROW:
            attributes = f'class="narrow" role="img" aria-label="{title}"'
            shown += _svg(drawn.narrow, f"n{number}-", attributes)
            kinds.append("both")
    return Markup(f'<figure class="{" ".join(kinds)}">{shown}</figure>')


def _svg(data: bytes, prefix: str, attributes: str) -> str:
    """Return an SVG in the colours of the page, with ids and attributes of its own."""
    svg = re.sub(r"(?s)^.*?(?=<svg)|<metadata>.*?</metadata>|<style .*?</style>", "", data.decode())
    svg = re.sub(r"^<svg\b[^>]*>", lambda tag: re.sub(r' (width|height)="[^"]*"', "", tag[0]), svg)
    colours = "|".join(_VARIABLES)
    svg = re.sub(
        r'style="[^"]*"',
        lambda match: re.sub(colours, lambda colour: _VARIABLES[colour[0]], match[0]),
        svg,
    )
    svg = re.sub(r'(\bid="|xlink:href="#|url\(#)', rf"\g<1>{prefix}", svg)
    return svg.replace("<svg ", f"<svg {attributes} ", 1)

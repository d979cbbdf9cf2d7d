"""Figures as reproducible SVG and PNG files."""

import io
import re
import warnings
from html import escape

from matplotlib.figure import Figure

from perfdag.charts.style import HOVERS, PNG_DPI, house

_FONT = re.compile(rb"'DejaVu Sans'(, sans-serif)?")
_ID = re.compile(rb' id="([^"]*)"')
_REFERENCES = re.compile(rb'(?:url\(#|xlink:href="#)([^")]+)')
_MARKS = re.compile(rb'<g id="(marks-\d+)">.*?</g>\s*</g>', re.S)
_MARK = re.compile(rb"(<use [^>]*?)/>")
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")


def to_bytes(fig: Figure, dpi: int = PNG_DPI) -> tuple[bytes, bytes]:
    """Return a figure as (SVG, PNG). Equal input gives equal bytes: no date and no random ids."""
    # Both files share one layout.
    svg, png = to_svg(fig, hovers=True), io.BytesIO()
    with house(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")
        fig.savefig(png, format="png", dpi=dpi, metadata={"Software": None})
    return svg, png.getvalue()


def to_svg(fig: Figure, *, hovers: bool = False) -> bytes:
    """Return a figure as SVG, with `hovers` as titles of its marks."""
    with house(), warnings.catch_warnings():
        # names in any script: the browser's fonts have them
        warnings.filterwarnings("ignore", "Glyph .* missing")
        svg = io.BytesIO()
        engine = fig.get_layout_engine()
        if engine is not None:
            engine.execute(fig)
            # With an engine, each saving would lay out the figure.
            fig.set_layout_engine(None)
            _round_positions(fig)
        texts = _named_marks(fig) if hovers else {}
        fig.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    return _clean(_with_titles(svg.getvalue(), texts))


def _named_marks(fig: Figure) -> dict[bytes, list[str]]:
    """Give the lines with hover texts ids of their own. Return the texts by id."""
    lines = [line for axes in fig.axes for line in axes.lines if line in HOVERS]
    for number, line in enumerate(lines):
        line.set_gid(f"marks-{number}")
    return {f"marks-{number}".encode(): HOVERS[line] for number, line in enumerate(lines)}


def _with_titles(svg: bytes, hovers: dict[bytes, list[str]]) -> bytes:
    """Put the hover texts as titles into the marks of their lines."""

    def with_titles(group: re.Match[bytes]) -> bytes:
        if len(_MARK.findall(group[0])) != len(hovers[group[1]]):
            return group[0]  # a mark lies outside of the figure
        texts = iter(hovers[group[1]])
        return _MARK.sub(
            lambda mark: mark[1] + f"><title>{escape(next(texts, ''))}</title></use>".encode(),
            group[0],
        )

    return _MARKS.sub(with_titles, svg) if hovers else svg


def _round_positions(fig: Figure) -> None:
    """Round positions. The last bits of the layout vary by process, and ids depend on them."""
    for axes in fig.axes:
        x, y, width, height = axes.get_position(original=True).bounds
        axes.set_position((round(x, 6), round(y, 6), round(width, 6), round(height, 6)))


def _clean(svg: bytes) -> bytes:
    """Clean an SVG: only ids in use, only characters that XML allows, fonts for other machines."""
    references = set(_REFERENCES.findall(svg))
    svg = _ID.sub(lambda match: match[0] if match[1] in references else b"", svg)
    return _FONT.sub(b"'DejaVu Sans', Verdana, sans-serif", _CONTROL.sub(b" ", svg))

"""Figures as reproducible SVG and PNG files."""

import io
import re
import warnings

from matplotlib.figure import Figure

from perfdag.charts.style import PNG_DPI, house

_FONT = re.compile(rb"'DejaVu Sans'(, sans-serif)?")
_ID = re.compile(rb' id="([^"]*)"')
_USED = re.compile(rb'(?:url\(#|xlink:href="#)([^")]+)')
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")


def to_bytes(fig: Figure) -> tuple[bytes, bytes]:
    """Return a figure as (SVG, PNG). Equal input gives equal bytes: no date and no random ids."""
    with house(), warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "Glyph .* missing"
        )  # names in any script: the browser's fonts have them
        svg, png = io.BytesIO(), io.BytesIO()
        engine = fig.get_layout_engine()
        if engine is not None:
            engine.execute(fig)
            # Both files share one layout. With an engine, each saving would lay out the figure.
            fig.set_layout_engine(None)
            _round_positions(fig)
        fig.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
        fig.savefig(png, format="png", dpi=PNG_DPI, metadata={"Software": None})
    return _clean(svg.getvalue()), png.getvalue()


def _round_positions(fig: Figure) -> None:
    """Round positions. The last bits of the layout vary by process, and ids depend on them."""
    for axes in fig.axes:
        x, y, width, height = axes.get_position(original=True).bounds
        axes.set_position((round(x, 6), round(y, 6), round(width, 6), round(height, 6)))


def _clean(svg: bytes) -> bytes:
    """Clean an SVG: only ids in use, only characters that XML allows, fonts for other machines."""
    used = set(_USED.findall(svg))
    svg = _ID.sub(lambda match: match[0] if match[1] in used else b"", svg)
    return _FONT.sub(b"'DejaVu Sans', Verdana, sans-serif", _CONTROL.sub(b" ", svg))

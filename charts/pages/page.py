"""What all pages share: templates whose text is escaped, and pictures inside the page."""

import base64
import re
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from perfdag.charts import style
from perfdag.charts.pages.pick import Picture
from perfdag.units import plural

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
_COLOUR = re.compile("|".join(_VARIABLES))
_HEAD = re.compile(r"^.*?(?=<svg)", re.S)
_METADATA = re.compile(r"<metadata>.*?</metadata>|<style type=\"text/css\">.*?</style>", re.S)
_SIZE = re.compile(r"^<svg\b[^>]*>")
_STYLE = re.compile(r'style="[^"]*"')
_ID = re.compile(r'(\bid="|xlink:href="#|url\(#)')
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


def _clean(value: Any) -> Any:
    """Replace the characters that a page may not hold."""
    return value if isinstance(value, Markup) else _CONTROL.sub(" ", str(value))


@cache
def templates() -> Environment:
    """Return the templates of the pages. They escape every text."""
    folder = PackageLoader("perfdag.charts", "templates")
    environment = Environment(
        loader=folder,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=_clean,
    )
    environment.filters["plural"] = plural
    environment.globals["source"] = source
    return environment


@cache
def source(name: str) -> Markup:
    """Return a style or script of the pages."""
    return Markup(files("perfdag.charts").joinpath(name).read_text("utf-8"))


def picture(drawn: Picture, number: int) -> Markup:
    """Return a picture inside the page, with a second one for phones.

    It is SVG in the colours of the page, or a smaller PNG.
    """
    title = Markup.escape(_clean(drawn.title))
    if len(drawn.svg) > INLINE and len(drawn.png) * 4 / 3 < len(drawn.svg):
        data = base64.b64encode(drawn.png).decode()
        return Markup(f'<figure><img alt="{title}" src="data:image/png;base64,{data}"></figure>')
    shown = _svg(drawn.svg, f"c{number}-", f'role="img" tabindex="0" aria-label="{title}"')
    if 0 < len(drawn.narrow) <= NARROW:
        own = f'class="narrow" role="img" aria-label="{title}"'
        return Markup(
            f'<figure class="both">{shown}{_svg(drawn.narrow, f"n{number}-", own)}</figure>'
        )
    return Markup(f"<figure>{shown}</figure>")


def _svg(data: bytes, prefix: str, attributes: str) -> str:
    """Return an SVG in the colours of the page, with ids and attributes of its own."""
    svg = _METADATA.sub("", _HEAD.sub("", data.decode()))
    svg = _SIZE.sub(lambda tag: re.sub(r' (width|height)="[^"]*"', "", tag[0]), svg)
    svg = _STYLE.sub(lambda match: _COLOUR.sub(lambda colour: _VARIABLES[colour[0]], match[0]), svg)
    svg = _ID.sub(lambda match: f"{match[1]}{prefix}", svg)
    return svg.replace("<svg ", f"<svg {attributes} ", 1)

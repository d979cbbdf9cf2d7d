"""Pieces of the report in HTML. Every text from outside goes through `text()`."""

import base64
import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from perfdag.charts import style
from perfdag.charts.pages.pick import Picture
from perfdag.charts.series import Cell, Series
from perfdag.units import short

ROWS = 400  # most rows of a table; the Parquet file has all
INLINE = 300_000  # bytes of an SVG above which its PNG stands in, where that is smaller
_SERIES = {colour: f"var(--s{i})" for i, colour in enumerate(style.SERIES)}
_VARIABLES = {
    style.INK: "var(--ink)",
    style.MUTED: "var(--muted)",
    style.GRID: "var(--grid)",
    style.PAPER: "var(--paper)",
    **_SERIES,
}
_COLOUR = re.compile("|".join(_VARIABLES))
_HEAD = re.compile(r"^.*?(?=<svg)", re.S)
_METADATA = re.compile(r"<metadata>.*?</metadata>|<style type=\"text/css\">.*?</style>", re.S)
_SIZE = re.compile(
    r'(<svg\b[^>]*?) width="[^"]*"([^>]*?) height="[^"]*"|(<svg\b[^>]*?) height="[^"]*"([^>]*?) width="[^"]*"'
)
_STYLE = re.compile(r'style="[^"]*"')
_ID = re.compile(r'(\bid="|xlink:href="#|url\(#)')


def text(value: Any) -> str:
    """Text made safe for HTML, in elements and attributes; control characters that no page may hold become a space."""
    return escape(re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]", " ", str(value)))


def picture(drawn: Picture, number: int) -> str:
    """A picture inside the page: SVG in the page's colours (they follow light and dark), or the PNG of a very large one."""
    if len(drawn.svg) > INLINE and len(drawn.png) * 4 / 3 < len(drawn.svg):
        data = base64.b64encode(drawn.png).decode()
        return (
            f'<figure><img alt="{text(drawn.title)}" src="data:image/png;base64,{data}"></figure>'
        )
    svg = _METADATA.sub("", _HEAD.sub("", drawn.svg.decode()))
    svg = _SIZE.sub(lambda m: f"{m[1] or m[3]}{m[2] or m[4]}", svg, count=1)
    svg = _STYLE.sub(lambda match: _COLOUR.sub(lambda colour: _VARIABLES[colour[0]], match[0]), svg)
    svg = _ID.sub(lambda match: f"{match[1]}c{number}-", svg)
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{text(drawn.title)}" ', 1)
    return f"<figure>{svg}</figure>"


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    classes: Sequence[str] = (),
    stack: bool = False,
) -> str:
    """A table of cells that are HTML already; `classes` by column; `stack` puts the cells of a row below each other on a phone."""
    kinds = [*classes, *[""] * (len(head) - len(classes))]

    def cell(tag: str, value: str, kind: str) -> str:
        return f'<{tag} class="{kind}">{value}</{tag}>' if kind else f"<{tag}>{value}</{tag}>"

    top = "".join(
        cell("th", text(name), "n" if kind == "n" else "")
        for name, kind in zip(head, kinds, strict=True)
    )
    body = "\n".join(
        f"<tr>{''.join(cell('td', value, kind) for value, kind in zip(row, kinds, strict=True))}</tr>"
        for row in rows
    )
    opening = '<table class="stack">' if stack else "<table>"
    return f'<div class="scroll">{opening}<thead><tr>{top}</tr></thead><tbody>\n{body}\n</tbody></table></div>'


def split_unit(value: float, unit: str, like: float) -> str:
    """The number of a value in the multiple of its unit that suits `like`: (2.3e10, "bit/s", 2e10) is `23`."""
    return f"{value / style.scaled(unit, abs(like))[0]:.4g}"


def values(pairs: Sequence[tuple[Cell, Series]], limit: int = ROWS) -> str:
    """Series with median, spread, n and unit, the point named where it changes; more than `limit` are cut, and it says so."""
    rows, last = [], None
    for cell, series in pairs[:limit]:
        band = series.band
        _, unit = style.scaled(series.unit, abs(series.middle))
        number = split_unit(series.middle, series.unit, series.middle)
        spread = "-"
        if band.n > 1:
            spread = f"{split_unit(band.low, series.unit, series.middle)} to {split_unit(band.high, series.unit, series.middle)}"
        part = (
            f"{(band.high - band.low) / abs(series.middle):.1%}"
            if series.middle and band.n > 1
            else "-"
        )
        name = style.metric_text(series.metric) + (
            "" if series.stat == "value" else f" {series.stat}"
        )
        about = " ".join(f"{key}={_coordinate(key, value)}" for key, value in series.coords.items())
        label = text(cell.label) if cell is not last else ""
        last = cell
        kind = (
            {"range": "range", "interval": f"{(band.coverage or 0):.0%} interval"}.get(
                band.kind, "-"
            )
            if band.n > 1
            else "-"
        )
        rows.append(
            [
                label,
                text(name) + (f' <span class="muted">{text(about)}</span>' if about else ""),
                f"<strong>{text(number)}</strong>",
                text(spread),
                text(part),
                str(band.n),
                text(unit or "1"),
                kind,
                "~" if cell.noisy else "",
            ]
        )
    head = ("point", "metric", "median", "spread", "of median", "n", "unit", "spread is", "noise")
    html = table(head, rows, ("point", "", "n", "value", "n", "n", "value", "value", ""))
    return html + _left(len(pairs) - limit)


def _left(count: int) -> str:
    return (
        f'<p class="muted small">{count:,} more are in the Parquet file.</p>' if count > 0 else ""
    )


def _coordinate(name: str, value: Any) -> str:
    return (
        short(float(value), "B")
        if name.endswith("bytes") and isinstance(value, int | float)
        else str(value)
    )


def problems(cells: Sequence[Cell], wanted: Sequence[str]) -> str:
    """Points with samples of these statuses, and their reasons."""
    rows = []
    for cell in cells:
        state = cell.state
        counts = ", ".join(
            f"{state.statuses[status]} {status}" for status in wanted if state.statuses.get(status)
        )
        if counts:
            total = sum(state.statuses.values())
            reasons = (
                "<br>".join(text(reason) for reason in state.reasons[:3]) or "no reason was stored"
            )
            rows.append(
                [text(state.entry), text(cell.label), f"{text(counts)} of {total}", reasons]
            )
    if not rows:
        return ""
    return table(
        ("entry", "point", "samples", "reason"), rows[:ROWS], ("", "point", "value", "text"), True
    ) + _left(len(rows) - ROWS)


def facts(rows: Sequence[tuple[str, str]]) -> str:
    """Name and value."""
    return table(
        ("what", "value"), [(text(name), text(value)) for name, value in rows[:ROWS]], ("", "text")
    )

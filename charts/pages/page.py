"""Parts of the report in HTML. All text from outside goes through `text()`."""

import base64
import re
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

import pyarrow as pa

from perfdag.charts import style
from perfdag.charts.pages.pick import Picture
from perfdag.charts.series import Cell
from perfdag.results.summary import Series, own_verdicts, worst_of_points
from perfdag.units import scaled, short

LIMIT = 980_000  # bytes of a page; charts above it are named instead
VERDICTS = 10  # on the first screen; the others are folded
ROWS = 400  # most rows of a table; the Parquet file has all
CLASSES = {
    **dict.fromkeys(("worse", "failed"), "bad"),
    **dict.fromkeys(("better", "passed"), "good"),
    **dict.fromkeys(("unclear", "inconclusive", "unusable", "noisy"), "noisy"),
}
"""Words and their colours in report.css."""
INLINE = 200_000  # bytes of an SVG above which its PNG stands in, where that is smaller
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
_SIZE = re.compile(
    r'(<svg\b[^>]*?) width="[^"]*"([^>]*?) height="[^"]*"|'
    r'(<svg\b[^>]*?) height="[^"]*"([^>]*?) width="[^"]*"'
)
_STYLE = re.compile(r'style="[^"]*"')
_ID = re.compile(r'(\bid="|xlink:href="#|url\(#)')


def document(title: str, body: str, script: str = "") -> str:
    """Return a page in the style of all pages. `body` is HTML, `title` is text."""
    program = f"<script>\n{script}</script>\n" if script else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>\n{css()}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n{program}</body>\n</html>\n"
    )


@cache
def css() -> str:
    """Return the style of every page."""
    return files("perfdag.charts").joinpath("report.css").read_text("utf-8")


@cache
def script() -> str:
    """Return the script that sorts, filters and copies tables of values."""
    return files("perfdag.charts").joinpath("report.js").read_text("utf-8")


def details(summary: str, body: str) -> str:
    """Return HTML that is folded under a summary."""
    return f"<details><summary>{summary}</summary>{body}</details>\n"


def text(value: Any) -> str:
    """Escape text for HTML. Control characters that a page may not hold become a space."""
    return escape(re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]", " ", str(value)))


def picture(source: Picture, number: int) -> str:
    """Return a picture inside the page: SVG in the colours of the page, or a smaller PNG."""
    if len(source.svg) > INLINE and len(source.png) * 4 / 3 < len(source.svg):
        data = base64.b64encode(source.png).decode()
        return (
            f'<figure><img alt="{text(source.title)}" src="data:image/png;base64,{data}"></figure>'
        )
    svg = _METADATA.sub("", _HEAD.sub("", source.svg.decode()))
    svg = _SIZE.sub(lambda m: f"{m[1] or m[3]}{m[2] or m[4]}", svg, count=1)
    svg = _STYLE.sub(lambda match: _COLOUR.sub(lambda colour: _VARIABLES[colour[0]], match[0]), svg)
    svg = _ID.sub(lambda match: f"{match[1]}c{number}-", svg)
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{text(source.title)}" ', 1)
    return f"<figure>{svg}</figure>"


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    classes: Sequence[str] = (),
    stack: bool = False,
    kind: str = "",
) -> str:
    """Return a table of cells that are HTML already, with `classes` by column.

    With `stack`, a phone shows the cells of a row below each other.
    """
    kinds = [*classes, *[""] * (len(head) - len(classes))]

    def cell(tag: str, value: str, kind: str) -> str:
        return f'<{tag} class="{kind}">{value}</{tag}>' if kind else f"<{tag}>{value}</{tag}>"

    top = "".join(
        cell("th", text(name), "n" if kind == "n" else "")
        for name, kind in zip(head, kinds, strict=True)
    )
    contents = (
        "".join(cell("td", value, kind) for value, kind in zip(row, kinds, strict=True))
        for row in rows
    )
    body = "\n".join(f"<tr>{content}</tr>" for content in contents)
    names = " ".join(filter(None, ("stack" if stack else "", kind)))
    opening = f'<table class="{names}">' if names else "<table>"
    return (
        f'<div class="scroll">{opening}<thead><tr>{top}</tr></thead>'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def values(pairs: Sequence[tuple[Cell, Series]], limit: int = ROWS) -> str:
    """Return a table of series with median, spread, n and unit, cut after `limit` rows.

    All values of a metric have the same unit.
    """
    first_pairs = pairs[:limit]
    largest: dict[tuple[str, str], float] = {}
    for _, series in first_pairs:
        key = (series.metric, series.unit)
        largest[key] = max(largest.get(key, 0.0), abs(series.middle))
    units = {key: scaled(key[1], value) for key, value in largest.items()}
    rows, last = [], None
    for cell, series in first_pairs:
        label = text(cell.label) if cell is not last else ""
        last = cell
        rows.append([label, *_cells(cell, series, *units[series.metric, series.unit])])
    head = ["point", "metric", "median", "unit", "spread", "of median", "n", "spread is", "noise"]
    head += ["of nominal"] if any(row[-1] for row in rows) else []
    rows = [row[: len(head)] for row in rows]
    classes = ("point", "", "n", "value", "value", "n", "n", "value", "")
    return table(head, rows, classes, True, "values") + _left(len(pairs) - limit)


def _cells(cell: Cell, series: Series, factor: float, unit: str) -> list[str]:
    """Return the cells of a series after its point, as HTML."""
    band = series.band
    number, low, high = (f"{value / factor:.4g}" for value in (series.middle, band.low, band.high))
    name = style.metric_text(series.metric) + ("" if series.stat == "value" else f" {series.stat}")
    about = " ".join(f"{key}={_coordinate(key, value)}" for key, value in series.coords.items())
    kind = {"range": "range", "interval": f"{(band.coverage or 0):.0%} interval"}.get(band.kind, "")
    several = band.n > 1
    part = (band.high - band.low) / abs(series.middle) if series.middle and several else None
    return [
        text(name) + (f' <span class="muted">{text(about)}</span>' if about else ""),
        f"<strong>{text(number)}</strong>",
        text(unit or "1"),
        text(f"{low} to {high}") if several else "-",
        "-" if part is None else f"{part:.1%}",
        str(band.n),
        kind if several else "-",
        "~" if cell.noisy else "",
        text(series.nominal),
    ]


def verdicts(table: pa.Table) -> str:
    """Return the verdict of each point whose benchmark has one, the failed ones first."""
    items = [
        f'<li><span class="{CLASSES[verdict.word]}"><strong>{text(verdict.where)}</strong>: '
        f"{text(verdict.text)}</span>{text(f' ({count})' if count else '')}</li>"
        for verdict, count in worst_of_points(own_verdicts(table))
    ]
    if not items:
        return ""
    rest = details(f"{len(items) - VERDICTS} more verdicts", _list(items[VERDICTS:]))
    first = f"<p>Verdicts of the benchmarks:</p>\n{_list(items[:VERDICTS])}"
    return first + (rest if len(items) > VERDICTS else "")


def _list(items: Sequence[str]) -> str:
    return f"<ul>{''.join(items)}</ul>\n"


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


def problems(cells: Sequence[Cell], statuses: Sequence[str]) -> str:
    """Return a table of the points with samples of these statuses, and the reasons."""
    rows = []
    for cell in cells:
        state = cell.state
        counts = ", ".join(
            f"{state.statuses[status]} {status}"
            for status in statuses
            if state.statuses.get(status)
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
    """Return a table of names and values."""
    return table(
        ("what", "value"), [(text(name), text(value)) for name, value in rows[:ROWS]], ("", "text")
    )

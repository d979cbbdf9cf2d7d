"""The chart of a benchmark without one of its own: dots, or lines over a numeric coordinate."""

from collections.abc import Iterable, Sequence

import pyarrow as pa
from matplotlib.figure import Figure

from perfdag.charts import dots, lines, style
from perfdag.charts.series import (
    Cell,
    band_words,
    failed_labels,
    metrics,
    read,
    runs_words,
    sweep,
    swept_param,
    value_words,
    words_without,
)
from perfdag.results.summary import Series

PANELS = 3  # metrics in a figure; the others are in the table
ROWS = 24  # points in a figure
FIGURES = 6
MOST_LINES = 12
MOST_FACETS = 6


def figures(rows: pa.Table) -> Iterable[tuple[str, Figure]]:
    """Yield the headline metrics first. Many points need several figures, at most FIGURES."""
    cells = read(rows)
    where = runs_words(rows)
    wanted = metrics(cells)[:PANELS]
    swept = [name for name in wanted if sweep(_of(cells, name))]
    for name in swept:
        yield f"{_slug(name)}-by-{_slug(sweep(_of(cells, name)) or '')}", _lines(cells, name, where)
    plain = [name for name in wanted if name not in swept]
    if swept and not plain:
        return
    if param := swept_param([cell for cell in cells if not cell.why]):
        for metric in plain:
            yield f"{_slug(metric)}-by-{_slug(param)}", param_lines(cells, metric, param, where)
        return
    for slug, some, note in pages(cells):
        yield slug, dot_figure(some, plain, style.caption(note, where))


def pages(cells: Sequence[Cell], slug: str = "points") -> Iterable[tuple[str, Sequence[Cell], str]]:
    """Yield (slug, points of one figure, note) with at most ROWS points and FIGURES figures.

    The note names the number of points that are left out.
    """
    starts = range(0, len(cells), ROWS)
    for number, start in enumerate(starts[:FIGURES]):
        left = len(cells) - ROWS * FIGURES
        note = (
            f"first {ROWS * FIGURES:,} of {len(cells):,} points, the others are in the rows"
            if left > 0
            else ""
        )
        yield (
            slug if len(starts) == 1 else f"{slug}-{number + 1}",
            cells[start : start + ROWS],
            note,
        )


def _of(cells: Iterable[Cell], metric: str) -> list[Series]:
    return [series for cell in cells for series in cell.series(metric)]


def _slug(text: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in text.lower())


def dot_figure(
    cells: Sequence[Cell], wanted: Sequence[str], where: str, title: str | None = None
) -> Figure:
    """Draw one panel of dots per metric."""
    names = list(wanted) or [""]
    shown = {name: dots.groups(cells, name) for name in names}
    series = [series for name in names for series in dots.series_of(shown[name])]
    parts = [
        band_words(series),
        "~ and hollow: a sample was disturbed" if any(c.noisy for c in cells) else "",
        where,
    ]
    fig, axes = style.figure(
        len(names),
        [dots.height(cells, shown[name]) for name in names],
        title=title or finding(cells, names[0]),
        subtitle=style.caption(*parts),
    )
    for i, (ax, name) in enumerate(zip(axes, names, strict=True)):
        dots.panel(ax, cells, shown[name], name, reasons=i == 0)
    return fig


def finding(cells: Sequence[Cell], metric: str) -> str:
    """Return the result of a metric in words: the best point with its spread and n."""
    measured = [(cell, series) for cell in cells for series in cell.series(metric)]
    bad = sum(1 for cell in cells if cell.why)
    tail = f"; {bad} of {len(cells)} points without a valid sample" if bad else ""
    name = style.metric_text(metric)
    if not measured:
        points = f"{len(cells)} point{'s' * (len(cells) != 1)}"
        return f"{cells[0].state.benchmark}: no valid sample in {points}"
    if len(measured) == 1 or len(cells) == 1:
        cell, only = measured[0]
        which = " ".join(part for part in (name, dots.detail(only)) if part)
        return f"{which}: {f'{cell.label}, ' if len(cells) > 1 else ''}{value_words(only)}{tail}"
    better = measured[0][1].better
    if better == "none":
        return f"{name} of {len(cells)} points{tail}"
    cell, best = (max if better == "higher" else min)(measured, key=lambda pair: pair[1].middle)
    word = "highest" if better == "higher" else "lowest"
    which = " ".join(part for part in (name, dots.detail(best)) if part)
    return f"{word} {which}: {cell.label}, {value_words(best)}{tail}"


def param_lines(cells: Sequence[Cell], metric: str, name: str, where: str) -> Figure:
    """Draw a metric over a numeric parameter. The other parameters are colours, or panels."""
    facets = _facets(cells, name)
    drawn = [(label, *_param_curves(own, metric, name, label)) for label, own in facets]
    drawn = [facet for facet in drawn if facet[1]] or drawn[:1]
    every = [series for _, curves, _ in drawn for series in lines.series_of(curves)]
    noisy = "~: a sample was disturbed" if any(cell.noisy for cell in cells) else ""
    fig, axes = style.figure(
        len(drawn),
        title=finding(cells, metric),
        subtitle=style.caption(band_words(every, "line", "band"), noisy, where),
        heights=(2.8,),
    )
    values = [value for series in every for value in series.values]
    log = bool(values) and min(values) > 0 and max(values) / min(values) > dots.LOG_FROM
    sizes = sorted({float(cell.state.params.get(name) or 0) for cell in cells} - {0.0})
    for ax, (label, curves, failed) in zip(axes, drawn, strict=True):
        lines.panel(
            ax,
            curves[:MOST_LINES],
            metric=metric,
            x_label=f"{name.replace('_', ' ')}{f' ({label})' if label else ''}",
            x_unit="B" if name.endswith(("bytes", "size")) else "1",
            log_y=log,
            failed=failed,
            sizes=sizes,
        )
    return fig


def _facets(cells: Sequence[Cell], name: str) -> list[tuple[str, list[Cell]]]:
    """Return the points of each panel: all, or by the parameter that leaves fewest lines."""
    if len({words_without(cell, {name}) for cell in cells}) <= len(style.SERIES):
        return [("", list(cells))]
    counts = {
        other: len({repr(cell.state.params.get(other)) for cell in cells})
        for other in dict.fromkeys(key for cell in cells for key in cell.state.params)
        if other != name
    }
    by = [other for other, count in counts.items() if 1 < count <= MOST_FACETS]
    if not by:
        return [("", list(cells))]
    best = max(by, key=lambda other: counts[other])
    own: dict[str, list[Cell]] = {}
    for cell in cells:
        own.setdefault(f"{best}={cell.state.params.get(best)}", []).append(cell)
    return list(own.items())


def _param_curves(
    cells: Sequence[Cell], metric: str, name: str, facet: str
) -> tuple[list[lines.Line], list[str]]:
    """Return the lines of a panel, and the labels of its points without a value."""
    curves: dict[str, lines.Line] = {}
    noisy = set()
    for cell in cells:
        for series in cell.series(metric):
            own = words_without(cell, {name, facet.partition("=")[0]})
            words = " ".join(filter(None, (own, dots.detail(series)))) or style.metric_text(metric)
            noisy |= {words} if cell.noisy else set()
            if series.values:
                line = curves.setdefault(words, lines.Line(words))
                line.series[float(cell.state.params[name])] = series
    for words in noisy & curves.keys():
        curves[words].name += " ~"
    return list(curves.values()), failed_labels(cells)


def _lines(cells: Sequence[Cell], metric: str, where: str) -> Figure:
    coordinate = sweep(_of(cells, metric)) or ""
    pairs = []
    for cell in cells:
        for series in cell.series(metric):
            rest = " ".join(
                f"{key}={value}" for key, value in series.coords.items() if key != coordinate
            )
            stat = "" if series.stat == "value" else series.stat
            pairs.append((" ".join(part for part in (cell.label, stat, rest) if part), series))
    curves = lines.lines_of(pairs, coordinate)
    unit = "B" if coordinate.endswith(("bytes", "size")) else ""
    title = f"{style.metric_text(metric)} over {coordinate.replace('_', ' ')}"
    parts = [
        band_words([series for _, series in pairs], "line", "band"),
        where,
    ]
    fig, (ax,) = style.figure(title=title, subtitle=style.caption(*parts), heights=(3.0,))
    values = [series.middle for _, series in pairs if series.values]
    log = bool(values) and min(values) > 0 and max(values) / min(values) > dots.LOG_FROM
    failed = failed_labels(cells)
    lines.panel(
        ax,
        curves[:MOST_LINES],
        metric=metric,
        x_label=coordinate.replace("_", " "),
        x_unit=unit or "1",
        log_y=log,
        failed=failed,
    )
    return fig

"""The chart of a benchmark without one of its own: dots, or lines over a numeric coordinate."""

from collections.abc import Iterable, Sequence

import pyarrow as pa
from matplotlib.figure import Figure

from perfdag.charts import dots, lines, style
from perfdag.charts.benchmarks import sweeps
from perfdag.charts.benchmarks.sweeps import FIGURES, MOST_LINES
from perfdag.charts.series import (
    Cell,
    band_words,
    failed_labels,
    metrics,
    noise_words,
    read,
    runs_words,
    sweep,
    swept_param,
    value_words,
)
from perfdag.results.summary import Series, unusable
from perfdag.units import plural

PANELS = 3  # metrics in a figure; the others are in the table
ROWS = 24  # points in a figure


def figures(rows: pa.Table) -> Iterable[tuple[str, Figure]]:
    """Yield the headline metrics first. Many points need several figures, at most FIGURES."""
    cells = read(rows)
    where = runs_words(rows)
    names = metrics(cells)[:PANELS]
    swept = [name for name in names if sweep(_of(cells, name))]
    for name in swept:
        yield f"{_slug(name)}-by-{_slug(sweep(_of(cells, name)) or '')}", _lines(cells, name, where)
    plain = [name for name in names if name not in swept]
    if plain or not swept:
        yield from points(cells, plain, where)


def points(
    cells: Sequence[Cell],
    names: Sequence[str],
    where: str,
    slug: str = "",
    title: str | None = None,
) -> Iterable[tuple[str, Figure]]:
    """Yield metrics as lines over the parameter that was swept, or as dots where none was.

    `title` replaces the result in words of dots. `slug` begins the names of the figures.
    """
    metrics_with_values = [name for name in names if _of(cells, name)]
    param = swept_param([cell for cell in cells if not cell.why]) if metrics_with_values else None
    for metric in metrics_with_values if param else ():
        name = "-".join(filter(None, (slug, _slug(metric), "by", _slug(param or ""))))
        yield from sweeps.figures(cells, metric, param or "", where, name, finding(cells, metric))
    if not param:
        for name, some, note in pages(cells, slug or "points"):
            yield name, dot_figure(some, names, style.caption(note, where), title)


def pages(cells: Sequence[Cell], slug: str) -> Iterable[tuple[str, Sequence[Cell], str]]:
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
    cells: Sequence[Cell], metric_names: Sequence[str], where: str, title: str | None = None
) -> Figure:
    """Draw one panel of dots per metric."""
    names = [name for name in metric_names if _of(cells, name)] or list(metric_names[:1]) or [""]
    groups = {name: dots.groups(cells, name) for name in names}
    series = [series for name in names for series in dots.series_of(groups[name])]
    parts = [
        band_words(series),
        noise_words(cells),
        where,
    ]
    fig, axes = style.figure(
        len(names),
        [dots.height(cells, groups[name]) for name in names],
        title=title or finding(cells, names[0]),
        subtitle=style.caption(*parts),
    )
    for i, (ax, name) in enumerate(zip(axes, names, strict=True)):
        dots.panel(ax, cells, groups[name], name, reasons=i == 0)
    return fig


def finding(cells: Sequence[Cell], metric: str) -> str:
    """Return the result of a metric in words: the best point with its spread and n.

    Points whose samples are too far apart are left out.
    """
    every = [(cell, series) for cell in cells for series in cell.series(metric)]
    bad = sum(1 for cell in cells if cell.why)
    tail = f"; {bad} of {plural(len(cells), 'point')} without a valid sample" if bad else ""
    name = style.metric_text(metric)
    values = [(cell, series) for cell, series in every if not unusable(series)]
    if not every:
        points = plural(len(cells), "point")
        return f"{cells[0].state.benchmark}: no valid sample in {points}"
    if not values:
        return f"{name}: too noisy to rank{tail}"
    if len(every) == 1 or len(cells) == 1:
        cell, only = values[0]
        which = " ".join(part for part in (name, dots.detail(only)) if part)
        return f"{which}: {f'{cell.label}, ' if len(cells) > 1 else ''}{value_words(only)}{tail}"
    better = values[0][1].better
    if better == "none":
        return f"{name} of {plural(len(cells), 'point')}{tail}"
    cell, best = (max if better == "higher" else min)(values, key=lambda pair: pair[1].middle)
    word = "highest" if better == "higher" else "lowest"
    which = " ".join(part for part in (name, dots.detail(best)) if part)
    return f"{word} {which}: {cell.label}, {value_words(best)}{tail}"


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
    failed = failed_labels(cells)
    height = lines.height(curves[:MOST_LINES], failed, 3.0)
    fig, (ax,) = style.figure(title=title, subtitle=style.caption(*parts), heights=(height,))
    values = [series.middle for _, series in pairs if series.values]
    lines.panel(
        ax,
        curves[:MOST_LINES],
        metric=metric,
        x_label=coordinate.replace("_", " "),
        x_unit=unit or "1",
        log_y=dots.needs_log(values),
        failed=failed,
    )
    return fig

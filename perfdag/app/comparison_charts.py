"""The charts of a comparison: a forest plot, and a map of ratios by message size."""

from collections import Counter
from pathlib import Path

import orjson
from matplotlib.figure import Figure

from perfdag.analysis.compare import Comparison, count
from perfdag.app.chart_file import write_chart
from perfdag.charts.pages.compare import Effect, Ratio, forest, ratios
from perfdag.results.labels import series_name


def write_charts(comparison: Comparison, chart: Path | None, sizes_chart: Path | None) -> None:
    """Write the charts that have a path. Raises OSError."""
    if chart:
        write_chart(chart, forest_plot(comparison))
    if sizes_chart:
        write_chart(sizes_chart, size_map(comparison))


def forest_plot(comparison: Comparison) -> Figure:
    """Return the forest plot of the series."""
    effects = [
        Effect(row.full_name, answer.effect, None, None, answer.word)
        for row in comparison.rows
        if not (answer := row.answer).absolute and answer.effect is not None
    ]
    return forest(
        effects,
        f"{comparison.b.words} against {comparison.a.words}: {count(comparison.rows)}",
        f"suite {comparison.b.suite}",
        len(comparison.rows) - len(effects),
    )


def size_map(comparison: Comparison) -> Figure:
    """Return the map of ratios by message size, with a row for each point and metric."""
    cells = []
    for row in comparison.rows:
        coords = orjson.loads(row.info.coords or "{}")
        size = coords.pop("message_bytes", None)
        effect = row.answer.effect
        if size is None or row.answer.absolute or effect is None:
            continue
        stat = "value" if row.info.stat == "mean" else row.info.stat
        name = series_name(row.info.metric, stat, coords, row.info.span)
        label = " ".join(filter(None, (row.info.entry, row.label, name)))
        cells.append(Ratio(label, float(size), effect, row.answer.word))
    cells.sort(key=lambda cell: (cell.row, cell.size))
    counts = Counter(cell.word for cell in cells)
    title = f"{comparison.b.words} against {comparison.a.words}: of {len(cells)} cells"
    title += f" {counts['worse']} worse, {counts['better']} better"
    title += f", {counts['unclear']} unclear" if counts["unclear"] else ""
    return ratios(cells, title, f"suite {comparison.b.suite}")

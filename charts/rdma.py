"""RDMA charts: bandwidth or latency over message size, a line a point and statistic."""

from collections.abc import Iterable, Sequence

import pyarrow as pa
from matplotlib.figure import Figure

from perfdag.charts import lines, style
from perfdag.charts.generic import dot_figure
from perfdag.charts.series import Cell, Series, band_words, read, runs_words, value_words
from perfdag.units import short

LINES = 12


def over_sizes(rows: pa.Table, metric: str, headline: str, stats: Sequence[str], second: str | None = None) -> Iterable[tuple[str, Figure]]:
    """`metric` over message size (the first of `stats`; all of them where there is a single point), and below it `second`."""
    cells, where = read(rows), runs_words(rows)
    measured = [cell for cell in cells if cell.series(metric)]
    if not cells:
        yield "sizes", style.no_data()
        return
    if not measured:
        yield "points", dot_figure(cells, [headline], where, title=f"No {metric}: no sample")
        return
    shown = stats if len(measured) == 1 else stats[:1]
    panels = {metric: _lines(measured, metric, shown)}
    if second:
        panels |= {second: made} if (made := _lines(measured, second, ("mean",))) else {}
    series = [each for made in panels.values() for line in made for each in line.series.values()]
    said = band_words(series).replace("dot", "line").replace("bar", "band")
    what = f"lines: {', '.join(shown)}" if len(shown) > 1 else shown[0]
    fig, axes = style.figure(
        len(panels),
        [2.6] * len(panels),
        title=_finding(measured, headline, metric),
        subtitle="; ".join(x for x in (what, said, where) if x),
        sharex=True,
    )
    failed = [f"{cell.label}: {(cell.why or '').split(':')[0]}" for cell in cells if cell.why]
    sizes = sorted({x for made in panels.values() for line in made for x in line.series})
    for i, (ax, (name, made)) in enumerate(zip(axes, panels.items(), strict=True)):
        last = i == len(panels) - 1
        log = metric == "latency" or name == second
        lines.panel(ax, made, metric=name, x_label="message size" if last else "", log_y=log, failed=failed if last else (), sizes=sizes)
    yield "sizes", fig


def _lines(cells: Sequence[Cell], metric: str, stats: Sequence[str]) -> list[lines.Line]:
    pairs: list[tuple[str, Series]] = []
    for cell in cells:
        for each in cell.series(metric):
            if each.stat in stats:
                pairs.append((each.stat if len(cells) == 1 and len(stats) > 1 else cell.label or cell.state.entry, each))
    return lines.lines_of(pairs, "message_bytes")[:LINES]


def _finding(cells: Sequence[Cell], headline: str, metric: str) -> str:
    best = min if metric == "latency" else max
    found = [(each.middle, cell.label, each) for cell in cells for each in cell.series(headline) if each.values]
    if not found:
        return f"RDMA {metric} over message size"
    _, label, each = best(found, key=lambda row: row[0])
    size = each.coords.get("message_bytes")
    at = f" at {short(float(size), 'B')}" if isinstance(size, int | float) else ""
    return f"RDMA {metric}: {headline.split('_')[0]} {value_words(each)}{at}" + (f" ({label})" if len(cells) > 1 and label else "")

"""RDMA: bandwidth or latency over message size, a line for each point and statistic."""

from collections.abc import Iterable, Sequence

import pyarrow as pa
from matplotlib.figure import Figure

from perfdag.charts import lines, style
from perfdag.charts.benchmarks.generic import points
from perfdag.charts.series import Cell, band_words, failed_labels, read, runs_words, value_words
from perfdag.results.summary import Series, unusable
from perfdag.units import short

LINES = 12


def figures(rows: pa.Table) -> Iterable[tuple[str, Figure]]:
    """Yield one figure of rdma-bandwidth or rdma-latency.

    Bandwidth stands above the message rate, and a single point also shows its peak. A single point
    of latency also shows min, p99 and p99.9. Runs with a fixed duration have the mean alone.
    """
    if "rdma-bandwidth" in rows["benchmark"].unique().to_pylist():
        yield from _over_sizes(
            rows, "bandwidth", "highest_bandwidth", ("mean", "max"), "message_rate"
        )
    else:
        yield from _over_sizes(rows, "latency", "lowest_latency", ("p50", "min", "p99", "p99.9"))


def _over_sizes(
    rows: pa.Table, metric: str, headline: str, stats: Sequence[str], second: str | None = None
) -> Iterable[tuple[str, Figure]]:
    """Draw `metric` over message size, and below it `second`.

    The lines show the first of `stats`, or all of them for a single point. Points without that
    statistic show their mean, and then the lines name theirs.
    """
    cells, where = read(rows), runs_words(rows)
    valid = [cell for cell in cells if cell.series(metric)]
    if not valid:
        yield from points(cells, [headline], where, title=f"No {metric}: no sample")
        return
    typical = [cell for cell in valid if cell.series(metric, stats[0])]
    best = _best(typical or valid, headline, metric)
    plotted_cells = valid[:LINES]
    if best is not None and best[0] not in plotted_cells:
        plotted_cells[-1] = best[0]
    main = [cell for cell in plotted_cells if cell.series(metric, stats[0])]
    stat_names = (stats if len(valid) == 1 else stats[:1]) if main else ("mean",)
    also = ("mean",) if main and len(main) < len(plotted_cells) else ()
    panels = {metric: _lines(plotted_cells, metric, stat_names, also)}
    if second:
        panels |= {second: curves} if (curves := _lines(plotted_cells, second, ("mean",))) else {}
    series = [series for curves in panels.values() for series in lines.series_of(curves)]
    legend = band_words(series, "line", "band")
    what = (
        f"lines: {', '.join(stat_names)}"
        if len(stat_names) > 1
        else " or ".join((*stat_names, *also))
    )
    cut = (
        f"{LINES} of {len(valid)} points{', the best among them' if best else ''}"
        if len(valid) > LINES
        else ""
    )
    failed = failed_labels(cells)
    fig, axes = style.figure(
        len(panels),
        [lines.height(curves, failed, 2.6) for curves in panels.values()],
        title=_finding(best, headline, metric, of_point=len(valid) > 1),
        subtitle=style.caption(what, legend, cut, where),
        sharex=True,
    )
    sizes = sorted({x for curves in panels.values() for line in curves for x in line.series})
    for i, (ax, (name, curves)) in enumerate(zip(axes, panels.items(), strict=True)):
        last = i == len(panels) - 1
        log = metric == "latency" or name == second
        lines.panel(
            ax,
            curves,
            metric=name,
            x_label="message size" if last else "",
            log_y=log,
            failed=failed if last else (),
            sizes=sizes,
        )
    yield "sizes", fig


def _lines(
    cells: Sequence[Cell], metric: str, stats: Sequence[str], otherwise: Sequence[str] = ()
) -> list[lines.Line]:
    """Return the lines of the points. Points without any of `stats` use `otherwise`."""
    pairs: list[tuple[str, Series]] = []
    for cell in cells:
        name = cell.label or cell.state.entry
        names_of_stats = {series.stat for series in cell.series(metric)}
        for series in cell.series(metric):
            if series.stat in (stats if names_of_stats & set(stats) else otherwise):
                label = f"{name} ({series.stat})" if otherwise else name
                pairs.append((series.stat if len(cells) == 1 and len(stats) > 1 else label, series))
    return lines.lines_of(pairs, "message_bytes")


def _best(cells: Sequence[Cell], headline: str, metric: str) -> tuple[Cell, Series] | None:
    """Return the point with the lowest latency or the highest bandwidth, and its headline."""
    candidates = [
        (cell, series)
        for cell in cells
        for series in cell.series(headline)
        if series.values and not unusable(series)
    ]
    return (
        (min if metric == "latency" else max)(candidates, key=lambda pair: pair[1].middle)
        if candidates
        else None
    )


def _finding(
    best: tuple[Cell, Series] | None, headline: str, metric: str, *, of_point: bool
) -> str:
    if best is None:
        return f"RDMA {metric} over message size"
    cell, series = best
    size = series.coords.get("message_bytes")
    at = f" at {short(float(size), 'B')}" if isinstance(size, int | float) else ""
    return f"RDMA {metric}: {headline.split('_')[0]} {value_words(series)}{at}" + (
        f" ({cell.label})" if of_point and cell.label else ""
    )

"""Lines of a metric over a parameter that was swept. The other parameters are colours or panels."""

from collections.abc import Iterable, Sequence

from matplotlib.figure import Figure

from perfdag.charts import dots, lines, style
from perfdag.charts.series import Cell, band_words, failed_labels, noise_words
from perfdag.results.summary import Series

FIGURES = 6
MOST_LINES = 12
"""Lines in a panel. Further lines go on to further figures."""
MOST_PANELS = 6

Pair = tuple[dict[str, str], Cell, Series]
"""A series, its point, and the words that tell it from others: `{"bs": "bs=4KiB"}`."""


def figures(
    cells: Sequence[Cell], metric: str, name: str, where: str, slug: str, title: str
) -> Iterable[tuple[str, Figure]]:
    """Yield slug and figure of a metric over the numeric parameter `name`."""
    panels = _panels(_pairs(cells, metric, name), name)
    count = max(len(curves) for curves in panels.values())
    for number, start in enumerate(range(0, min(count, MOST_LINES * FIGURES), MOST_LINES), 1):
        panel_lines = {
            panel: own
            for panel, curves in panels.items()
            if (own := curves[start : start + MOST_LINES])
        }
        left = count > MOST_LINES * FIGURES and f"first {MOST_LINES * FIGURES} of {count} lines"
        note = style.caption(left or "", where)
        yield (
            slug if count <= MOST_LINES else f"{slug}-{number}",
            _figure(cells, metric, name, panel_lines, note, title),
        )


def curves(cells: Sequence[Cell], metric: str, name: str) -> list[lines.Line]:
    """Return the first lines of a metric over the numeric parameter `name`, for one panel."""
    panels = _panels(_pairs(cells, metric, name), name, facets=False)
    return [line for own in panels.values() for line in own][:MOST_LINES]


def _pairs(cells: Sequence[Cell], metric: str, name: str) -> list[Pair]:
    return [
        (_words(cell, series, name), cell, series)
        for cell in cells
        for series in cell.series(metric)
        if series.values
    ]


def _words(cell: Cell, series: Series, name: str) -> dict[str, str]:
    words = [*cell.label.split(" "), *dots.detail(series).split(" ")]
    by_key = [(word.partition("=")[0], word) for word in words if word]
    ambiguous = {key for key, _ in by_key if sum(key == other for other, _ in by_key) > 1}
    by_key = [(word if key in ambiguous else key, word) for key, word in by_key if key != name]
    return {"statistic" if key == series.stat else key: word for key, word in by_key}


def _panels(pairs: Sequence[Pair], name: str, facets: bool = True) -> dict[str, list[lines.Line]]:
    """Return the lines of each panel: one panel, or one for each value of what splits best."""
    words = {" ".join(own.values()): own for own, _, _ in pairs}
    best = ""
    if facets and len(words) > len(style.SERIES):
        values = {
            key: len({own.get(key) for own in words.values()})
            for key in dict.fromkeys(key for own in words.values() for key in own)
        }
        some = {key: count for key, count in values.items() if 1 < count <= MOST_PANELS}
        best = max(some, key=lambda key: some[key]) if some else ""
    panels: dict[str, dict[str, lines.Line]] = {}
    noisy = set()
    for own, cell, series in pairs:
        rest = " ".join(word for key, word in own.items() if key != best)
        curves = panels.setdefault(own.get(best, "") if best else "", {})
        line = curves.setdefault(rest, lines.Line(rest.strip(": ") or cell.state.entry))
        line.series[float(cell.state.params[name])] = series
        noisy |= {id(line)} if cell.noisy else set()
    for line in (line for curves in panels.values() for line in curves.values()):
        line.name += " ~" if id(line) in noisy else ""
    return {panel: list(curves.values()) for panel, curves in panels.items()}


def _figure(
    cells: Sequence[Cell],
    metric: str,
    name: str,
    panels: dict[str, list[lines.Line]],
    where: str,
    title: str,
) -> Figure:
    every = [series for curves in panels.values() for series in lines.series_of(curves)]
    failed = failed_labels(cells)
    fig, axes = style.figure(
        len(panels),
        [lines.height(curves, failed, 2.8) for curves in panels.values()],
        title=title,
        subtitle=style.caption(band_words(every, "line", "band"), noise_words(cells, "~"), where),
    )
    values = [value for series in every for value in series.values]
    for ax, (panel, curves) in zip(axes, panels.items(), strict=True):
        last = ax is axes[-1]
        lines.panel(
            ax,
            curves,
            metric=metric,
            x_label=f"{name.replace('_', ' ')}{f' ({panel})' if panel else ''}",
            x_unit="B" if name.endswith(("bytes", "size")) and name != "batch_size" else "1",
            log_y=dots.needs_log(values),
            failed=failed if last else (),
            sizes=sorted({float(cell.state.params.get(name) or 0) for cell in cells} - {0.0}),
        )
    return fig

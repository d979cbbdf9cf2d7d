"""iperf: throughput by point with what explains it (retransmits, or loss and jitter), and over streams where there are three or more."""

from collections.abc import Iterable, Sequence

import pyarrow as pa
from matplotlib.figure import Figure

from perfdag.charts import lines, style
from perfdag.charts.generic import dot_figure, finding, pages
from perfdag.charts.series import Cell, band_words, read, runs_words

PANELS = {"tcp": ("throughput", "direction_throughput", "retransmits"), "udp": ("throughput", "lost_fraction", "jitter")}


def figures(rows: pa.Table) -> Iterable[tuple[str, Figure]]:
    """A figure of dots a protocol; throughput over streams as lines."""
    cells = read(rows)
    where = runs_words(rows)
    if not cells:
        yield "points", style.no_data()
    for protocol, panels in PANELS.items():
        own = [cell for cell in cells if cell.state.params.get("protocol", "tcp") == protocol]
        if not own:
            continue
        wanted = [name for name in panels if any(cell.series(name) for cell in own)] or ["throughput"]
        for slug, some, note in pages(own, protocol):
            yield slug, dot_figure(some, wanted, "; ".join(part for part in (_bound(some), note, where) if part))
        if len({cell.state.params.get("streams") for cell in own}) >= 3:
            yield f"{protocol}-streams", _streams(own, where)


def _bound(cells: Sequence[Cell]) -> str:
    """Points whose pace a core set, not the network."""
    bound = [cell.label for cell in cells if any(each.values and each.middle >= 1 for each in cell.series("cpu_bound"))]
    return f"bound by a core, not the network: {', '.join(bound[:6])}" if bound else ""


def _streams(cells: Sequence[Cell], where: str) -> Figure:
    made: dict[str, lines.Line] = {}
    for cell in cells:
        streams = cell.state.params.get("streams")
        name = " ".join(word for word in cell.label.split(" ") if word != f"streams={streams}") or cell.state.entry
        for each in cell.series("throughput", "value"):
            made.setdefault(name, lines.Line(name)).series[float(streams or 1)] = each
    shown = list(made.values())
    said = band_words([each for line in shown for each in line.series.values()]).replace("dot", "line").replace("bar", "band")
    title = f"Throughput over streams; {finding(cells, 'throughput')}"
    fig, (ax,) = style.figure(title=title, subtitle="; ".join(part for part in (said, where) if part))
    failed = [f"{cell.label}: {(cell.why or '').split(':')[0]}" for cell in cells if cell.why]
    lines.panel(ax, shown, metric="throughput", x_label="parallel streams", x_unit="1", failed=failed)
    return fig

"""One figure of a run: a panel per benchmark.

`python -m perfdag.charts.pages.overview ROOT RUN FILE.png` draws it from a store.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from perfdag.charts import dots, lines, style
from perfdag.charts.files import to_bytes
from perfdag.charts.pages import words
from perfdag.charts.pages.pick import benchmarks
from perfdag.charts.series import Cell, band_words, metrics, of_benchmark, read, runs_words, sweep
from perfdag.results.runs import load_plan
from perfdag.results.schema import load_rows
from perfdag.store.open import open_store

PANELS = 5


def overview(table: pa.Table) -> Figure:
    """Draw the first headline metric of each benchmark as dots, or as lines over a coordinate."""
    own_cells = [(name, read(of_benchmark(table, name))) for name in benchmarks(table)[:PANELS]]
    own_cells = [(name, cells) for name, cells in own_cells if cells]
    if not own_cells:
        return style.no_data()
    cells = [cell for _, own in own_cells for cell in own]
    suite = next((name for name in table["suite"].unique().to_pylist() if name), "")
    series = [series for cell in cells for series in cell.state.series if series.headline]
    noisy = "~ and hollow: a sample was disturbed" if any(cell.noisy for cell in cells) else ""
    machine = "; ".join(
        kind for kind in table["env_class"].unique().to_pylist() if kind and " x [" not in kind
    )
    _, ended = words.how_it_ended(cells)
    fig, axes = style.figure(
        len(own_cells),
        [_height(own) for _, own in own_cells],
        title=f"Suite {suite}: {words.plural(len(cells), 'point')} of "
        f"{words.plural(len(own_cells), 'benchmark')}. {ended}",
        subtitle=style.caption(band_words(series), noisy, machine, runs_words(table)),
    )
    for ax, (name, own) in zip(axes, own_cells, strict=True):
        _panel(ax, name, own)
    return fig


def _swept(cells: Sequence[Cell]) -> str | None:
    return sweep([series for cell in cells for series in cell.series("latency")])


def _height(cells: Sequence[Cell]) -> float:
    return (
        2.6
        if _swept(cells)
        else dots.height(cells, dots.groups(cells, (metrics(cells) or [""])[0]))
    )


def _panel(ax: Axes, name: str, cells: Sequence[Cell]) -> None:
    coordinate = _swept(cells)
    if coordinate is None:
        metric = (metrics(cells) or [""])[0]
        dots.panel(ax, cells, dots.groups(cells, metric), metric)
        ax.set_xlabel(f"{name}: {ax.get_xlabel()}")
        return
    kind = cells[0].state.params.get("benchmark")
    own = [cell for cell in cells if cell.state.params.get("benchmark") == kind]
    short = {
        cell.state.point: " ".join(w for w in cell.label.split(" ") if w != f"benchmark={kind}")
        for cell in own
    }
    pairs = [
        (short[cell.state.point] + (" ~" if cell.noisy else ""), series)
        for cell in own
        for series in cell.series("latency", "mean")
    ]
    failed = [
        f"{short[cell.state.point]}: {(cell.why or '').split(':')[0]}" for cell in own if cell.why
    ]
    curves = lines.lines_of(pairs, coordinate)
    lines.panel(
        ax,
        curves,
        metric="latency",
        x_label=f"{name} {kind or ''}: {coordinate.replace('_', ' ')}",
        log_y=True,
        failed=failed,
    )


def main(argv: Sequence[str]) -> int:
    """Draw a stored run into a PNG or SVG file."""
    if len(argv) != 3:
        sys.stderr.write("usage: python -m perfdag.charts.pages.overview ROOT RUN FILE.png\n")
        return 2
    store = open_store(argv[0])
    plan = load_plan(store, argv[1])
    table = load_rows(store, suites=[plan.suite], runs=[plan.run_id])
    with style.house():
        svg, png = to_bytes(overview(table))
    Path(argv[2]).write_bytes(svg if argv[2].endswith(".svg") else png)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

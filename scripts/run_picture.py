"""Draw a picture of a stored run: the README has that of `perfdag run suites/quick.yaml`."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from matplotlib.axes import Axes
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).parent.parent))

from perfdag.charts import dots, lines, style
from perfdag.charts.benchmarks import sweeps
from perfdag.charts.files import to_bytes
from perfdag.charts.pages import words
from perfdag.charts.pages.pick import benchmarks
from perfdag.charts.series import (
    Cell,
    band_words,
    failed_labels,
    metrics,
    noise_words,
    of_benchmark,
    read,
    runs_words,
    sweep,
    swept_param,
)
from perfdag.results.runs import load_plan
from perfdag.results.schema import load_rows
from perfdag.results.summary import trust_in
from perfdag.store.open import open_store
from perfdag.units import plural

PANELS = 5


@style.in_house_style
def run_picture(table: pa.Table) -> Figure:
    """Draw the first headline metric of each benchmark as lines over what was swept, or as dots."""
    own_cells = [(name, read(of_benchmark(table, name))) for name in benchmarks(table)[:PANELS]]
    own_cells = [
        (name, measured)
        for name, cells in own_cells
        if (measured := [cell for cell in cells if cell.why or metrics([cell])])
    ]
    if not own_cells:
        return style.no_data()
    cells = [cell for _, own in own_cells for cell in own]
    suite = next((name for name in table["suite"].unique().to_pylist() if name), "")
    series = [series for cell in cells for series in cell.state.series if series.headline]
    machine = "; ".join(
        kind for kind in table["env_class"].unique().to_pylist() if kind and " x [" not in kind
    )
    _, ended = words.how_it_ended(cells)
    trust = trust_in(table, [cell.state for cell in cells])
    fig, axes = style.figure(
        len(own_cells),
        [_height(own) for _, own in own_cells],
        title=f"Suite {suite}: {plural(len(cells), 'point')} of "
        f"{plural(len(own_cells), 'benchmark')}. {ended} Trust: {trust.level}.",
        subtitle=style.caption(band_words(series), noise_words(cells), machine, runs_words(table)),
    )
    for ax, (name, own) in zip(axes, own_cells, strict=True):
        _panel(ax, name, own)
    return fig


def _swept(cells: Sequence[Cell]) -> str | None:
    return sweep([series for cell in cells for series in cell.series("latency", "mean")])


def _param(cells: Sequence[Cell]) -> str | None:
    return swept_param([cell for cell in cells if not cell.why])


def _height(cells: Sequence[Cell]) -> float:
    metric = (metrics(cells) or [""])[0]
    if coordinate := _swept(cells):
        return lines.height(*_latencies(cells, coordinate), 2.6)
    if param := _param(cells):
        return lines.height(sweeps.curves(cells, metric, param), failed_labels(cells))
    return dots.height(cells, dots.groups(cells, metric))


def _panel(ax: Axes, name: str, cells: Sequence[Cell]) -> None:
    coordinate = _swept(cells)
    metric = (metrics(cells) or [""])[0]
    if coordinate is None and (param := _param(cells)):
        lines.panel(
            ax,
            sweeps.curves(cells, metric, param),
            metric=metric,
            x_label=f"{name}: {param.replace('_', ' ')}",
            x_unit="1",
            failed=failed_labels(cells),
        )
        return
    if coordinate is None:
        dots.panel(ax, cells, dots.groups(cells, metric), metric)
        ax.set_xlabel(": ".join(filter(None, (name, ax.get_xlabel()))))
        return
    kind = cells[0].state.params.get("benchmark")
    curves, failed = _latencies(cells, coordinate)
    lines.panel(
        ax,
        curves,
        metric="latency",
        x_label=f"{' '.join(filter(None, (name, kind)))}: {coordinate.replace('_', ' ')}",
        log_y=True,
        failed=failed,
    )


def _latencies(cells: Sequence[Cell], coordinate: str) -> tuple[list[lines.Line], list[str]]:
    """Return lines of latency of the first operation, and its points without a valid sample."""
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
    return lines.lines_of(pairs, coordinate)[: sweeps.MOST_LINES], failed


def main(argv: Sequence[str]) -> int:
    """Draw a stored run into a PNG or SVG file."""
    if len(argv) != 3:
        sys.stderr.write("usage: python scripts/run_picture.py ROOT RUN FILE.png\n")
        return 2
    store = open_store(argv[0])
    plan = load_plan(store, argv[1])
    table = load_rows(store, suites=[plan.suite], runs=[plan.run_id])
    with style.house():
        svg, png = to_bytes(run_picture(table))
    Path(argv[2]).write_bytes(svg if argv[2].endswith(".svg") else png)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

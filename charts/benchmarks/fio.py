"""Charts of fio: IOPS, bandwidth and latency by point, latency distributions, and queue depth.

IOPS stand against p99 latency where the queue depth has three or more values. Distributed points
show their workers.
"""

import math
import textwrap
from collections.abc import Iterable, Sequence

import pyarrow as pa
from matplotlib.figure import Figure

from perfdag.charts import dots, style
from perfdag.charts.benchmarks import fio_workers
from perfdag.charts.benchmarks.fio_depth import (
    is_mixed,
    queue_depth_curves,
    queue_depth_figure,
)
from perfdag.charts.benchmarks.generic import finding, pages, points
from perfdag.charts.series import (
    Cell,
    band_words,
    noise_words,
    read,
    runs_words,
    swept_param,
    with_latencies,
)
from perfdag.results.summary import Series, unusable

PERCENTILES = ("p50", "p99", "p99.9")
SHARES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999, "p99.99": 0.9999}
COLUMNS = 3  # block sizes in a figure
WORDS = 90  # letters of a line of the legend


def figures(rows: pa.Table) -> Iterable[tuple[str, Figure]]:
    """Yield IOPS, bandwidth and latency, and a curve over queue depth for each pattern."""
    cells = read(rows)
    where = runs_words(rows)
    if swept_param([cell for cell in cells if not cell.why]):
        tails = with_latencies(cells, ("p99",))
        yield from points(tails, ["iops", "bandwidth", "latency"], where)
    else:
        for slug, some, note in pages(cells, "points"):
            yield slug, _points(some, style.caption(note, where))
    if apart := fio_workers.figure(rows, cells, where):
        yield "workers", apart
    if distributions := _distributions(cells):
        yield "latency", _distribution(distributions, where)
    curves = queue_depth_curves(cells)
    sizes = list(dict.fromkeys(size for _, size in curves))
    for start in range(0, len(sizes), COLUMNS):
        columns = {
            facet: by_name
            for facet, by_name in curves.items()
            if facet[1] in sizes[start : start + COLUMNS]
        }
        yield (
            "queue-depth" if start == 0 else f"queue-depth-{start // COLUMNS + 1}",
            queue_depth_figure(columns, where),
        )


def _points(cells: Sequence[Cell], where: str) -> Figure:
    panels = [
        (name, list(cells), groups)
        for name in ("iops", "bandwidth")
        if (groups := dots.groups(cells, name))
    ]
    for direction in dict.fromkeys(
        str(series.coords.get("direction", ""))
        for cell in cells
        for series in cell.series("latency", "p50")
    ):
        own = [cell for cell in cells if _late(cell, "p50", direction)]
        panels.append((f"{direction} latency".strip(), own, _percentiles(own, direction)))
    panels = panels or [("iops", list(cells), [])]
    series = [series for _, _, groups in panels for series in dots.series_of(groups)]
    fig, axes = style.figure(
        len(panels),
        [dots.height(own, groups) for _, own, groups in panels],
        title=finding(cells, "iops"),
        subtitle=style.caption(band_words(series), noise_words(cells), where),
    )
    for i, (ax, (name, own, groups)) in enumerate(zip(axes, panels, strict=True)):
        dots.panel(ax, own, groups, name, reasons=i == 0)
    return fig


def _late(cell: Cell, stat: str, direction: str) -> Series | None:
    return next(
        (
            series
            for series in cell.series("latency", stat)
            if str(series.coords.get("direction", "")) == direction
        ),
        None,
    )


def _percentiles(cells: Sequence[Cell], direction: str) -> list[dots.Group]:
    groups = [
        dots.Group(stat, [_late(cell, stat, direction) for cell in cells]) for stat in PERCENTILES
    ]
    return [group for group in groups if any(group.series)]


def _distributions(cells: Sequence[Cell]) -> dict[str, list[tuple[float, Series]]]:
    """Return point and direction -> (share of I/Os, their latency) by rising share.

    Points with fewer than three percentiles are left out.
    """
    by_name: dict[str, list[tuple[float, Series]]] = {}
    for cell in cells:
        mixed = is_mixed(cell)
        for series in cell.series("completion_latency"):
            if series.stat in SHARES and series.values and series.middle > 0:
                direction = str(series.coords.get("direction", ""))
                by_name.setdefault(
                    f"{cell.label} ({direction})" if mixed else cell.label, []
                ).append((SHARES[series.stat], series))
    return {
        name: sorted(shares, key=lambda pair: pair[0])
        for name, shares in by_name.items()
        if len(shares) >= 3
    }


def _distribution(distributions: dict[str, list[tuple[float, Series]]], where: str) -> Figure:
    """Draw latency on a log axis against the share of I/Os that were as fast."""
    common = set.intersection(
        *({series.stat for _, series in shares} for shares in distributions.values())
    )
    least, most = (f(common, key=lambda stat: SHARES[stat], default="") for f in (min, max))
    tails = {
        name: _middle(shares, most) / _middle(shares, least) if common else 1.0
        for name, shares in distributions.items()
    }
    longest_tails = sorted(distributions, key=lambda name: -tails[name])[: len(style.SERIES)]
    usable = [
        name
        for name in longest_tails
        if not any(unusable(s) for _, s in distributions[name] if s.stat in (least, most))
    ]
    title = (
        f"{usable[0]}: {most} of the completion latency is {tails[usable[0]]:.1f} times its {least}"
        if common and usable
        else "Completion latency"
    )
    cut = (
        f"the {len(longest_tails)} longest tails of {len(distributions)}"
        if len(longest_tails) < len(distributions)
        else ""
    )
    legend = band_words(
        [series for name in longest_tails for _, series in distributions[name]], "line", "band"
    )
    names = {name: textwrap.fill(name, WORDS, break_on_hyphens=False) for name in longest_tails}
    fig, (ax,) = style.figure(
        title=title,
        subtitle=style.caption(legend, cut, where),
        heights=(2.6 + 0.16 * sum(name.count("\n") + 1 for name in names.values()),),
    )
    ax.set_xscale("log")
    for k, name in enumerate(longest_tails):
        look = style.look(k)
        ys = [_decades(share) for share, _ in distributions[name]]
        bands = [series.band for _, series in distributions[name]]
        ax.fill_betweenx(
            ys,
            [b.low for b in bands],
            [b.high for b in bands],
            color=look["color"],
            alpha=0.2,
            linewidth=0,
            gid=f"band {name}",
        )
        ax.plot(
            [series.middle for _, series in distributions[name]],
            ys,
            label=names[name],
            gid=f"median {name}",
            **look,
        )
    top = max(share for name in longest_tails for share, _ in distributions[name])
    ticks = [share for share in SHARES.values() if share <= top]
    ax.set_yticks([_decades(share) for share in ticks], [f"p{100 * share:g}" for share in ticks])
    style.value_axis(ax.xaxis, "s", 1.0, log=True)
    ax.set_xlabel("completion latency, lower is better")
    ax.set_ylabel("I/Os that took no longer")
    fig.legend(loc="outside lower left")  # below: lines of tails cross all of the panel
    return fig


def _middle(shares: Sequence[tuple[float, Series]], stat: str) -> float:
    return next(series.middle for _, series in shares if series.stat == stat)


def _decades(share: float) -> float:
    """Return the decades of the tail: 1 for p90, 2 for p99, 3 for p99.9."""
    return -math.log10(1 - share)

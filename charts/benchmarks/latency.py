"""latency: transactions a second by point, and below them the percentiles of one transaction."""

from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa
from matplotlib.figure import Figure

from perfdag.charts import style
from perfdag.charts.benchmarks.generic import dot_figure, pages
from perfdag.charts.series import read, runs_words

STATS = ("p50", "p90", "p99")


def figures(rows: pa.Table) -> Iterable[tuple[str, Figure]]:
    """Yield rates and percentiles as dots; mean, min and max are in the table."""
    where = runs_words(rows)
    cells = [
        replace(
            cell,
            state=replace(
                cell.state,
                series=[
                    one for one in cell.state.series if one.metric != "latency" or one.stat in STATS
                ],
            ),
        )
        for cell in read(rows)
    ]
    for slug, some, note in pages(cells):
        yield slug, dot_figure(some, ["transaction_rate", "latency"], style.caption(note, where))

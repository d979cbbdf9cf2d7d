"""latency: transactions a second by point, and below them the percentiles of one transaction."""

from collections.abc import Iterable

import pyarrow as pa
from matplotlib.figure import Figure

from perfdag.charts.benchmarks.generic import points
from perfdag.charts.series import read, runs_words, with_latencies

STATS = ("p50", "p90", "p99")


def figures(rows: pa.Table) -> Iterable[tuple[str, Figure]]:
    """Yield rates and percentiles as dots or lines; mean, min and max are in the table."""
    cells = with_latencies(read(rows), STATS)
    yield from points(cells, ["transaction_rate", "latency"], runs_words(rows))

"""rdma-latency: latency over message size."""

from collections.abc import Iterable

import pyarrow as pa
from matplotlib.figure import Figure

from perfdag.charts.rdma import over_sizes


def figures(rows: pa.Table) -> Iterable[tuple[str, Figure]]:
    """One figure: typical latency; of a single point also min, p99 and p99.9. Timed runs have the mean alone."""
    yield from over_sizes(rows, "latency", "lowest_latency", ("p50", "min", "p99", "p99.9"))

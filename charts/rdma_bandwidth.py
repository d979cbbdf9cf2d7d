"""rdma-bandwidth: bandwidth and message rate over message size."""

from collections.abc import Iterable

import pyarrow as pa
from matplotlib.figure import Figure

from perfdag.charts.rdma import over_sizes


def figures(rows: pa.Table) -> Iterable[tuple[str, Figure]]:
    """One figure: bandwidth (mean; of a single point also the peak) above the message rate."""
    yield from over_sizes(rows, "bandwidth", "highest_bandwidth", ("mean", "max"), "message_rate")

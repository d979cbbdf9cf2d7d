"""The expected time of points, learned from the newest run of the suite in the store.

pyarrow and numpy are imported only if there is one: what is measured may need their memory.
"""

from dataclasses import replace

from perfdag.plan.plan import Plan
from perfdag.results.result_files import result_key, stored_runs
from perfdag.store.base import Store, StoreError

ANY = "any"
"""Stands for the cluster of the newest run, where nothing says which cluster will measure."""


def with_learned_times(store: Store, plan: Plan, cluster: str | None) -> Plan:
    """Return the plan with the median duration of each point in the newest run, if on this cluster.

    `cluster` is that of the rows, or None for one machine. A point without past samples keeps the
    estimate of its benchmark, as do all where the store cannot be read.
    """
    try:
        runs = stored_runs(store, plan.suite)
        if not runs:
            return plan
        past = _seconds(store.get(result_key(plan.suite, runs[-1][0])), cluster)
    except (StoreError, OSError, ValueError):  # pyarrow's errors are ValueErrors
        return plan
    points = [replace(point, seconds=past.get(point.id, point.seconds)) for point in plan.points]
    return replace(plan, points=points)


def _seconds(data: bytes, cluster: str | None) -> dict[str, float]:
    """Return the median seconds of the ok samples of each point in a file of rows."""
    import pyarrow as pa

    from perfdag.results.schema import SAMPLES, read_rows
    from perfdag.stats.robust import median

    names = ["point", "cluster", "status", "started_at", "finished_at"]
    rows = read_rows(data, pa.schema([SAMPLES.field(name) for name in names])).to_pylist()
    samples = {  # a sample has a row for each metric
        (row["point"], row["started_at"], row["finished_at"])
        for row in rows
        if row["status"] == "ok" and cluster in (ANY, row["cluster"])
    }
    seconds: dict[str, list[float]] = {}
    for point, start, end in samples:
        if start and end:
            seconds.setdefault(point, []).append((end - start).total_seconds())
    return {point: median(values) for point, values in seconds.items()}

"""The expected time of points, learned from the newest runs of the suite in the store.

pyarrow and numpy are imported only if there are such runs: what is measured may need their memory.
"""

from dataclasses import replace

from perfdag.plan.plan import Plan
from perfdag.results.result_files import stored_runs
from perfdag.store.base import Store, StoreError

RUNS, ROWS = 5, 20_000
"""Newest runs and rows that are read, so that a long history does not slow the start of a run."""
ANY = "any"
"""Stands for the cluster of the newest run, where nothing says which cluster will measure."""


def with_learned_times(store: Store, plan: Plan, cluster: str | None) -> Plan:
    """Return the plan with the median duration of past samples of each point on this cluster.

    `cluster` is that of the rows, or None for one machine. A point without past samples keeps the
    estimate of its benchmark, as do all where the store cannot be read.
    """
    try:
        if not (runs := stored_runs(store, plan.suite)):
            return plan
        past = past_seconds(store, plan.suite, [run for run, _ in runs[-RUNS:]], cluster)
    except (StoreError, OSError):
        return plan
    points = [replace(point, seconds=past.get(point.id, point.seconds)) for point in plan.points]
    return replace(plan, points=points)


def past_seconds(
    store: Store, suite: str, runs: list[str], cluster: str | None
) -> dict[str, float]:
    """Return the median seconds of the ok samples of each point in these runs.

    Raises StoreError.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from perfdag.results.schema import load_rows
    from perfdag.stats.robust import median

    columns = ["point", "cluster", "status", "started_at", "finished_at"]
    try:
        rows = load_rows(store, suites=[suite], runs=runs, columns=columns)
    except pa.ArrowInvalid as error:
        raise StoreError(str(error)) from None
    clusters = rows["cluster"]
    if cluster == ANY:
        cluster = clusters[-1].as_py() if rows.num_rows else None
    here = pc.is_null(clusters) if cluster is None else pc.equal(clusters, cluster)
    timed = pc.and_(pc.is_valid(rows["started_at"]), pc.is_valid(rows["finished_at"]))
    rows = rows.filter(pc.and_(pc.and_(pc.equal(rows["status"], "ok"), here), timed))
    rows = rows.slice(max(rows.num_rows - ROWS, 0))
    starts, ends = (rows[name].cast(pa.int64()).to_pylist() for name in columns[-2:])
    seconds: dict[str, list[float]] = {}
    # A sample has a row for each metric.
    for point, start, end in set(zip(rows["point"].to_pylist(), starts, ends, strict=True)):
        seconds.setdefault(point, []).append((end - start) / 1e6)
    return {point: median(values) for point, values in seconds.items()}

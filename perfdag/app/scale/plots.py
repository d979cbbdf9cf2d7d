"""Draw the charts of `perfdag scale plot`. Return an exit code."""

import orjson
import pyarrow.parquet as pq

from perfdag.app.scale.commands import Session
from perfdag.charts import scale as charts
from perfdag.charts.files import to_bytes
from perfdag.charts.scale import detailed, general, of_runs
from perfdag.signals import EXIT_FAILED, EXIT_OK
from perfdag.steps.scale.figures.api_metrics import DELETION
from perfdag.steps.scale.figures.measurements import call_name, deletion_name
from perfdag.steps.scale.runai import times_csv
from perfdag.units import plural

STAGE_CHARTS = {
    "timeline": charts.timeline,
    "scurves": charts.s_curves,
    "ecdf": charts.ecdf,
    "order": charts.by_order,
}


def plot(
    session: Session, chart: str, skip_errors: bool | None, head: int | None, tail: int | None
) -> int:
    """Draw a chart of the folder. Return 1 without data.

    `head` and `tail` select workloads in the order of submission. Raises ValueError.
    """
    if chart in ("general", "detailed"):
        return _plot_times(session, chart, skip_errors is not False, head, tail)
    if skip_errors is not None:
        raise ValueError(
            f"--skip-errors needs --plot general or detailed; {chart} counts absent stages"
        )
    if chart == "api-calls":
        if head or tail:
            raise ValueError("--head and --tail select objects; API calls are counted of all")
        return _plot_calls(session)
    return _plot_stages(session, chart, head, tail)


def _plot_times(
    session: Session, chart: str, skip: bool, head: int | None, tail: int | None
) -> int:
    """Write times.csv and the chart of its times."""
    workloads = times_csv.read_times(session.folder)
    table = session.folder / "times.csv"
    times_csv.write_csv(table, workloads)
    selected = times_csv.select(workloads, skip, head, tail)
    excluded = [
        f"{count} {'left out' if skip else 'flagged'}: {reason}"
        for reason, count in times_csv.exclusion_counts(workloads).items()
    ]
    for text in excluded:
        session.log(f"of {plural(len(workloads), 'workload')} {text}")
    if not selected:
        session.log("no data to plot")
        return EXIT_FAILED
    deltas = [(str(workload.info["submitTimestamp"]), workload.deltas) for workload in selected]
    draw = general if chart == "general" else detailed
    path = session.folder / f"{chart}.png"
    path.write_bytes(to_bytes(draw(deltas, len(workloads), excluded))[1])
    session.output(f"{path} and {table}: {len(selected)} of {plural(len(workloads), 'workload')}")
    return EXIT_OK


def _plot_stages(session: Session, chart: str, head: int | None, tail: int | None) -> int:
    """Draw stages.parquet, a picture for each run."""
    folder = session.folder
    source = folder / "stages.parquet"
    if not source.exists():
        raise ValueError(
            f"no {source}; run `perfdag scale sample -o {folder}` or `perfdag scale vmi` first"
        )
    rows = pq.read_table(source, use_threads=False).to_pylist()
    for name, stages in of_runs(rows, head, tail).items():
        path = folder / f"{chart}{'-' if name else ''}{name}.png"
        path.write_bytes(to_bytes(STAGE_CHARTS[chart](stages))[1])
        session.output(str(path))
    return EXIT_OK


def _plot_calls(session: Session) -> int:
    """Draw the API calls of the scenarios in summary.json by the number of objects."""
    source = session.folder / "summary.json"
    runs = orjson.loads(source.read_bytes()).get("runs") if source.exists() else None
    if not runs:
        raise ValueError(
            f"no API calls in {source}; `perfdag scale vmi` and the scenarios count them"
        )
    counts: dict[int, dict[str, float]] = {}
    unit = "objects" if any(run["scenario"] == "gated" for run in runs) else "vms"
    for run in runs:
        size = run["count"] * (1 if unit == "objects" else run["facts"].get("members") or 1)
        for figure, value in run["figures"].items():
            deletion = deletion_name(figure)
            if (call := call_name(deletion or figure)) and value is not None:
                counts.setdefault(size, {})[f"{DELETION}: {call}" if deletion else call] = value
    if not counts:
        session.log("no data to plot: no API calls were counted")
        return EXIT_FAILED
    path = session.folder / "api-calls.png"
    path.write_bytes(to_bytes(charts.api_calls(counts, unit))[1])
    session.output(str(path))
    return EXIT_OK

"""What `perfdag scale plot` draws."""

import argparse
import sys

from perfdag.app.scale.commands import settings_of


def plot(args: argparse.Namespace) -> int:
    """Write times.csv and the picture; 1 without data."""
    from perfdag.charts.benchmarks import scale as charts
    from perfdag.charts.style import to_bytes
    from perfdag.steps.scale.runai import times_csv

    settings_of(args)
    if args.plot not in ("general", "detailed"):
        return _plot_stages(args)
    skip = args.skip_errors is not False
    every = times_csv.read_times(args.output_dir)
    times_csv.write_csv(args.output_dir / "times.csv", every)
    chosen = times_csv.select(every, skip, args.head, args.tail)
    excluded = [
        f"{count} {'left out' if skip else 'flagged'}: {reason}"
        for reason, count in times_csv.exclusion_counts(every).items()
    ]
    for text in excluded:
        print(f"of {len(every)} workloads {text}", file=sys.stderr)
    if not chosen:
        print("no data to plot", file=sys.stderr)
        return 1
    deltas = [(str(workload.info["submitTimestamp"]), workload.deltas) for workload in chosen]
    draw = charts.general if args.plot == "general" else charts.detailed
    path = args.output_dir / f"{args.plot}.png"
    path.write_bytes(to_bytes(draw(deltas, len(every), excluded))[1])
    print(f"{path} and {args.output_dir / 'times.csv'}: {len(chosen)} of {len(every)} workloads")
    return 0


def _plot_stages(args: argparse.Namespace) -> int:
    import pyarrow.parquet as pq

    from perfdag.charts.benchmarks import scale as charts
    from perfdag.charts.benchmarks.stages import of_runs
    from perfdag.charts.style import to_bytes

    if args.skip_errors is not None:
        raise ValueError(
            f"--skip-errors goes with --plot general and detailed; {args.plot} counts what never came"
        )
    if args.plot == "api-calls":
        return _plot_calls(args)
    source = args.output_dir / "stages.parquet"
    if not source.exists():
        raise ValueError(
            f"no {source}; run `perfdag scale sample -o {args.output_dir}` or `perfdag scale vmi` first"
        )
    draw = {
        "timeline": charts.timeline,
        "scurves": charts.s_curves,
        "ecdf": charts.ecdf,
        "order": charts.by_order,
    }[args.plot]
    for name, stages in of_runs(
        pq.read_table(source, use_threads=False).to_pylist(), args.head, args.tail
    ).items():
        path = args.output_dir / f"{args.plot}{'-' if name else ''}{name}.png"
        path.write_bytes(to_bytes(draw(stages))[1])
        print(path)
    return 0


def _plot_calls(args: argparse.Namespace) -> int:
    import orjson

    from perfdag.charts.benchmarks import scale as charts
    from perfdag.charts.style import to_bytes
    from perfdag.steps.scale.figures.api_metrics import DELETION
    from perfdag.steps.scale.figures.measurements import call_name, deletion_name
    from perfdag.steps.scale.scenarios.submit import SCENARIOS

    if args.head or args.tail:
        raise ValueError("--head and --tail choose objects; API calls are counted of all")
    source = args.output_dir / "summary.json"
    runs = orjson.loads(source.read_bytes()).get("runs") if source.exists() else None
    if not runs:
        raise ValueError(
            f"no API calls in {source}; `perfdag scale vmi` and the scenarios count them, for example a ladder"
        )
    counts: dict[int, dict[str, float]] = {}
    of = "objects" if any(run["scenario"] in SCENARIOS for run in runs) else "vms"
    for run in runs:
        size = run["count"] * (1 if of == "objects" else run["facts"].get("members") or 1)
        for figure, value in run["figures"].items():
            deletion = deletion_name(figure)
            if (call := call_name(deletion or figure)) and value is not None:
                counts.setdefault(size, {})[f"{DELETION}: {call}" if deletion else call] = value
    if not counts:
        print("no data to plot: no API calls were counted", file=sys.stderr)
        return 1
    path = args.output_dir / "api-calls.png"
    path.write_bytes(to_bytes(charts.api_calls(counts, of))[1])
    print(path)
    return 0

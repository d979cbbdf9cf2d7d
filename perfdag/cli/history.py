"""`perfdag history`: series over runs, with their change points."""

import argparse
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfdag.regress.history import Failure, Series
    from perfdag.regress.nodes import NodeOutlier
    from perfdag.regress.run_medians import RunMedians
    from perfdag.stats.variability import Variability

SHOWN = 60
EPILOG = """examples:
  perfdag history net
  perfdag history net --chart history/ --since 2026-10-01
  perfdag history net --only 'iperf streams=8*' --all
  perfdag history net --noise
  perfdag history net --failures 'no route'
  perfdag history net --json

a change needs at least 8 runs before and 3 after it, 5 % (see `checks` of a suite) and three robust standard errors
"""


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    parser = sub.add_parser(
        "history",
        help="series over runs, with their change points",
        description="The history of a suite: the level of each series, its changes with size, date and what changed in the environment, "
        "slow nodes, noise, failures.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("suite", metavar="SUITE", help="name of a suite that has results")
    parser.add_argument(
        "--store", metavar="ROOT", help="folder or s3://bucket/prefix (default ./perfdag-results)"
    )
    parser.add_argument("--since", metavar="DAY", help="only runs from this day on (2026-10-01)")
    parser.add_argument("--newest", metavar="N", type=int, help="only the newest N runs")
    parser.add_argument(
        "--cluster",
        metavar="NAME",
        help="only runs of this cluster (default: that of the newest run)",
    )
    parser.add_argument(
        "--only",
        metavar="GLOB",
        action="append",
        default=[],
        help="only series whose name matches; again: or this",
    )
    parser.add_argument(
        "--all", action="store_true", help="every series in the table, not the headline ones only"
    )
    parser.add_argument(
        "--noise",
        action="store_true",
        help="noise report: within runs, between runs, between nodes",
    )
    parser.add_argument(
        "--failures",
        metavar="TEXT",
        nargs="?",
        const="",
        help="samples that were not ok and whose reason holds TEXT",
    )
    parser.add_argument(
        "--suite-file",
        metavar="FILE",
        help="take `checks` (smallest effects) from this suite file (default: of the newest run)",
    )
    parser.add_argument(
        "--acks",
        metavar="FILE",
        help="acknowledgements (default ./acks.yaml, else acks.yaml in the store)",
    )
    parser.add_argument(
        "--chart",
        metavar="DIR",
        help="write pages of small multiples, the overview and the noise as SVG and PNG",
    )
    parser.add_argument("--json", action="store_true", help="the history as JSON on stdout")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the history; exit 2 where the suite has none."""
    from fnmatch import fnmatchcase

    from perfdag.cli.compare import complain
    from perfdag.regress.acks import read_acks, read_checks
    from perfdag.regress.history import failures, object_failures, series_of
    from perfdag.regress.nodes import node_outliers, noise_report, recent_rows, runs_for_nodes
    from perfdag.regress.rollup import read_run_medians
    from perfdag.regress.tuning import Tuning
    from perfdag.store.open import open_store

    store = open_store(args.store)
    found = read_run_medians(store, args.suite)
    if not found.runs:
        return complain("history", _nothing(store, args.suite, found.damaged))
    shown = _chosen(found, args)
    if isinstance(shown, str):
        return complain("history", shown)
    for key in found.damaged:
        print(f"damaged, left out: {key}", file=sys.stderr)
    if args.failures is not None:
        _show_failures(
            [*failures(shown, args.failures), *object_failures(store, shown, args.failures)],
            args.json,
        )
        return 0
    accepted, _ = read_acks(args.acks, store)
    tuning = Tuning(read_checks(store, shown.runs[-1].run_id, args.suite_file))
    series = [
        each
        for each in series_of(shown, tuning, accepted)
        if not args.only or any(fnmatchcase(each.name, glob) for glob in args.only)
    ]
    if not series:
        return complain("history", f"--only {', '.join(args.only)}: no series of that name")
    count = runs_for_nodes(shown)
    nodes = node_outliers(shown, recent_rows(store, shown, count), tuning) if count else []
    noise = noise_report(shown, recent_rows(store, shown)) if args.noise or args.chart else []
    if args.chart:
        _charts(args.chart, shown, series, noise)
    if args.json:
        _print_json(shown, series, nodes, noise)
    elif args.noise:
        _show_noise(noise)
    else:
        _show(shown, series, args.all)
    if not args.json:
        _show_nodes(nodes)
    return 0


def _nothing(store: Any, suite: str, damaged: list[str]) -> str:
    """Why there is no history."""
    from perfdag.regress.rollup import suites
    from perfdag.suite.yaml_document import nearest

    if damaged:
        return f"suite {suite}: every file is damaged: {', '.join(damaged[:5])}"
    known = suites(store)
    if not known:
        return f"store {store.root} has no results: run a suite, or `perfdag collect RUN`"
    if suite in known:
        return f"suite {suite} has only runs of `perfdag ab`, which are no history: `perfdag ab --resume RUN` shows their outcome"
    return f"no suite {suite}{nearest(suite, known)}; there are {', '.join(known)}"


def _chosen(found: "RunMedians", args: argparse.Namespace) -> "RunMedians | str":
    """The runs asked for, or what is wrong with the question."""
    from datetime import date

    from perfdag.regress.changes import day_of

    if args.since:
        try:
            date.fromisoformat(args.since)
        except ValueError:
            return f"--since {args.since}: write a day as 2026-10-31"
    if args.newest is not None and args.newest < 1:
        return f"--newest {args.newest}: how many runs, one or more"
    clusters = sorted({run.cluster for run in found.runs})
    cluster = args.cluster if args.cluster is not None else found.runs[-1].cluster
    kept = [
        i
        for i, run in enumerate(found.runs)
        if run.cluster == cluster and (not args.since or day_of(run.run_id) >= args.since)
    ]
    if args.newest:
        kept = kept[-args.newest :]
    if not kept:
        return f"no run fits; {len(found.runs)} runs on cluster {', '.join(clusters)}, newest {found.runs[-1].run_id}"
    return found.keep(kept)


def _show(medians: "RunMedians", series: "list[Series]", everything: bool) -> None:
    """Levels and changes on a terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from perfdag.regress.changes import day_of
    from perfdag.units import short

    runs = medians.runs
    print(
        f"{medians.suite}: {len(runs)} runs from {day_of(runs[0].run_id)} to {day_of(runs[-1].run_id)}, {len(series)} series"
    )
    chosen = [each for each in series if everything or each.info.headline or each.findings]
    chosen = chosen or series
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, heading in enumerate(("series", "runs", "level", "noise", "newest", "last change")):
        table.add_column(heading, justify="left" if i in (0, 5) else "right", overflow="fold")
    cut = chosen[: None if everything else SHOWN]
    for each in cut:
        level, count = each.levels[-1], sum(bool(v == v) for v in each.value)
        noise = f"{100 * level.noise:.1f} %" if level.noise == level.noise else "-"
        newest = (
            short(float(each.value[-1]), each.info.unit)
            if each.value[-1] == each.value[-1]
            else "absent"
        )
        last = each.findings[-1] if each.findings else None
        said = (
            f"{_size(last)} {last.word} since {day_of(last.run)}"
            if last
            else ("-" if count >= 11 else f"too few runs ({count} of 11)")
        )
        cells = (each.name, str(count), short(level.value, each.info.unit), noise, newest, said)
        table.add_row(
            *(Text(cell) for cell in cells),
            style="bold dark_orange" if last and last.word == "worse" else "",
        )
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    if len(cut) < len(series):
        print(f"{len(series) - len(cut)} more series (--all shows them)")
    for finding in sorted((f for each in cut for f in each.findings), key=lambda f: f.index):
        differs = (
            "; ".join(f"{key} {a} -> {b}" for key, (a, b) in finding.environment.items())
            or "nothing recorded of the environment"
        )
        c, unit = finding.change, finding.info.unit
        print(
            f"{day_of(finding.run)}  {_size(finding):>8} {finding.word:7} {finding.name}  {short(c.before, unit)} -> {short(c.after, unit)}"
        )
        print(f"            first run {finding.run}; changed: {differs[:300]}")


def _size(finding: Any) -> str:
    return (
        f"{finding.change.effect:+.3g}"
        if finding.absolute
        else f"{100 * finding.change.effect:+.1f} %"
    )


def _show_nodes(nodes: "list[NodeOutlier]") -> None:
    for each in nodes:
        o = each.outlier
        against = f"{100 * o.effect:+.1f} % against the other nodes ({each.word})"
        print(
            f"node {o.node}: {against} in {each.series}, {o.n} runs, {min(o.sigmas, 99):.0f} sigma"
        )


def _show_noise(report: "list[tuple[str, Variability]]") -> None:
    """The noise report on a terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    def percent(value: float | None) -> str:
        return "-" if value is None else f"{100 * value:.1f} %"

    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, heading in enumerate(
        (
            "series",
            "runs",
            "within runs",
            "between runs",
            "between nodes",
            "detectable",
            "repetitions worth",
            "",
        )
    ):
        table.add_column(heading, justify="right" if i else "left", overflow="fold")
    for name, each in report:
        note = "informational: over 10 %" if each.informational else ""
        cells = (
            name,
            str(each.runs),
            percent(each.within),
            percent(each.between),
            percent(each.nodes),
            percent(each.detectable),
            str(each.repetitions or "-"),
            note,
        )
        table.add_row(*(Text(cell) for cell in cells))
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    print(
        "within: median CV of the repetitions of a run; between: 1.4826 MAD of run medians; detectable: the step found in nine of ten"
    )
    print(
        "cases with 20 runs before and 3 after; repetitions worth making in a run, beyond which only more runs help (from 20 runs on)"
    )


def _show_failures(found: "list[Failure]", as_json: bool) -> None:
    if as_json:
        import orjson

        print(orjson.dumps(found, option=orjson.OPT_INDENT_2).decode())
        return
    for each in found:
        many = (
            f"{each.bad} objects" if each.total is None else f"{each.bad} of {each.total} samples"
        )
        print(f"{each.run}  {each.entry}  {each.point}  {many}  {each.reason}")
    samples = sum(each.total is not None for each in found)
    print(
        f"{samples} points with samples that were not ok, {len(found) - samples} messages of objects"
    )


def _charts(
    folder: str,
    medians: "RunMedians",
    series: "list[Series]",
    noise: "list[tuple[str, Variability]]",
) -> None:
    """Write every chart as SVG and PNG."""
    from pathlib import Path

    from perfdag.app.history_page import draw, worth_drawing
    from perfdag.charts.style import to_bytes

    figures = draw(medians, worth_drawing(series), noise)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    for name, fig in figures.items():
        svg, png = to_bytes(fig)
        (target / f"{name}.svg").write_bytes(svg)
        (target / f"{name}.png").write_bytes(png)
    print(f"{len(figures)} charts in {folder}", file=sys.stderr)


def _print_json(
    medians: "RunMedians",
    series: "list[Series]",
    nodes: "list[NodeOutlier]",
    noise: "list[tuple[str, Variability]]",
) -> None:
    from dataclasses import asdict

    import orjson

    made = {
        "suite": medians.suite,
        "runs": [run.run_id for run in medians.runs],
        "series": [
            {
                **asdict(each.info),
                "name": each.name,
                "values": each.value.tolist(),
                "low": each.low.tolist(),
                "high": each.high.tolist(),
                "levels": [asdict(level) for level in each.levels],
                "changes": [
                    {
                        **asdict(f.change),
                        "index": f.index,
                        "run": f.run,
                        "word": f.word,
                        "environment": {k: list(v) for k, v in f.environment.items()},
                    }
                    for f in each.findings
                ],
            }
            for each in series
        ],
        "nodes": [
            {"series": each.series, "word": each.word, **asdict(each.outlier)} for each in nodes
        ],
        "noise": [{"series": name, **asdict(each)} for name, each in noise],
    }
    print(orjson.dumps(made).decode())

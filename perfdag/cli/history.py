"""`perfdag history`: series over runs, with their change points."""

import argparse

from perfdag.cli.options import add_acks, log, print_json

EPILOG = """examples:
  perfdag history net
  perfdag history net --since 2026-10-01
  perfdag history net --only 'iperf streams=8*' --all
  perfdag history net --noise
  perfdag history net --failures 'no route'
  perfdag history net --json

Three measurements in a row beyond a level begin the next. docs/statistics.md has the rules.
"""


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    parser = sub.add_parser(
        "history",
        description="Show the history of a suite: the level of each series; its changes, with "
        "size, date and what changed in the environment; slow nodes, noise and failures.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("suite", metavar="SUITE", help="name of a suite that has results")
    parser.add_argument(
        "--store", metavar="ROOT", help="folder or s3://bucket/prefix (default: ./perfdag-results)"
    )
    parser.add_argument("--since", metavar="DAY", help="use only runs from this day on")
    parser.add_argument("--newest", metavar="N", type=int, help="use only the newest N runs")
    parser.add_argument(
        "--cluster",
        metavar="NAME",
        help="use only runs of this cluster (default: the cluster of the newest run)",
    )
    parser.add_argument(
        "--only",
        metavar="GLOB",
        action="append",
        default=[],
        help="show only series whose name matches GLOB; repeat the option to add more",
    )
    parser.add_argument(
        "--all", action="store_true", help="show every series, not only headline series"
    )
    parser.add_argument(
        "--noise", action="store_true", help="show the noise within runs, between runs and nodes"
    )
    parser.add_argument(
        "--failures",
        metavar="TEXT",
        nargs="?",
        const="",
        help="show samples that failed or are invalid, and whose reason contains TEXT",
    )
    add_acks(parser)
    parser.add_argument("--json", action="store_true", help="print the history as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the history of a suite, or its failures."""
    from perfdag.app import history, history_text

    selection = history.RunFilter(args.since, args.newest, args.cluster)
    if args.failures is not None:
        failures = history.read_failures(args.suite, args.store, selection, args.failures, log)
        print_json(failures) if args.json else print(history_text.failures(failures))
        return 0
    result = history.read_history(
        args.suite,
        root=args.store,
        selection=selection,
        only=args.only,
        acks_file=args.acks,
        with_noise=args.noise,
        report=log,
    )
    if args.json:
        print_json(history.as_data(result))
    else:
        print(history_text.noise(result) if args.noise else history_text.text(result, args.all))
    return 0

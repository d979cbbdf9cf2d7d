"""`perfdag ls`: list the runs of a store."""

import argparse

from perfdag.app.errors import CommandError
from perfdag.cli.options import add_store, print_json
from perfdag.signals import EXIT_OK

EPILOG = """examples:
  perfdag ls
  perfdag ls --suite quick --newest 100
  perfdag ls --store s3://bench/results --json
"""


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    parser = sub.add_parser(
        "ls",
        description="List the runs of a store, the newest last: suite, samples by status, and "
        "whether there is a report. A run of kind ab is one variant of `perfdag ab`. One of kind "
        "confirm measures suspicious points again.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_store(parser)
    parser.add_argument(
        "--newest", metavar="N", type=int, default=20, help="list the newest N runs (default: 20)"
    )
    parser.add_argument("--json", action="store_true", help="print the runs as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """List the runs."""
    from perfdag.app.runs import list_runs, runs_text

    if args.newest < 1:
        raise CommandError(f"--newest {args.newest}: list at least one run")
    runs = list_runs(args.store, args.suite, args.newest)
    print_json([vars(run) for run in runs]) if args.json else print(runs_text(runs))
    return EXIT_OK

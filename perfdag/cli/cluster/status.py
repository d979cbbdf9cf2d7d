"""`perfdag status`: show the progress of a run on a cluster."""

import argparse

from perfdag.commands.options import CLUSTER_RUN, NAMESPACE, WATCH, add_options, print_json
from perfdag.signals import EXIT_OK

EPILOG = """examples:
  perfdag status last --namespace bench
  perfdag status 20260101T020000Z-0a1b2c3d --namespace bench --watch
  perfdag status last --namespace bench --json
"""


def add_status(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    parser = sub.add_parser(
        "status",
        description="Show the progress of a run, its current batch, its pods, and what keeps them "
        "from running.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser, CLUSTER_RUN, NAMESPACE)
    add_options(parser, WATCH)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the status, or follow the run and return its exit code."""
    import asyncio

    from perfdag.app.cluster.status import run_status
    from perfdag.app.cluster.watch import follow_run

    status = run_status(args.name, args.namespace)
    if args.watch:
        return asyncio.run(follow_run(status.view.name, args.namespace))
    if args.json:
        print_json(status.data())
    else:
        print(status.text())
    return EXIT_OK

"""`perfdag prune`: remove the results of old runs."""

import argparse

from perfdag.cli.options import add_store, duration, log
from perfdag.signals import EXIT_OK
from perfdag.units import plural

EPILOG = """examples:
  perfdag prune --keep 90d --dry-run
  perfdag prune --keep 90d --suite quick
  perfdag prune --keep 90d --store s3://bench/results
"""


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    parser = sub.add_parser(
        "prune",
        description="Remove the samples, rows and reports of runs that began before a time. The "
        "runs of baselines stay. Histories and comparisons lose the removed runs.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--keep",
        metavar="DURATION",
        type=duration,
        required=True,
        help="keep the runs of this time, for example 90d",
    )
    add_store(parser)
    parser.add_argument("--dry-run", action="store_true", help="print the runs and remove none")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Remove old runs and print their ids."""
    from perfdag.app.run_removal import remove_old_runs

    removed = remove_old_runs(args.store, args.keep, args.suite, args.dry_run, log)
    print(
        "\n".join([*removed, f"{plural(len(removed), 'run')}{' would be' * args.dry_run} removed"])
    )
    return EXIT_OK

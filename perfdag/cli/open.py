"""`perfdag open`: open the report of a run in a browser."""

import argparse

from perfdag.cli.options import add_stored_run, log
from perfdag.signals import EXIT_OK

EPILOG = """examples:
  perfdag open last
  perfdag open 20261120T020000Z-1a2b3c4d --store s3://bench/results
"""


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    parser = sub.add_parser(
        "open",
        description="Open the report of a run in a browser and print its path. A report in S3 is "
        "copied to a temporary file.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_stored_run(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Open the report and print its path."""
    from perfdag.app.runs import open_report

    print(open_report(args.store, args.run_id, log))
    return EXIT_OK

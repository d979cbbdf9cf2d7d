"""`perfdag report`: write the charts and the one-file HTML report of a run."""

import argparse

from perfdag.cli.options import add_stored_run, log

EPILOG = """examples:
  perfdag report last
  perfdag report 20261120T020000Z-1a2b3c4d --store s3://bench/results
"""


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    parser = sub.add_parser(
        "report",
        description="Collect a run, draw its charts (SVG and PNG), write report.html and print "
        "its path. `perfdag show` prints the table.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_stored_run(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the report. Return 1 if a sample failed, is invalid or missing."""
    from perfdag.app.collection import report_run

    result = report_run(args.store, args.run_id, log)
    print("\n".join([str(result.report), *result.exports]))
    return result.exit_code

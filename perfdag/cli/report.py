"""`perfdag report`: write the charts and the one-file HTML report of a run."""

import argparse

from perfdag.cli.options import add_stored_run, log, print_json

EPILOG = """examples:
  perfdag report last
  perfdag report 20261120T020000Z-1a2b3c4d --store s3://bench/results
"""


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    parser = sub.add_parser(
        "report",
        help="write the charts and the one-file HTML report of a run",
        description="Collect a run, draw its charts (SVG and PNG), write report.html and print "
        "the table.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_stored_run(parser)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the report. Return 1 if a sample failed, is invalid or missing."""
    from perfdag.app.collection import report_run
    from perfdag.app.result_text import result_data, result_text

    result = report_run(args.store, args.run_id, log)
    print_json(result_data(result)) if args.json else print(result_text(result))
    return result.exit_code

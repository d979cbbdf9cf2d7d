"""`perfdag show`: show the results of a run as a table."""

import argparse

from perfdag.cli.options import add_stored_run, log, print_json

EPILOG = """examples:
  perfdag show last
  perfdag show last~1 --json
  perfdag show 20261120T020000Z-1a2b3c4d --store s3://bench/results
"""


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    parser = sub.add_parser(
        "show",
        description="Show the stored samples of a run as a table. It writes nothing; "
        "`perfdag report` draws the charts.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_stored_run(parser)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Show a run. Return 1 if a sample failed, is invalid or missing."""
    from perfdag.app.collection import show_run
    from perfdag.app.result_text import result_data, result_text

    result = show_run(args.store, args.run_id, log)
    print_json(result_data(result)) if args.json else print(result_text(result))
    return result.exit_code

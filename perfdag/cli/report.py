"""`perfdag report`: charts and the one-file HTML report of a run."""

import argparse

from perfdag.cli.options import log, print_json

EPILOG = """examples:
  perfdag report last
  perfdag report 20261120T020000Z-1a2b3c4d --store s3://bench/results
"""


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    from perfdag.cli.collect import add_run

    parser = sub.add_parser(
        "report",
        help="charts and the one-file HTML report of a run",
        description="Collect a run, draw its charts (SVG and PNG), write report.html and print the table.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_run(parser)
    parser.add_argument("--json", action="store_true", help="the result as JSON on stdout")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the report; exit 1 where a sample failed, is invalid or missing."""
    from perfdag.app.finish import finish_run
    from perfdag.app.result_text import result_data, result_text
    from perfdag.results.runs import load_plan
    from perfdag.store.open import open_store

    store = open_store(args.store)
    result = finish_run(store, load_plan(store, args.run_id), log)
    if args.json:
        print_json(result_data(result))
    else:
        print(result_text(result))
    return result.exit_code

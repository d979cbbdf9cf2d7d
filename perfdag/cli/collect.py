"""`perfdag collect`: write the Parquet file of a run from its samples."""

import argparse

from perfdag.cli.options import add_stored_run, log

EPILOG = """examples:
  perfdag collect last
  perfdag collect 20261120T020000Z-1a2b3c4d --store s3://bench/results
"""


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    parser = sub.add_parser(
        "collect",
        description="Write the samples of a run into one Parquet file. "
        "The same samples give the same bytes.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_stored_run(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Collect a run. Return 1 if a sample failed, is invalid or missing."""
    from perfdag.app.collection import collect_run

    text, code = collect_run(args.store, args.run_id, log)
    print(text)
    return code

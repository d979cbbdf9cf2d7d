"""`perfdag collect`: the parts of a run become its Parquet file."""

import argparse

EPILOG = """examples:
  perfdag collect last
  perfdag collect 20261120T020000Z-1a2b3c4d --store s3://bench/results
"""


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    parser = sub.add_parser(
        "collect",
        help="write a run's Parquet file from its samples",
        description="Gather the samples of a run into one Parquet file. Doing it twice gives the same bytes.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_run(parser)
    parser.set_defaults(run=run)


def add_run(parser: argparse.ArgumentParser) -> None:
    """Arguments that name a run in a store."""
    parser.add_argument("run_id", metavar="RUN", help="run id, or `last`")
    parser.add_argument(
        "--store", metavar="ROOT", help="folder or s3://bucket/prefix (default ./perfdag-results)"
    )


def run(args: argparse.Namespace) -> int:
    """Collect; exit 1 where a sample failed, is invalid or missing."""
    from perfdag.results import exports
    from perfdag.results.collect import collect
    from perfdag.results.runs import load_plan
    from perfdag.results.schema import load
    from perfdag.store.open import open_store

    store = open_store(args.store)
    plan = load_plan(store, args.run_id)
    collected = collect(store, plan)
    print(f"{collected.rows} rows  {store.url(collected.key)}")
    for each in exports.write(
        store, plan.run_id, load(store, suites=[plan.suite], runs=[plan.run_id])
    ):
        print(f"also  {each}")
    return 1 if any(status not in ("ok", "skipped") for status in collected.statuses) else 0

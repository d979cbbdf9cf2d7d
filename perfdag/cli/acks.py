"""`perfdag acks`: the acknowledgements that the last step of a run on a cluster reads from the store."""

import argparse

EPILOG = """examples:
  perfdag acks set acks.yaml --store s3://bench/results
  perfdag acks show --store s3://bench/results

`perfdag check` here reads ./acks.yaml, which belongs under version control, and the store's where there is none
"""


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    parser = sub.add_parser(
        "acks",
        help="acknowledged changes, as runs on a cluster read them",
        description="Check a file of acknowledgements and put it into the store, in place of the one there, or show what is there.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", metavar="set|show", required=True)
    one = actions.add_parser("set", help="put a file there")
    one.add_argument(
        "file",
        metavar="FILE",
        help="acks: [{series: GLOB, run: FIRST_RUN, reason: TEXT, until: DAY}]",
    )
    shown = actions.add_parser("show", help="what is there")
    for each in (one, shown):
        each.add_argument(
            "--store",
            metavar="ROOT",
            help="folder or s3://bucket/prefix (default ./perfdag-results)",
        )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Put or show; exit 2 for a bad file, which changes nothing."""
    from perfdag.regress.acks import ACKS, put_acks, stored_acks
    from perfdag.store.open import open_store

    store = open_store(args.store)
    if args.action == "set":
        print(f"{len(put_acks(store, args.file))} acknowledgements in {store.url(ACKS)}")
        return 0
    accepted, url = stored_acks(store)
    for each in accepted:
        print(
            f"{each.series}  from {each.run}{f' until {each.until}' if each.until else ''}: {each.reason}"
        )
    if not accepted:
        print(f"no acknowledgements in {url}; `perfdag acks set FILE` puts them there")
    return 0

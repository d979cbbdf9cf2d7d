"""`perfdag acks`: the acknowledgements that runs on a cluster read from the store."""

import argparse

EPILOG = """examples:
  perfdag acks set acks.yaml --store s3://bench/results
  perfdag acks show --store s3://bench/results

`perfdag check` reads ./acks.yaml, which belongs under version control. Without that file it reads
the acknowledgements of the store.
"""


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    parser = sub.add_parser(
        "acks",
        description="Validate a file of acknowledgements and put it into the store, or show the "
        "acknowledgements of the store.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", metavar="set|show", required=True)
    set_parser = actions.add_parser("set", help="replace the acknowledgements of the store")
    set_parser.add_argument(
        "file",
        metavar="FILE",
        help="acks: [{series: GLOB, run: FIRST_RUN, reason: TEXT, until: DAY}]",
    )
    show_parser = actions.add_parser("show", help="show the acknowledgements of the store")
    for action in (set_parser, show_parser):
        action.add_argument(
            "--store",
            metavar="ROOT",
            help="folder or s3://bucket/prefix (default: ./perfdag-results)",
        )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Set or show the acknowledgements. A bad file changes nothing."""
    from perfdag.app import acks

    print(acks.set_acks(args.store, args.file) if args.action == "set" else acks.show(args.store))
    return 0

"""`perfdag init`: write a suite with comments, for this machine or a cluster."""

import argparse

from perfdag.signals import EXIT_OK

EPILOG = """examples:
  perfdag init
  perfdag init net.yaml --cluster
"""


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    parser = sub.add_parser(
        "init",
        description="Write a small suite with comments, as a beginning. It measures this machine "
        "with the tools that are installed, or with --cluster two nodes of a cluster.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "file",
        nargs="?",
        metavar="FILE",
        default="suite.yaml",
        help="new file (default: suite.yaml)",
    )
    parser.add_argument("--cluster", action="store_true", help="for a cluster, not this machine")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the suite and print the command that runs it."""
    from perfdag.app.new_suite import write_suite

    print(f"wrote {args.file}; run it: {write_suite(args.file, args.cluster)}")
    return EXIT_OK

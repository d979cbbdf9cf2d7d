"""`perfdag benchmarks`: list the benchmarks, or describe one."""

import argparse

from perfdag.cli.options import log, print_json

EPILOG = """examples:
  perfdag benchmarks
  perfdag benchmarks iperf
  perfdag benchmarks --json
"""


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    parser = sub.add_parser(
        "benchmarks",
        description="List the benchmarks installed here, or describe one: its parameters with "
        "their defaults, its metrics, and when its clock starts and stops.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="?", metavar="NAME")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--markdown", action="store_true", help="print the table of docs/benchmarks.md"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the list, or one benchmark."""
    from perfdag.app import benchmarks

    descriptions = benchmarks.describe(args.name)
    for fault in () if args.name else benchmarks.faults():
        log(f"perfdag benchmarks: {fault}")
    if args.json:
        print_json(descriptions)
    elif args.markdown:
        print(benchmarks.markdown(descriptions))
    else:
        print(benchmarks.details(descriptions[0]) if args.name else benchmarks.names(descriptions))
    return 0

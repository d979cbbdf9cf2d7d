"""`perfdag new`: write the files of a new benchmark."""

import argparse

from perfdag.signals import EXIT_OK

EPILOG = """examples:
  perfdag new sysbench
  perfdag new sysbench --folder ../sysbench
"""


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    parser = sub.add_parser(
        "new",
        help="write the files of a new benchmark",
        description="Write a package with one benchmark: its entry point, its code, its "
        "Containerfile, a test that records the tool, and a suite. It measures dd until you "
        "change it.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", metavar="NAME", help="name of the benchmark in suites")
    parser.add_argument(
        "--folder", metavar="FOLDER", help="new folder of the package (default: ./perfdag-NAME)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the files and print what to do next."""
    from perfdag.app.new_benchmark import write_benchmark

    files = write_benchmark(args.name, args.folder)
    for file in files:
        print(file)
    root = files[0].parent
    print(f"next: pip install -e {root} && perfdag run {root}/suite.yaml")
    return EXIT_OK

"""`perfdag import`: a suite from the files of another tool, or runs from earlier figures."""

import argparse

from perfdag.cli import import_history
from perfdag.cli.options import log
from perfdag.signals import EXIT_FAILED, EXIT_OK

SUITES = {
    "kube-perftest": "its benchmarks and BenchmarkSets",
    "perfscale-load-generator": "its workloads of KubeVirt",
}
EPILOG = """examples:
  perfdag import kube-perftest iperf-set.yaml fio.yaml > suite.yaml
  perfdag import perfscale-load-generator kubevirt-burst-100.yaml > suite.yaml
  perfdag import history boot.csv

What a suite cannot keep is listed on stderr. Exit code 1: a benchmark is left out.
docs/kube-perftest.md compares the two.
"""


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    parser = sub.add_parser(
        "import",
        description="Print a suite with the semantics of another tool's files, or store the runs "
        "of a history.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    formats = parser.add_subparsers(dest="format", metavar="FORMAT", required=True)
    for name, files in SUITES.items():
        suite = formats.add_parser(name, help=f"print a suite from {files}")
        suite.add_argument("files", nargs="+", metavar="FILE", help="YAML files")
        suite.set_defaults(run=run)
    import_history.add(formats)


def run(args: argparse.Namespace) -> int:
    """Print the suite, and what it does not keep."""
    from perfdag.app.kube_perftest.suite import import_suite
    from perfdag.app.scale.workload_import import import_workloads

    left_out: list[str] = []
    if args.format == "kube-perftest":
        text, notes, left_out = import_suite(args.files)
    else:
        text, notes = import_workloads(args.files)
    print(text, end="")
    for note in notes:
        log(f"not kept: {note}")
    for benchmark in left_out:
        log(f"left out: {benchmark}")
    return EXIT_FAILED if left_out else EXIT_OK

"""`perfdag import`: a suite from the files of another tool."""

import argparse

from perfdag.app.errors import CommandError
from perfdag.cli.options import log
from perfdag.exit_codes import EXIT_OK

FORMATS = ("kube-perftest", "perfscale-load-generator")
EPILOG = """examples:
  perfdag import kube-perftest iperf-set.yaml fio.yaml > suite.yaml
  perfdag import perfscale-load-generator kubevirt-burst-100.yaml > suite.yaml

What a suite cannot keep is listed on stderr. docs/kube-perftest.md compares the two.
"""


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    parser = sub.add_parser(
        "import",
        description="Print a suite with the semantics of another tool's files. "
        "kube-perftest: its benchmarks and BenchmarkSets. perfscale-load-generator: workloads of "
        "KubeVirt.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("format", metavar="FORMAT", help=", ".join(FORMATS))
    parser.add_argument("files", nargs="+", metavar="FILE", help="YAML files")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the suite, and what it does not keep."""
    if args.format not in FORMATS:
        raise CommandError(f"no format {args.format!r}; there is {', '.join(FORMATS)}")
    from perfdag.app.kube_perftest.suite import import_suite
    from perfdag.app.scale.workload_import import import_workloads

    read = import_suite if args.format == FORMATS[0] else import_workloads
    text, notes = read(args.files)
    print(text, end="")
    for note in notes:
        log(f"not kept: {note}")
    return EXIT_OK

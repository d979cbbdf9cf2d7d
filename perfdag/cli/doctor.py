"""`perfdag doctor`: check what a suite needs, on this machine or on a cluster."""

import argparse

from perfdag.cli.options import print_json
from perfdag.signals import EXIT_FAILED, EXIT_OK

EPILOG = """examples:
  perfdag doctor
  perfdag doctor suites/quick.yaml
  perfdag doctor suites/daily.yaml --cluster --namespace bench
"""


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    parser = sub.add_parser(
        "doctor",
        description="Check the tools, the store and the noise of this machine for a suite, or the "
        "cluster. Exit with 1 if something is missing.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "suite",
        nargs="?",
        metavar="SUITE",
        help="suite file (default: check every benchmark)",
    )
    parser.add_argument(
        "--cluster",
        action="store_true",
        help="check the cluster that KUBECONFIG names instead of this machine",
    )
    parser.add_argument(
        "--namespace",
        "-n",
        default="perfdag",
        help="with --cluster: namespace of the installation (default: perfdag)",
    )
    parser.add_argument(
        "--store", metavar="ROOT", help="folder or s3://bucket/prefix (default: the suite's)"
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the findings."""
    from perfdag.app.doctor.doctor import check

    findings = check(args.suite, args.store, args.namespace if args.cluster else None)
    if args.json:
        print_json([vars(finding) for finding in findings])
    else:
        print("\n".join(finding.text() for finding in findings))
    missing = any(finding.state == "missing" for finding in findings)
    return EXIT_FAILED if missing else EXIT_OK

"""`perfdag logs`: print the logs of a run's pods."""

import argparse

from perfdag.commands.options import CLUSTER_RUN, NAMESPACE, add_options
from perfdag.signals import EXIT_OK

EPILOG = """examples:
  perfdag logs last --namespace bench
  perfdag logs last --namespace bench --batch 3 --tail 20
"""


def add_logs(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    parser = sub.add_parser(
        "logs",
        description="Print the logs of a run's pods, each line after the name of its pod. Pods are "
        "kept for a while after they end; the samples are in the store.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser, CLUSTER_RUN, NAMESPACE)
    parser.add_argument("--batch", type=int, help="only the pods of this batch")
    parser.add_argument("--tail", type=int, help="only the last lines of each pod")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the logs."""
    from perfdag.app.cluster.logs import write_logs

    write_logs(args.name, args.namespace, args.batch, args.tail)
    return EXIT_OK

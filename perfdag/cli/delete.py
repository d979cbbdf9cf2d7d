"""`perfdag delete`: delete a run's objects from the cluster."""

import argparse

from perfdag.cli.options import add_cluster_run, print_now
from perfdag.exit_codes import EXIT_OK

EPILOG = """examples:
  perfdag delete last --namespace bench
  perfdag delete 20260101T020000Z-0a1b2c3d --namespace bench --results
  perfdag delete 20260101T020000Z-0a1b2c3d --namespace bench --results --store s3://bench/results
"""


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    parser = sub.add_parser(
        "delete",
        help="delete a run's objects from the cluster",
        description="Delete the Workflows of a run with their pods, claims, Secrets and PodGroups, "
        "and wait until they are gone. The results stay in the store without --results.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_cluster_run(parser)
    parser.add_argument(
        "--results",
        action="store_true",
        help="also delete the run's samples, rows and report from the store, and those of its "
        "confirming runs and of its other variant",
    )
    parser.add_argument(
        "--store",
        metavar="ROOT",
        help="s3://bucket/prefix of the results (default: the store that the run's Workflow names; "
        "required if no Workflow of the run is left)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Delete a run."""
    from perfdag.app.cluster.removal import delete_run

    delete_run(args.name, args.namespace, args.results, args.store, print_now)
    return EXIT_OK

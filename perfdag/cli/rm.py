"""`perfdag rm`: remove a run, its results or its objects on a cluster."""

import argparse

from perfdag.app.errors import CommandError
from perfdag.cli.options import RUN_HELP, log, print_now
from perfdag.signals import EXIT_OK

EPILOG = """examples:
  perfdag rm last~1
  perfdag rm 20260101T020000Z-0a1b2c3d --store s3://bench/results
  perfdag rm last --namespace bench
  perfdag rm 20260101T020000Z-0a1b2c3d --namespace bench --results
"""


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    parser = sub.add_parser(
        "rm",
        description="Remove the samples, rows and report of a run from the store, with its "
        "confirming runs and its other variant. With --namespace: delete the Workflows of a run "
        "with their pods, claims, Secrets and PodGroups, and wait until they are gone; its results "
        "stay in the store without --results.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", metavar="RUN", help=f"{RUN_HELP}; or the name of its Workflow")
    parser.add_argument("--namespace", "-n", help="delete the objects of the run in this namespace")
    parser.add_argument(
        "--results", action="store_true", help="with --namespace: also remove its results"
    )
    parser.add_argument(
        "--store",
        metavar="ROOT",
        help="folder or s3://bucket/prefix of the results (default: ./perfdag-results; with "
        "--namespace the store that the run's Workflow names, and required if none is left)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Remove a run."""
    if args.namespace is not None:
        from perfdag.app.cluster.removal import delete_run

        delete_run(args.name, args.namespace, args.results, args.store, print_now)
        return EXIT_OK
    if args.results:
        raise CommandError("--results goes with --namespace; without it, rm removes the results")
    from perfdag.app.run_removal import remove_run

    print(remove_run(args.store, args.name, log))
    return EXIT_OK

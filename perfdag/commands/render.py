"""`perfdag render`: print the manifests of an installation and of a suite."""

import argparse
import logging

from perfdag.commands.install import (
    INSTALLATION,
    add_groups,
    installation_objects,
    installation_of,
)
from perfdag.commands.options import EXIT_OK, CommandError, Verbs, add_verb, duration, option
from perfdag.kube.client import Object
from perfdag.plan.plan import Plan, make_plan, place_hosts, without_gpu
from perfdag.steps.pods.kinds import kinds_of
from perfdag.store.base import check_cluster_address
from perfdag.suite.document import dump
from perfdag.suite.load import load_suite
from perfdag.workflows import runs

logger = logging.getLogger(__name__)


EPILOG = """examples:
  perfdag render --base --namespace bench --store s3://bench/results
  perfdag render suites/quick.yaml --namespace bench | kubectl create -f -
  perfdag render suites/quick.yaml --schedule '0 2 * * *' | kubectl apply -f -
"""


def add_render(sub: Verbs) -> None:
    """Register the verb."""
    parser = add_verb(
        sub,
        "render",
        run,
        "Print manifests. With --base: what `perfdag install` applies.\n\n"
        "With SUITE: a Workflow for `kubectl create`, which gives it a name.\n\n"
        "With SUITE and --schedule: a CronWorkflow for `kubectl apply`, and a second one that "
        "fails when the newest run of the suite is too old.",
        EPILOG,
        option("suite", nargs="?", metavar="SUITE", help="suite file"),
        option("--base", action="store_true", help="print templates, service accounts and rights"),
        option(
            "--schedule",
            action="append",
            default=[],
            metavar="CRON",
            help="five fields, in UTC; repeat the option to add more",
        ),
        option(
            "--max-age",
            type=duration,
            metavar="DURATION",
            help="with --schedule: the age of the newest run above which the second CronWorkflow "
            "fails (default for a daily schedule: 26h plus twice the expected length of a run)",
        ),
        *INSTALLATION,
    )
    add_groups(parser)


def run(args: argparse.Namespace) -> int:
    """Print the objects of the installation (--base) and the manifests of a suite file, if named.

    These are a Workflow that carries the suite, or with --schedule CronWorkflows. Raises
    CommandError, BadDocument, AddressError for a store that no cluster can have.
    """
    if not args.base and not args.suite:
        raise CommandError("name a suite file, or --base")
    installation = installation_of(args)
    if installation.store:
        check_cluster_address(installation.store)
    manifests: list[Object] = installation_objects(installation) if args.base else []
    if args.suite:
        loaded = load_suite(args.suite)
        plan = place_hosts(make_plan(loaded))
        kinds_of(plan)
        report_missing_gpus(plan)
        namespace = installation.namespace
        if args.schedule:
            try:
                age = f"{args.max_age}s" if args.max_age else None
                manifests += runs.schedule(loaded, *args.schedule, namespace=namespace, max_age=age)
            except ValueError as error:
                raise CommandError(str(error)) from None
        else:
            priority = loaded.suite.priority
            manifests.append(runs.workflow(namespace, loaded, {}, priority=priority))
    print(dump(manifests), end="")
    return EXIT_OK


def report_missing_gpus(plan: Plan) -> None:
    """Report entries that use CUDA without a GPU resource: only some nodes give them a GPU."""
    for entry in without_gpu(plan):
        advice = "add resources: {nvidia.com/gpu: 1}"
        logger.warning(f"entry {entry}: device is cuda, but its pods request no GPU; {advice}")

"""`perfdag render`: print the manifests of an installation and of a suite."""

import argparse
import logging
from collections.abc import Sequence

from perfdag.commands.install import (
    Installation,
    add_installation,
    installation_objects,
    installation_of,
)
from perfdag.commands.options import CommandError, duration
from perfdag.kube.client import Object
from perfdag.plan.plan import Plan, make_plan, place_hosts
from perfdag.signals import EXIT_OK
from perfdag.steps.devices import without_gpu
from perfdag.steps.pods.kinds import kinds_of
from perfdag.store.base import check_cluster_address
from perfdag.suite.load import load_suite
from perfdag.workflows import runs
from perfdag.workflows.cron import scheduled
from perfdag.workflows.emit import dump

logger = logging.getLogger(__name__)


EPILOG = """examples:
  perfdag render --base --namespace bench --store s3://bench/results
  perfdag render suites/quick.yaml --namespace bench | kubectl create -f -
  perfdag render suites/quick.yaml --schedule '0 2 * * *' | kubectl apply -f -
"""


def add_render(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    parser = sub.add_parser(
        "render",
        description="Print manifests. With --base: what `perfdag install` applies.\n"
        "With SUITE: a Workflow for `kubectl create`, which gives it a name.\n"
        "With SUITE and --schedule: a CronWorkflow for `kubectl apply`, and a second one that "
        "fails when the newest run of the suite is too old.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("suite", nargs="?", metavar="SUITE", help="suite file")
    parser.add_argument(
        "--base", action="store_true", help="print templates, service accounts and rights"
    )
    parser.add_argument(
        "--schedule",
        action="append",
        default=[],
        metavar="CRON",
        help="five fields, in UTC; repeat the option to add more",
    )
    parser.add_argument(
        "--max-age",
        type=duration,
        metavar="DURATION",
        help="with --schedule: the age of the newest run above which the second CronWorkflow fails "
        "(default for a daily schedule: 26h plus twice the expected length of a run)",
    )
    add_installation(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the manifests."""
    if not args.base and not args.suite:
        raise CommandError("name a suite file, or --base")

    manifests = render(
        installation_of(args),
        args.suite,
        base=args.base,
        schedules=args.schedule,
        max_age=args.max_age,
    )
    print(manifests, end="")
    return EXIT_OK


def render(
    installation: Installation,
    suite: str | None,
    *,
    base: bool,
    schedules: Sequence[str] = (),
    max_age: int | None = None,
) -> str:
    """Return the objects of the installation (`base`) and the manifests of a suite file, if named.

    These are a Workflow that carries the suite, or with `schedules` CronWorkflows; `max_age` is the
    age of the newest run, in seconds, above which the second of them fails. Raises CommandError,
    BadDocument, AddressError for a store that no cluster can have.
    """
    if installation.store:
        check_cluster_address(installation.store)
    manifests: list[Object] = installation_objects(installation) if base else []
    if suite:
        loaded = load_suite(suite)
        plan = place_hosts(make_plan(loaded))
        kinds_of(plan)
        report_missing_gpus(plan)
        namespace, scope = installation.namespace, installation.cluster_scope
        if schedules:
            try:
                manifests += scheduled(loaded, schedules, namespace, max_age, scope)
            except ValueError as error:
                raise CommandError(str(error)) from None
        else:
            priority = loaded.suite.priority
            manifests.append(
                runs.workflow(namespace, loaded, {}, priority=priority, cluster_scope=scope)
            )
    return dump(manifests)


def report_missing_gpus(plan: Plan) -> None:
    """Report entries that use CUDA without a GPU resource: only some nodes give them a GPU."""
    for entry, why in without_gpu(plan).items():
        advice = "add resources: {nvidia.com/gpu: 1}"
        logger.warning(f"entry {entry}: {why}, but its pods request no GPU; {advice}")

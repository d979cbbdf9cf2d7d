"""`perfdag submit`: run a suite on a cluster, or continue a run there."""

import argparse
import asyncio
import logging
from collections.abc import Sequence

from perfdag.benchmark import registry
from perfdag.commands.cluster import NewRun, installed_template, resumable_run
from perfdag.commands.doctor import check_pod_security
from perfdag.commands.options import (
    CLUSTER_RUN,
    EXIT_OK,
    NAMESPACE,
    ONLY,
    SET,
    WATCH,
    CommandError,
    Verbs,
    add_verb,
    check_resume,
    option,
    print_now,
)
from perfdag.commands.render import report_missing_gpus
from perfdag.commands.status import follow_run
from perfdag.kube.client import run_with_client
from perfdag.plan.plan import Plan, make_plan, place_hosts
from perfdag.steps.pods.plan import kinds_of
from perfdag.store.base import check_cluster_address, on_cluster
from perfdag.suite.load import load_suite
from perfdag.suite.model import LoadedSuite

logger = logging.getLogger(__name__)


EPILOG = """examples:
  perfdag submit suites/quick.yaml --namespace bench --watch
  perfdag submit suites/quick.yaml --namespace bench \\
      --only 'iperf*' --set repetitions=5
  perfdag submit --resume 20260101T020000Z-0a1b2c3d --namespace bench --watch
"""


def add_submit(sub: Verbs) -> None:
    """Register the verb."""
    add_verb(
        sub,
        "submit",
        run,
        "Check a suite, then run it on the cluster of the current context, where "
        "`perfdag install` installed the templates. A bad suite creates nothing.",
        EPILOG,
        option("suite", nargs="?", metavar="SUITE", help="suite file; not needed with --resume"),
        SET,
        ONLY,
        NAMESPACE,
        WATCH,
        option(
            "--resume",
            metavar="RUN",
            help=f"continue this run ({CLUSTER_RUN.settings['help']}): measure only what is not "
            "stored yet",
        ),
    )


def run(args: argparse.Namespace) -> int:
    """Submit or resume a run, and follow it with --watch."""
    check_resume(args)
    if args.resume:
        run_id, workflow = resume_run(args.resume, args.namespace)
    else:
        run_id, workflow = submit_suite(args)
    print_now(f"run {run_id}, workflow {workflow} in namespace {args.namespace}")
    if args.watch:
        return asyncio.run(follow_run(workflow, args.namespace))
    print(f"follow it: perfdag status {workflow} --namespace {args.namespace}")
    return EXIT_OK


def load(
    file: str, settings: Sequence[str] = (), only: Sequence[str] = ()
) -> tuple[LoadedSuite, Plan]:
    """Load and plan a suite, so that a bad one creates nothing. Raises BadDocument."""
    loaded = load_suite(file, settings)
    plan = place_hosts(make_plan(loaded, only=only))
    kinds_of(plan)
    return loaded, plan


def submit_suite(args: argparse.Namespace) -> tuple[str, str]:
    """Submit a suite; return the run id and the name of its Workflow.

    Raises BadDocument, CommandError, KubeError.
    """
    namespace, settings, only = args.namespace, args.settings, args.only
    loaded, plan = load(args.suite, settings, only)
    report_missing_gpus(plan)
    report_other_packages(plan)
    installed = installed_template(namespace)
    own = loaded.suite.store
    if own and on_cluster(own) and own != installed.store:
        raise CommandError(
            f"the suite has the store {own}, and the installation of namespace "
            f"{namespace} the store {installed.store}: submit it to the namespace of "
            f"another installation (perfdag install --namespace ... --store {own})"
        )
    security = run_with_client(lambda api: check_pod_security(api, namespace, plan))
    if refused := [each for each in security if each.state == "missing"]:
        raise CommandError(f"{refused[0].what}: {refused[0].do}")
    priority = plan.options.priority
    run = NewRun(plan.run_id, plan.suite, priority, loaded, tuple(settings), tuple(only))
    return run.run_id, installed.start(run)


def report_other_packages(plan: Plan) -> None:
    """Report benchmarks of other packages, which perfdag's own images do not have."""
    for name in sorted({point.benchmark for point in plan.points}):
        package = registry.package(name)
        if package.partition(" ")[0] != "perfdag":
            logger.info(
                f"benchmark {name} is of package {package}: the images need it "
                "(images/build --with WHEEL_OR_PATH); perfdag doctor --cluster asks them"
            )


def resume_run(name: str, namespace: str) -> tuple[str, str]:
    """Continue a run; return its id and the name of its new Workflow.

    Raises CommandError, StoreError, KubeError.
    """
    installed = installed_template(namespace)
    check_cluster_address(installed.store)
    run = resumable_run(name, namespace, installed.store)
    return run.run_id, installed.start(run)

"""The manifests of a suite: a Workflow, or two CronWorkflows and the ConfigMap that they read."""

import logging
from collections.abc import Sequence

from perfdag.commands.options import CommandError
from perfdag.kube.client import Object
from perfdag.plan.plan import Plan, make_plan, place_hosts
from perfdag.steps.devices import without_gpu
from perfdag.steps.runner.limits import check_size
from perfdag.store.open import on_cluster
from perfdag.suite.load import load_suite
from perfdag.workflows import runs
from perfdag.workflows.containers import Installation
from perfdag.workflows.cron import scheduled

logger = logging.getLogger(__name__)


def suite_manifests(
    file: str, installation: Installation, schedules: Sequence[str], max_age: int | None
) -> list[Object]:
    """Return the manifests of a suite: a Workflow, or with `schedules` CronWorkflows.

    `max_age` is the age of the newest run, in seconds, above which the second CronWorkflow fails.
    Raises CommandError, BadDocument.
    """
    store = installation.store
    loaded = load_suite(file)
    plan = place_hosts(make_plan(loaded))
    check_size(plan)
    report_missing_gpus(plan)
    if not store and loaded.suite.store and on_cluster(loaded.suite.store):
        store = loaded.suite.store
    if schedules:
        try:
            scope = installation.cluster_scope
            return scheduled(loaded, schedules, installation.namespace, store, max_age, scope)
        except ValueError as error:
            raise CommandError(str(error)) from None
    parameters = {"suite": runs.suite_parameter(loaded)}
    if store:
        parameters["store"] = store
    suite = loaded.suite
    scope = installation.cluster_scope
    return [
        runs.workflow(installation.namespace, suite.name, parameters, "", suite.priority, scope)
    ]


def report_missing_gpus(plan: Plan) -> None:
    """Report entries that use CUDA without a GPU resource: only some nodes give them a GPU."""
    for entry, why in without_gpu(plan).items():
        advice = "add resources: {nvidia.com/gpu: 1}"
        logger.info(f"entry {entry}: {why}, but its pods request no GPU; {advice}")

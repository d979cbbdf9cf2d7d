"""Render the manifests of an installation and of a suite as YAML."""

import logging
from collections.abc import Sequence

from perfdag.app.cluster.installation import Installation, installation_objects
from perfdag.commands.options import CommandError
from perfdag.kube.client import Object
from perfdag.plan.plan import Plan, make_plan, place_hosts
from perfdag.steps.devices import without_gpu
from perfdag.steps.runner.limits import kinds_of
from perfdag.store.open import check_cluster_address
from perfdag.suite.load import load_suite
from perfdag.workflows import runs
from perfdag.workflows.cron import scheduled
from perfdag.workflows.emit import dump

logger = logging.getLogger(__name__)


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

"""The manifests of a suite: a Workflow, or two CronWorkflows and the ConfigMap that they read."""

import base64
from collections.abc import Callable, Sequence

from perfdag.app.errors import CommandError
from perfdag.kube.resources import Object
from perfdag.plan.placement import place_hosts
from perfdag.plan.plan import Plan, make_plan
from perfdag.steps.devices import without_gpu
from perfdag.steps.runner.limits import check_size
from perfdag.store.open import on_cluster
from perfdag.suite.load import load_suite
from perfdag.suite.model import Loaded
from perfdag.suite.text import suite_text
from perfdag.suite.yaml_document import BadDocument, Problem
from perfdag.workflows import age, lint, runs
from perfdag.workflows.containers import Installation


def suite_manifests(
    file: str,
    installation: Installation,
    schedules: Sequence[str],
    max_age: int | None,
    report: Callable[[str], None],
) -> list[Object]:
    """Return the manifests of a suite: a Workflow, or with `schedules` CronWorkflows.

    `max_age` is the age of the newest run, in seconds, above which the second CronWorkflow fails.
    Raises CommandError, BadDocument.
    """
    store = installation.store
    loaded = load_suite(file)
    plan = place_hosts(make_plan(loaded))
    check_size(plan)
    report_missing_gpus(plan, report)
    if not store and loaded.suite.store and on_cluster(loaded.suite.store):
        store = loaded.suite.store
    if schedules:
        if max_age is None:
            max_age = default_max_age(schedules, plan.seconds())
        return _scheduled(file, loaded, installation, store, schedules, max_age)
    parameters = {"suite": suite_parameter(file, loaded)}
    if store:
        parameters["store"] = store
    suite = loaded.suite
    scope = installation.cluster_scope
    return [
        runs.workflow(installation.namespace, suite.name, parameters, "", suite.priority, scope)
    ]


def _scheduled(
    file: str,
    loaded: Loaded,
    installation: Installation,
    store: str,
    schedules: Sequence[str],
    max_age: int,
) -> list[Object]:
    """Return the ConfigMap with the suite, the check of its age, and its schedule."""
    suite, namespace = loaded.suite, installation.namespace
    config_map = runs.config_map(namespace, suite.name, suite_text(loaded))
    if problems := lint.problems(config_map):
        raise CommandError(
            f"{file}: {problems[0]}; split the suite, or put the file into the store "
            "and give the CronWorkflow its key as the parameter url"
        )
    scope = installation.cluster_scope
    try:
        check = age.cron(namespace, suite.name, max_age, store, scope)
        cron = runs.cron(
            namespace,
            suite.name,
            list(schedules),
            store=store,
            priority=suite.priority,
            cluster_scope=scope,
        )
    except ValueError as error:
        raise CommandError(str(error)) from None
    return [config_map, check, cron]


def report_missing_gpus(plan: Plan, report: Callable[[str], None]) -> None:
    """Report entries that use CUDA without a GPU resource: only some nodes give them a GPU."""
    for entry, why in without_gpu(plan).items():
        advice = "add resources: {nvidia.com/gpu: 1}"
        report(f"entry {entry}: {why}, but its pods request no GPU; {advice}")


def default_max_age(schedules: Sequence[str], seconds: float) -> int:
    """Return the seconds after which the newest run of a daily schedule is too old.

    `seconds` is the length of a run. Rows are stored when a run ends, and a run may wait two hours
    for the lock. Raises CommandError for a schedule that is not daily.
    """
    if not any(
        schedule in ("@daily", "@midnight") or schedule.split()[2:] == ["*"] * 3
        for schedule in schedules
    ):
        raise CommandError(
            f"schedule {', '.join(schedules)}: does not run daily; "
            "set the maximum age of the newest run with --max-age"
        )
    return round(26 * 3600 + 2 * seconds)


def suite_parameter(file: str, loaded: Loaded) -> str:
    """Return the suite as a parameter of its Workflow, in base64.

    Raises BadDocument if it is too long for a parameter.
    """
    encoded = base64.b64encode(suite_text(loaded).encode()).decode()
    if len(encoded) > runs.SUITE_BYTES:
        text = (
            f"{len(encoded):,} bytes in base64 are more than a parameter may have; "
            "submit it with an s3:// store that this machine reaches, "
            "or put it there and argo submit -p url=KEY"
        )
        raise BadDocument([Problem(file, 1, "", text)])
    return encoded

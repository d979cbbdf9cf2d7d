"""A run as a Workflow, and a schedule as a CronWorkflow; both refer to the installed template."""

import base64

from hera.workflows import Parameter, Workflow
from hera.workflows import models as m

from perfdag.kube.client import Object
from perfdag.kube.patch import LABEL
from perfdag.suite.document import BadDocument, Problem
from perfdag.suite.load import suite_text
from perfdag.suite.model import LoadedSuite
from perfdag.workflows.containers import cron_workflow
from perfdag.workflows.templates import NAME

MAX_BYTES = 256 * 1024
"""Limit of an object, and of its annotations."""
SUITE_BYTES = 90_000  # of base64: an environment variable may have 128 KiB


def workflow(
    namespace: str,
    suite: str,
    parameters: dict[str, str],
    run_id: str = "",
    priority: int = 0,
    cluster_scope: bool = False,
) -> Object:
    """Return the Workflow of one run, with the parameters of the template."""
    labels = {f"{LABEL}/suite": suite} | ({f"{LABEL}/run": run_id} if run_id else {})
    resource = Workflow(
        generate_name=f"{NAME}-{suite}-",
        namespace=namespace,
        labels=labels,
        priority=priority or None,
        arguments=[Parameter(name=name, value=value) for name, value in parameters.items()],
        workflow_template_ref=m.WorkflowTemplateRef(name=NAME, cluster_scope=cluster_scope or None),
    )
    document: Object = resource.to_dict()
    return document


def suite_parameter(loaded: LoadedSuite) -> str:
    """Return the suite as a parameter of its Workflow, in base64.

    Raises BadDocument if it is too long for a parameter.
    """
    encoded = base64.b64encode(suite_text(loaded).encode()).decode()
    if len(encoded) > SUITE_BYTES:
        text = (
            f"{len(encoded):,} bytes in base64 are more than a parameter may have; "
            "submit it with an s3:// store that this machine reaches, "
            "or put it there and argo submit -p url=KEY"
        )
        raise BadDocument([Problem(loaded.document.file, 1, "", text)])
    return encoded


def config_map(namespace: str, suite: str, text: str) -> Object:
    """Return the ConfigMap that holds a suite."""
    meta = {
        "name": f"{NAME}-suite-{suite}",
        "namespace": namespace,
        "labels": {f"{LABEL}/suite": suite},
    }
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"suite.yaml": text}}


def cron(
    namespace: str,
    suite: str,
    schedules: list[str],
    *,
    store: str = "",
    priority: int = 0,
    cluster_scope: bool = False,
) -> Object:
    """Return a CronWorkflow of the suite in its ConfigMap.

    `store` is another store than that of the installation. Raises ValueError for a name that is
    too long.
    """
    name = f"{NAME}-{suite}"
    if suite.endswith("-age"):
        raise ValueError(
            f"{name}: the CronWorkflow that checks the age of suite {suite.removesuffix('-age')} "
            "has this name; rename the suite"
        )
    if len(name) > 52:
        raise ValueError(f"{name}: a CronWorkflow's name has at most 52 characters")
    parameters = {"configmap": f"{NAME}-suite-{suite}", "trigger": "cron"} | (
        {"store": store} if store else {}
    )
    resource = cron_workflow(
        name,
        namespace,
        suite,
        NAME,
        parameters,
        cluster_scope,
        schedules=schedules,
        successful_jobs_history_limit=3,
        failed_jobs_history_limit=5,
        cron_suspend=False,
        priority=priority or None,
    )
    document: Object = resource.to_dict()
    document["spec"]["workflowMetadata"] = {"labels": {f"{LABEL}/suite": suite}}
    return document

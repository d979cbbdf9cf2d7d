"""Telling of a night that never came: a template that looks at the age of a suite's newest scheduled run, and its schedule."""

import math
from typing import Any

from hera.workflows import ClusterWorkflowTemplate, CronWorkflow, Parameter, RetryStrategy, WorkflowTemplate
from hera.workflows import models as m

from perfdag.podspec import restricted
from perfdag.workflows.containers import Installation, container, labels, with_store
from perfdag.workflows.schedule import longest_gap

NAME = "perfdag-due"
EVERY = "17 */6 * * *"
LATE = 2.0  # hours that a scheduled run may be late, for the lock that it waits for and the pods that it asks
SECONDS = 900

Object = dict[str, Any]


def template(made: Installation) -> Object:
    """The template, of the installation's scope: one pod of the finish image, which disturbs no run and waits for none."""
    kind = ClusterWorkflowTemplate if made.cluster_scope else WorkflowTemplate
    where: dict[str, Any] = {} if made.cluster_scope else {"namespace": made.namespace}
    asked = {"suitename": "name of the suite", "hours": "age of its newest scheduled run here above which it is told"}
    told = {
        "store": (made.store, "s3://bucket/prefix or claim://NAME"),
        "run": ("", "not used: pods of all steps are told it"),
        "trigger": ("manual", "not used: pods of all steps are told it"),
    }
    with kind(
        name=NAME,
        **where,
        labels={"app.kubernetes.io/name": "perfdag", "app.kubernetes.io/managed-by": "perfdag", **made.labels},
        annotations={
            "workflows.argoproj.io/description": "Fails, and tells the webhook, where a suite's newest scheduled run here is too old."
        },
        entrypoint="due",
        service_account_name="perfdag-run",  # which may read what the cluster is, as the plan of a run does
        arguments=[
            *(Parameter(name=name, description=text) for name, text in asked.items()),
            *(Parameter(name=name, value=value, description=text) for name, (value, text) in told.items()),
        ],
        active_deadline_seconds=SECONDS,
        ttl_strategy=m.TTLStrategy(seconds_after_completion=made.keep),
        pod_gc=m.PodGC(strategy="OnPodCompletion", delete_delay_duration=made.keep_pods),
        pod_metadata=m.Metadata(annotations={"sidecar.istio.io/inject": "false", "linkerd.io/inject": "disabled"}),
        image_pull_secrets=[m.LocalObjectReference(name=name) for name in made.pull_secrets] or None,
    ) as w:
        container(
            made,
            "due",
            image=made.image("finish"),
            args=["step", "due", "--suite", "{{workflow.parameters.suitename}}", "--max-age", "{{workflow.parameters.hours}}"],
            retry_strategy=RetryStrategy(
                limit=str(made.retries), retry_policy="Always", expression="asInt(lastRetry.exitCode) not in [0, 2, 3]"
            ),
            labels=labels("due"),
            pod_spec_patch=with_store(restricted({"cpu": "100m", "memory": "256Mi"})),
        )
    document: Object = w.to_dict()
    return document


def cron(namespace: str, suite: str, schedules: list[str], seconds: float, store: str = "", cluster_scope: bool = False) -> Object:
    """A CronWorkflow beside that of a suite: it tells four times a day where the newest scheduled run is older than the schedules allow.

    `seconds` is the expected length of a run, whose rows are there at its end only. Raises ValueError for a schedule that cannot be.
    """
    hours = math.ceil(longest_gap(schedules) + LATE + 2 * seconds / 3600)
    told = {"suitename": suite, "hours": str(hours)} | ({"store": store} if store else {})
    made = CronWorkflow(
        name=f"perfdag-{suite}-due",
        namespace=namespace,
        labels={"perfdag/suite": suite},
        schedules=[EVERY],
        timezone="Etc/UTC",
        concurrency_policy="Forbid",
        starting_deadline_seconds=3600,
        successful_jobs_history_limit=1,
        failed_jobs_history_limit=3,
        arguments=[Parameter(name=name, value=value) for name, value in told.items()],
        workflow_template_ref=m.WorkflowTemplateRef(name=NAME, cluster_scope=cluster_scope or None),
    )
    document: Object = made.to_dict()
    return document

"""Telling of a night that never came: a template that looks at the age of a suite's newest scheduled run, and its schedule."""

import math
from typing import Any

from hera.workflows import (
    DAG,
    ClusterWorkflowTemplate,
    CronWorkflow,
    Parameter,
    Suspend,
    Task,
    WorkflowTemplate,
)
from hera.workflows import models as m

from perfdag.podspec import STEP, restricted
from perfdag.workflows.containers import ASIDE, Installation, container, labels, with_store
from perfdag.workflows.schedule import longest_gap
from perfdag.workflows.templates import lost, tried

NAME = "perfdag-due"
EVERY = "17 */6 * * *"
LATE = 2.0  # hours that a scheduled run may be late, for the lock that it waits for and the pods that it asks
SECONDS = 900  # of a look
LONGEST = 5 * 3600  # of one whose pod was not even made, in seconds: the next comes an hour later

# whether no step has said on the Workflow that it began; `argo resubmit` copies what those of another said
_UNSEEN = f"{{{{=!((workflow.annotations['{STEP}'] ?? '') startsWith workflow.uid)}}}}"

Object = dict[str, Any]


def template(made: Installation) -> Object:
    """The template, of the installation's scope: one pod of the finish image, which takes no lock.

    A run can keep it from looking: by all of the cluster's room, or by a claim that one node at a time may mount. A look that never
    began says nothing of nights, and the Workflow is no failed one; the next comes within six hours.
    """
    kind = ClusterWorkflowTemplate if made.cluster_scope else WorkflowTemplate
    where: dict[str, Any] = {} if made.cluster_scope else {"namespace": made.namespace}
    asked = {
        "suitename": "name of the suite",
        "hours": "age of its newest scheduled run here above which it is told",
    }
    told = {
        "store": (made.store, "s3://bucket/prefix or claim://NAME"),
        "run": ("", "not used: pods of all steps are told it"),
        "trigger": ("manual", "not used: pods of all steps are told it"),
    }
    with (
        kind(
            name=NAME,
            **where,
            labels={
                "app.kubernetes.io/name": "perfdag",
                "app.kubernetes.io/managed-by": "perfdag",
                **made.labels,
            },
            annotations={
                "workflows.argoproj.io/description": "Fails, and tells the webhook, where a suite's newest scheduled run here is too old."
            },
            entrypoint="due",
            service_account_name="perfdag-run",  # which may read what the cluster is, as the plan of a run does
            arguments=[
                *(Parameter(name=name, description=text) for name, text in asked.items()),
                *(
                    Parameter(name=name, value=value, description=text)
                    for name, (value, text) in told.items()
                ),
            ],
            active_deadline_seconds=LONGEST,
            ttl_strategy=m.TTLStrategy(seconds_after_completion=made.keep),
            pod_gc=m.PodGC(strategy="OnPodCompletion", delete_delay_duration=f"{made.keep_pods}s"),
            pod_metadata=m.Metadata(
                annotations={"sidecar.istio.io/inject": "false", "linkerd.io/inject": "disabled"}
            ),
            image_pull_secrets=[m.LocalObjectReference(name=name) for name in made.pull_secrets]
            or None,
        ) as w
    ):
        look = container(
            made,
            "look-pod",
            image=made.image("finish"),
            args=[
                "step",
                "due",
                "--suite",
                "{{workflow.parameters.suitename}}",
                "--max-age",
                "{{workflow.parameters.hours}}",
            ],
            active_deadline_seconds=SECONDS,
            affinity=ASIDE,
            labels=labels("due"),
            pod_spec_patch=with_store(restricted({"cpu": "100m", "memory": "256Mi"})),
        )
        unseen = Suspend(name="not-looked", duration="0")
        tries = tried(made, "look", look, lost(made, "due", SECONDS))
        with DAG(name="due", fail_fast=False):
            Task(name="look", template=tries)
            # the phase of a DAG is that of its last tasks, and of one that was left out that of the task before it
            Task(
                name="not-looked",
                template=unseen,
                depends="look.Failed || look.Errored",
                when=_UNSEEN,
            )
    document: Object = w.to_dict()
    next(each for each in document["spec"]["templates"] if each["name"] == "look-pod")[
        "pendingTimeout"
    ] = f"{made.pending_limit}s"
    return document


def cron(
    namespace: str,
    suite: str,
    schedules: list[str],
    seconds: float,
    store: str = "",
    cluster_scope: bool = False,
) -> Object:
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

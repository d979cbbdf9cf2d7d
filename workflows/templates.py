"""The WorkflowTemplate: plan -> gang (or duet) over batches, beside a watchdog -> confirm -> those batches again; onExit finish. By topology,
never by benchmark.

Names of parameters have no hyphen, so that expressions can reach them with a dot. Suite text is never in a parameter, an argument or the
environment except as base64: Argo rewrites `{{...}}` and the kubelet `$(VAR)` in all of them.
"""

import json
from typing import Any

from hera.workflows import (
    DAG,
    ClusterWorkflowTemplate,
    Container,
    Parameter,
    RetryStrategy,
    Task,
    WorkflowTemplate,
)
from hera.workflows import models as m

from perfdag.kube.labels import BEGAN, ENDED, LABEL, STEP, WATCHDOG_DONE
from perfdag.kube.security import restricted
from perfdag.workflows.containers import ASIDE, container, labels, with_store
from perfdag.workflows.containers import Installation as Installation
from perfdag.workflows.gangs import duet, gang, rank

NAME = "perfdag"
PLAN_SECONDS, FINISH_SECONDS = 1800, 3600
# the run id as it was given, empty where plan makes one, and as plan says it: there are runs whose plan was refused
_GIVEN, _MADE = "workflow.parameters.run", "workflow.outputs.parameters.run"
_FANS = {"batches": "gang", "duets": "duet"}


def template(made: Installation) -> WorkflowTemplate:
    """The WorkflowTemplate (or its cluster-scoped twin) of an installation."""
    kind = ClusterWorkflowTemplate if made.cluster_scope else WorkflowTemplate
    where: dict[str, Any] = {} if made.cluster_scope else {"namespace": made.namespace}
    with kind(
        name=NAME,
        **where,
        labels={
            "app.kubernetes.io/name": NAME,
            "app.kubernetes.io/managed-by": NAME,
            **made.labels,
        },
        annotations={
            "workflows.argoproj.io/description": "A perfdag suite on this cluster. Give one of suite (base64), configmap or url."
        },
        entrypoint="run",
        on_exit="finish",
        service_account_name="perfdag-run",
        arguments=_arguments(made),
        active_deadline_seconds=made.deadline,
        synchronization=m.Synchronization(
            mutexes=[m.Mutex(name="perfdag-measuring", namespace=made.lock_namespace)]
        ),
        ttl_strategy=m.TTLStrategy(seconds_after_completion=made.keep),
        pod_gc=m.PodGC(strategy="OnPodCompletion", delete_delay_duration=f"{made.keep_pods}s"),
        pod_metadata=m.Metadata(
            annotations={"sidecar.istio.io/inject": "false", "linkerd.io/inject": "disabled"}
        ),
        workflow_metadata=m.WorkflowMetadata(labels={f"{LABEL}/suite-run": "true"}),
        image_pull_secrets=[m.LocalObjectReference(name=name) for name in made.pull_secrets]
        or None,
    ) as w:
        plan = tried(made, "plan", _plan(made), lost(made, "plan", PLAN_SECONDS))
        anew = f"lastRetry.status == 'Error' || '{{{{workflow.annotations.{WATCHDOG_DONE}}}}}' != '{{{{workflow.uid}}}}'"
        watchdog = tried(made, "watchdog", _watchdog(made), anew)
        confirm = tried(made, "confirm", _confirm(made), lost(made, "confirm", FINISH_SECONDS))
        tried(made, "finish", _finish(made), lost(made, "finish", FINISH_SECONDS))
        pods = rank(made)
        fans = [gang(made, pods), duet(made, pods)]
        # a DAG of its own: the watchdog beside it is no batch, and must not take a batch's place under the limit
        with DAG(
            name="batches", fail_fast=False, inputs=[Parameter(name=name) for name in _FANS]
        ) as batches:
            for (fan, name), each in zip(_FANS.items(), fans, strict=True):
                Task(
                    name=name,
                    template=each,
                    with_param=f"{{{{inputs.parameters.{fan}}}}}",
                    arguments={"batch": "{{item}}"},
                )
        with DAG(name="run", fail_fast=False):
            Task(name="plan", template=plan)
            Task(name="watchdog", template=watchdog, depends="plan")
            Task(name="batches", template=batches, depends="plan", arguments=_fans_of("plan"))
            # a batch that failed is no reason to leave the suspicious points of the others unconfirmed
            measured = "batches.Succeeded || batches.Failed || batches.Errored"
            Task(
                name="confirm",
                template=confirm,
                depends=measured,
                when="{{tasks.plan.outputs.parameters.gated}} == true",
            )
            Task(
                name="confirming",
                template=batches,
                depends="confirm.Succeeded",
                arguments=_fans_of("confirm"),
            )
    return w


def lost(made: Installation, name: str, limit: int) -> str:
    """Expression: whether a step's pod was lost, by an eviction or a node that went. One that ended by itself said why, and another would say
    the same; one that waited or worked for all of its time (`limit`, seconds) would again.

    Argo calls an eviction Failed, as it does an exit code, and tells neither to a DAG: the step says on the Workflow where it is.
    """
    said, now = f"'{{{{workflow.annotations.{STEP}}}}}'", f"'{{{{workflow.uid}}}} {name} "
    most = f"{said} == {now}{ENDED}' ? 0 : {said} == {now}{BEGAN}' ? {limit} : {made.pending_limit}"
    return f"lastRetry.status == 'Error' || asFloat(lastRetry.duration) < ({most})"


def tried(made: Installation, name: str, pod: Container, expression: str) -> DAG:
    """A step: its pod, anew where it failed and the expression holds.

    The retryStrategy is a DAG's: of a template that has one itself Argo forgets the pendingTimeout.
    """
    given = pod.outputs if isinstance(pod.outputs, list) else []
    # what is the workflow's is not handed on too: each level is another copy in its object
    names = [each.name for each in given if isinstance(each, Parameter) and not each.global_name]
    outputs = [
        Parameter(
            name=each,
            value_from=m.ValueFrom(parameter=f"{{{{tasks.{name}.outputs.parameters.{each}}}}}"),
        )
        for each in names
    ]
    again = RetryStrategy(limit=str(made.retries), retry_policy="Always", expression=expression)
    with DAG(name=name, fail_fast=False, outputs=outputs, retry_strategy=again) as dag:
        Task(name=name, template=pod)
    return dag


def _fans_of(task: str) -> dict[str, str]:
    return {name: f"{{{{tasks.{task}.outputs.parameters.{name}}}}}" for name in _FANS}


def _arguments(made: Installation) -> list[Parameter]:
    told = {
        "suite": ("", "the suite file, base64"),
        "configmap": ("perfdag-none", "a ConfigMap that holds the suite as suite.yaml"),
        "url": ("", "key of the suite in the store"),
        "run": ("", "run id; empty: made from the workflow. An id that has a plan is continued"),
        "store": (
            made.store,
            "s3://bucket/prefix or claim://NAME; perfdag submit and render give a suite's own here, argo submit does not",
        ),
        "options": ("", "base64 JSON: lists, settings and only, of what --set and --only take"),
        "trigger": ("manual", "manual or cron"),
    }
    return [
        Parameter(name=name, value=value, description=text) for name, (value, text) in told.items()
    ]


def _plan(made: Installation) -> Container:
    return container(
        made,
        "plan-pod",
        ("suite", "url", "options"),
        {
            "allowed": " ".join(made.allow),
            "network_policy": "true" if made.network_policy else "",
            "pull_policy": made.pull_policy,
        },
        image=made.image("base"),
        args=["step", "plan", "--out", "/tmp/perfdag-plan"],
        volumes=[
            m.Volume(
                name="suite",
                config_map=m.ConfigMapVolumeSource(
                    name="{{workflow.parameters.configmap}}", optional=True
                ),
            )
        ],
        volume_mounts=[m.VolumeMount(name="suite", mount_path="/perfdag/suite", read_only=True)],
        outputs=[
            Parameter(name="batches", value_from=m.ValueFrom(path="/tmp/perfdag-plan/batches")),
            Parameter(name="duets", value_from=m.ValueFrom(path="/tmp/perfdag-plan/duets")),
            Parameter(
                name="shapeof",
                global_name="shapeof",
                value_from=m.ValueFrom(path="/tmp/perfdag-plan/shapeof"),
            ),
            Parameter(
                name="shapes",
                global_name="shapes",
                value_from=m.ValueFrom(path="/tmp/perfdag-plan/shapes"),
            ),
            Parameter(
                name="run", global_name="run", value_from=m.ValueFrom(path="/tmp/perfdag-plan/run")
            ),
            Parameter(
                name="pending",
                global_name="pending",
                value_from=m.ValueFrom(path="/tmp/perfdag-plan/pending"),
            ),
            Parameter(
                name="suitename",
                global_name="suitename",
                value_from=m.ValueFrom(path="/tmp/perfdag-plan/suitename"),
            ),
            Parameter(name="gated", value_from=m.ValueFrom(path="/tmp/perfdag-plan/gated")),
        ],
        active_deadline_seconds=PLAN_SECONDS,
        affinity=ASIDE,
        labels=labels("plan", _GIVEN),
        pod_spec_patch=with_store(restricted({"cpu": "100m", "memory": "128Mi"})),
    )


def _watchdog(made: Installation) -> Container:
    return container(
        made,
        "watchdog-pod",
        (),
        {"pending": "{{workflow.outputs.parameters.pending}}"},
        image=made.image("base"),
        args=["step", "watchdog"],
        affinity=ASIDE,
        labels=labels("watchdog", _MADE),
        pod_spec_patch=json.dumps(restricted({"cpu": "10m", "memory": "64Mi"})),
    )


def _confirm(made: Installation) -> Container:
    return container(
        made,
        "confirm-pod",
        image=made.image("finish"),
        args=["step", "confirm", "--out", "/tmp/perfdag-confirm"],
        outputs=[
            Parameter(name=name, value_from=m.ValueFrom(path=f"/tmp/perfdag-confirm/{name}"))
            for name in _FANS
        ],
        active_deadline_seconds=FINISH_SECONDS,
        affinity=ASIDE,
        labels=labels("confirm", _MADE),
        pod_spec_patch=with_store(restricted({"cpu": "100m", "memory": "256Mi"})),
    )


def _finish(made: Installation) -> Container:
    return container(
        made,
        "finish-pod",
        service_account_name="perfdag-finish",
        image=made.image("finish"),
        args=["step", "finish", "--phase", "{{workflow.status}}"],
        active_deadline_seconds=FINISH_SECONDS,
        affinity=ASIDE,
        labels=labels("finish", _GIVEN),
        pod_spec_patch=with_store(restricted({"cpu": "100m", "memory": "256Mi"})),
    )


def document(made: Installation) -> dict[str, Any]:
    """The manifest of the WorkflowTemplate, with what Hera's models cannot say.

    `pendingTimeout` is newer than Hera's models. The limit on batches is the DAG template's: one on the workflow counts pods and would
    starve a gang.
    """
    made_of: dict[str, Any] = template(made).to_dict()
    for each in made_of["spec"]["templates"]:
        if each["name"] == "batches":
            each["parallelism"] = made.parallel_batches
        if each["name"] == "rank":
            each["pendingTimeout"] = "{{workflow.outputs.parameters.pending}}"
        elif "container" in each:  # the workflow holds the lock of all that measure
            each["pendingTimeout"] = f"{made.pending_limit}s"
    return made_of

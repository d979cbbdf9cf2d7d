"""The WorkflowTemplate of a run.

The step `plan` fans out over batches (`measure`), each with a pod for every `host`, beside a
`watchdog`. Then `recheck` plans batches that measure suspicious points again. `finish` is the exit
handler. The templates follow this topology, never a benchmark.

Names of parameters have no hyphen, so that expressions can reach them with a dot. A suite's text is
only passed as base64: Argo rewrites `{{...}}`, and the kubelet `$(VAR)`, in parameters, arguments
and the environment.
"""

import json
from collections.abc import Mapping
from typing import Any

from hera.workflows import DAG, Container, Parameter, Task, WorkflowTemplate
from hera.workflows import models as m

from perfdag.kube.client import Object
from perfdag.kube.patch import LABEL, WATCHDOG_DONE, node_loss_tolerance, step_pod_patch
from perfdag.workflows import age, rights
from perfdag.workflows.containers import (
    ASIDE,
    container,
    installed_template,
    labels,
    pod_fields,
    with_store,
)
from perfdag.workflows.containers import Installation as Installation
from perfdag.workflows.gangs import measure, measuring_pod
from perfdag.workflows.retries import annotation, refused, step_was_lost, with_retries
from perfdag.workflows.rights import Grant

NAME = "perfdag"
PLAN_SECONDS, FINISH_SECONDS = 1800, 3600
PLAN_MEMORY = "2Gi"
"""Limit of the plan step. A plan of 100,000 points and 1,000,000 samples, whose params are as long
as is allowed, needs 0.9 GB when it is read again, and the two of `ab` need 1.4 GB."""
_RUN = "{{workflow.outputs.parameters.run}}"
"""The run id as an output of the plan step, for the steps after it."""
_GLOBAL = ("kindof", "kinds", "shapes", "run", "pending", "suitename")
"""Outputs of the plan step that the pods of all steps read."""


def template(installation: Installation) -> WorkflowTemplate:
    """Return the WorkflowTemplate of an installation, or its cluster-scoped twin."""
    with installed_template(
        installation,
        NAME,
        "A perfdag suite on this cluster. Give one of suite (base64), configmap or url.",
        entrypoint="run",
        on_exit="finish",
        **workflow_fields(installation),
    ) as w:
        plan = with_retries(
            installation,
            "plan",
            _plan(installation),
            step_was_lost(installation, "plan", PLAN_SECONDS),
        )
        not_done = f"{{{{={annotation(WATCHDOG_DONE)} != workflow.uid}}}}"
        lost_or_new = f"lastRetry.status == 'Error' || {not_done}"
        watchdog = with_retries(installation, "watchdog", _watchdog(installation), lost_or_new)
        recheck = with_retries(
            installation,
            "recheck",
            _recheck(installation),
            step_was_lost(installation, "recheck", FINISH_SECONDS),
        )
        with_retries(
            installation,
            "finish",
            _finish(installation),
            step_was_lost(installation, "finish", FINISH_SECONDS),
            f"{{{{=!({refused('plan')})}}}} == true",
        )
        batch = measure(installation, measuring_pod(installation))
        # a DAG of its own, since the limit on parallel batches must not count the watchdog
        with DAG(name="batches", fail_fast=False, inputs=[Parameter(name="batches")]) as batches:
            Task(
                name="measure",
                template=batch,
                with_param="{{inputs.parameters.batches}}",
                when="'{{item.n}}' != ''",  # else the cluster refuses the batch
                arguments={"batch": "{{item.n}}"},
            )
        with DAG(name="run", fail_fast=False):
            Task(name="plan", template=plan)
            Task(name="watchdog", template=watchdog, depends="plan")
            Task(name="batches", template=batches, depends="plan", arguments=_batches_of("plan"))
            # measure the suspicious points of other batches again even if one failed
            measured = "batches.Succeeded || batches.Failed || batches.Errored"
            Task(
                name="recheck",
                template=recheck,
                depends=measured,
                when="{{tasks.plan.outputs.parameters.gated}} == true",
            )
            Task(
                name="recheck-batches",
                template=batches,
                depends="recheck.Succeeded",
                arguments=_batches_of("recheck"),
            )
    return w


def workflow_fields(installation: Installation) -> dict[str, Any]:
    """Return the fields of the Workflow of a run. A task does not inherit them by a reference."""
    return {
        "service_account_name": "perfdag-run",
        "arguments": _arguments(installation),
        "active_deadline_seconds": installation.deadline,
        # all that measures takes this lock: one run at a time
        "synchronization": m.Synchronization(
            mutexes=[m.Mutex(name="perfdag-measuring", namespace=installation.lock_namespace)]
        ),
        **pod_fields(installation),
        "workflow_metadata": m.WorkflowMetadata(labels={f"{LABEL}/suite-run": "true"}),
    }


def _batches_of(task: str) -> dict[str, str]:
    return {"batches": f"{{{{tasks.{task}.outputs.parameters.batches}}}}"}


def _arguments(installation: Installation) -> list[Parameter]:
    parameters = {
        "suite": ("", "the suite file, base64"),
        "configmap": ("perfdag-none", "a ConfigMap that holds the suite as suite.yaml"),
        "url": ("", "key of the suite in the store"),
        "run": ("", "run id; empty: made from the workflow. An id that has a plan is continued"),
        "store": (
            installation.store,
            "s3://bucket/prefix or claim://NAME; "
            "perfdag submit and render give a suite's own here, argo submit does not",
        ),
        "options": ("", "base64 JSON: lists, settings and only, of what --set and --only take"),
        "trigger": ("manual", "manual or cron"),
    }
    return [
        Parameter(name=name, value=default, description=text)
        for name, (default, text) in parameters.items()
    ]


def _plan(installation: Installation) -> Container:
    return container(
        installation,
        "plan-pod",
        ("run", "suite", "url", "options", "trigger"),
        {
            "allowed": " ".join(installation.allow),
            "network_policy": "true" if installation.network_policy else "",
            "pull_policy": installation.pull_policy,
        },
        image=installation.image("base"),
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
        outputs=[_planned(name, name in _GLOBAL) for name in ("batches", *_GLOBAL, "gated")],
        active_deadline_seconds=PLAN_SECONDS,
        affinity=ASIDE,
        labels=labels("plan", "{{workflow.parameters.run}}"),
        pod_spec_patch=with_store(
            installation, step_pod_patch({"cpu": "100m", "memory": "128Mi"}, PLAN_MEMORY)
        ),
    )


def _planned(name: str, everywhere: bool) -> Parameter:
    """Return an output of the plan step; all steps of the Workflow can read one `everywhere`."""
    file = m.ValueFrom(path=f"/tmp/perfdag-plan/{name}")
    return Parameter(name=name, global_name=name if everywhere else None, value_from=file)


def _watchdog(installation: Installation) -> Container:
    return container(
        installation,
        "watchdog-pod",
        ("run",),
        {"pending": "{{workflow.outputs.parameters.pending}}"},
        image=installation.image("base"),
        args=["step", "watchdog"],
        affinity=ASIDE,
        labels=labels("watchdog", _RUN),
        # Argo creates it again elsewhere, and finish waits for it: it leaves a lost node at once
        pod_spec_patch=json.dumps(
            step_pod_patch({"cpu": "10m", "memory": "64Mi"}) | node_loss_tolerance(seconds=0)
        ),
    )


def _recheck(installation: Installation) -> Container:
    return container(
        installation,
        "recheck-pod",
        image=installation.image("finish"),
        args=["step", "recheck", "--out", "/tmp/perfdag-recheck"],
        outputs=[
            Parameter(name="batches", value_from=m.ValueFrom(path="/tmp/perfdag-recheck/batches"))
        ],
        active_deadline_seconds=FINISH_SECONDS,
        affinity=ASIDE,
        labels=labels("recheck", _RUN),
        pod_spec_patch=with_store(installation, step_pod_patch({"cpu": "100m", "memory": "256Mi"})),
    )


def _finish(installation: Installation) -> Container:
    return container(
        installation,
        "finish-pod",
        service_account_name="perfdag-finish",
        image=installation.image("finish"),
        args=["step", "finish", "--phase", "{{workflow.status}}"],
        active_deadline_seconds=FINISH_SECONDS,
        affinity=ASIDE,
        labels=labels("finish", "{{workflow.parameters.run}}"),
        pod_spec_patch=with_store(installation, step_pod_patch({"cpu": "100m", "memory": "256Mi"})),
    )


def document(installation: Installation) -> dict[str, Any]:
    """Return the manifest of the WorkflowTemplate, with what Hera's models cannot express.

    `pendingTimeout` is newer than Hera's models. The limit on batches belongs to the DAG template:
    a limit on the Workflow counts pods and would starve a gang.
    """
    manifest: dict[str, Any] = template(installation).to_dict()
    for item in manifest["spec"]["templates"]:
        if item["name"] == "batches":
            item["parallelism"] = installation.parallel_batches
        if item["name"] == "host":
            item["pendingTimeout"] = "{{workflow.outputs.parameters.pending}}"
        elif "container" in item:  # the workflow holds the lock of all that measure
            item["pendingTimeout"] = f"{installation.pending_limit}s"
    return manifest


def objects(installation: Installation, granted: Mapping[str, Grant] | None = None) -> list[Object]:
    """Return the objects of an installation, in an order that can be applied."""
    return [
        *rights.objects(installation, granted),
        age.template(installation),
        document(installation),
    ]

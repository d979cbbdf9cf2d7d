"""A suite as a task in a DAG of your own."""

import json
from typing import Any

from hera.workflows import Parameter, Task, Workflow
from hera.workflows import models as m
from hera.workflows._context import _context

from perfdag.kube.patch import LABEL, step_pod_patch
from perfdag.plan.plan import make_plan
from perfdag.store.open import check_cluster_address
from perfdag.suite.load import load_model
from perfdag.workflows.cron import AnySuite
from perfdag.workflows.runs import suite_parameter
from perfdag.workflows.templates import NAME, Installation, workflow_fields

RESTRICTED = json.dumps(step_pod_patch())
"""The podSpecPatch with which a container satisfies PodSecurity `restricted`, Argo's own too."""


def measure(
    suite: AnySuite,
    *,
    store: str,
    name: str = "measure",
    lock_namespace: str = "perfdag",
    cluster_scope: bool = False,
    **task: Any,
) -> Task:
    """Return a task that measures a suite, for the DAG of the Workflow whose `with` block is open.

    `suite` is a suite, a file, or one entry. `store` is s3://bucket/prefix or claim://NAME.
    `lock_namespace` and `cluster_scope` are the options of `perfdag install`; `task` are further
    arguments of Hera's Task. The Workflow gets the parameters, the lock, the service account and
    the exit handler of a run, so a Workflow has one such task. The rows and the report are written
    when the Workflow ends.

    Raises ValueError outside a Workflow, for a second task, or if the Workflow has an exit handler.
    Raises BadDocument, AddressError.
    """
    workflow = _open_workflow()
    loaded = load_model(suite)
    make_plan(loaded)
    installation = Installation(
        store=check_cluster_address(store),
        lock_namespace=lock_namespace,
        cluster_scope=cluster_scope,
    )
    fields = workflow_fields(installation)
    _add_parameters(workflow, fields.pop("arguments"), suite_parameter(loaded))
    if workflow.synchronization is not None:
        lock = fields["synchronization"]
        lock.mutexes = [*(workflow.synchronization.mutexes or []), *lock.mutexes]
        lock.semaphores = workflow.synchronization.semaphores
        workflow.synchronization = None
    for field, value in fields.items():
        if getattr(workflow, field) is None:
            setattr(workflow, field, value)
    run, finish = (
        m.TemplateRef(name=NAME, template=template, cluster_scope=cluster_scope or None)
        for template in ("run", "finish")
    )
    workflow.hooks = {**(workflow.hooks or {}), "exit": m.LifecycleHook(template_ref=finish)}
    # `perfdag status` and `perfdag delete` find a run by this label
    workflow.labels = {**(workflow.labels or {}), f"{LABEL}/suite": loaded.suite.name}
    return Task(name=name, template_ref=run, **task)


def _open_workflow() -> Workflow:
    workflow = _context.pieces[0] if _context.pieces else None
    if not isinstance(workflow, Workflow):
        raise ValueError("measure() needs the open `with` block of a Workflow or CronWorkflow")
    exit_hook = (workflow.hooks or {}).get("exit")
    if exit_hook and exit_hook.template_ref and exit_hook.template_ref.name == NAME:
        raise ValueError(
            "a Workflow has one measure(): put the entries into one suite, or use two Workflows"
        )
    if workflow.on_exit or exit_hook:
        raise ValueError(
            "the Workflow has an exit handler, but measure() sets that of a run, which collects "
            "the rows; make yours a task with `depends`"
        )
    return workflow


def _add_parameters(workflow: Workflow, added: list[Parameter], suite: str) -> None:
    """Add the parameters of a run, with the suite in base64. Raises ValueError for a taken name."""
    own = workflow._build_arguments() or m.Arguments()
    names = {parameter.name for parameter in own.parameters or []}
    if duplicates := ", ".join(sorted(names & {parameter.name for parameter in added})):
        raise ValueError(f"the Workflow has parameters of a perfdag run, rename them: {duplicates}")
    values = {item.name: suite if item.name == "suite" else item.value for item in added}
    parameters = [m.Parameter(name=name, value=value) for name, value in values.items()]
    own.parameters = [*(own.parameters or []), *parameters]
    workflow.arguments = own

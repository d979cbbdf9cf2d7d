"""Retries of the steps of a run that are no batches."""

from hera.workflows import DAG, Container, Parameter, RetryStrategy, Task
from hera.workflows import models as m

from perfdag.kube.patch import STEP, STEP_BEGAN, STEP_ENDED, STEP_REFUSED
from perfdag.workflows.containers import Installation


def annotation(name: str) -> str:
    """Return an expression: the value of an annotation of the Workflow, or an empty text.

    Whoever submits a Workflow sets its annotations, so they are never part of an expression's text.
    """
    return f"(workflow.annotations['{name}'] ?? '')"


def refused(name: str) -> str:
    """Return an expression: whether a step refused the run."""
    return f"{annotation(STEP)} == workflow.uid + ' {name} {STEP_REFUSED}'"


def step_was_lost(installation: Installation, name: str, limit: int) -> str:
    """Return an expression: whether the pod of a step was lost (an eviction, a node that is gone).

    A step that ended by itself would end the same way again. So would one that waited or worked for
    its whole time (`limit`, seconds). Argo calls an eviction Failed, as it does an exit code, and
    gives neither to a DAG. So the step records its state on the Workflow.
    """
    began, end = (
        f"{annotation(STEP)} == workflow.uid + ' {name} {state}'"
        for state in (STEP_BEGAN, STEP_ENDED)
    )
    waiting = installation.pending_limit
    at_least = f"{end} || {refused(name)} ? 0 : {began} ? {limit} : {waiting}"
    return f"lastRetry.status == 'Error' || asFloat(lastRetry.duration) < {{{{={at_least}}}}}"


def with_retries(
    installation: Installation, name: str, pod: Container, expression: str, when: str | None = None
) -> DAG:
    """Return a step: its pod, created again if it failed and the expression holds.

    Without the condition `when` there is no pod.

    The retryStrategy is that of a DAG: Argo ignores the pendingTimeout of a template that has one.
    """
    parameters = pod.outputs if isinstance(pod.outputs, list) else []
    # A global output is already in the Workflow, and each level would add a copy of it.
    names = [
        output.name
        for output in parameters
        if isinstance(output, Parameter) and not output.global_name
    ]
    outputs = [
        Parameter(
            name=output,
            value_from=m.ValueFrom(parameter=f"{{{{tasks.{name}.outputs.parameters.{output}}}}}"),
        )
        for output in names
    ]
    retries = RetryStrategy(
        limit=str(installation.retries), retry_policy="Always", expression=expression
    )
    with DAG(name=name, fail_fast=False, outputs=outputs, retry_strategy=retries) as dag:
        Task(name=name, template=pod, when=when)
    return dag

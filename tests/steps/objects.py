"""Objects of a run that its API server has: the Workflow, and the pods of gangs."""

from collections.abc import Mapping
from typing import Any

from perfdag.steps.pods.context import PodContext


def workflow_of(
    context: PodContext, annotations: Mapping[str, str | None] | None = None, **status: Any
) -> dict[str, Any]:
    """Return a Workflow with these annotations and fields of its status."""
    metadata = {"name": context.workflow, "namespace": context.namespace, "uid": "u-1"}
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": metadata | {"annotations": annotations or {}},
        "spec": {},
        "status": {"startedAt": "2026-01-02T00:00:00Z"} | status,
    }


def gang_pod(
    status: dict[str, Any], rank: int = 0, attempt: int = 0, batch: int = 0, uid: str = "u"
) -> dict[str, Any]:
    """Return a pod of a gang with this status."""
    numbers = {"batch": batch, "attempt": attempt, "rank": rank}
    labels = {f"perfdag/{name}": str(number) for name, number in numbers.items()}
    return {
        "metadata": {"name": f"p{rank}", "uid": uid, "labels": labels},
        "spec": {"nodeName": "node-1", "containers": [{"name": "main"}]},
        "status": status,
    }

"""Read the nodes of an Argo Workflow."""

import base64
import gzip

import orjson

from perfdag.kube.resources import Object


def nodes_of(workflow: Object) -> dict[str, Object]:
    """Return the nodes of a Workflow's status, which Argo may have compressed."""
    status = workflow.get("status") or {}
    if status.get("compressedNodes"):
        packed = base64.b64decode(status["compressedNodes"])
        nodes: dict[str, Object] = orjson.loads(gzip.decompress(packed))
        return nodes
    return status.get("nodes") or {}


def inputs_of(node: Object) -> Object:
    """Return the input parameters of a node, by name."""
    parameters = (node.get("inputs") or {}).get("parameters") or []
    return {parameter["name"]: parameter.get("value") for parameter in parameters}


def template_of(node: Object) -> str | None:
    """Return the template of a node: the workflow's own, or one that a task refers to."""
    return node.get("templateName") or (node.get("templateRef") or {}).get("template")

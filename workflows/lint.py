"""Rules for manifests that `argo lint` accepts although a cluster then refuses or hangs on them."""

import json
from collections.abc import Iterator

import yaml

from perfdag.kube.resources import Object

MAX_BYTES = 256 * 1024


def problems(document: Object) -> list[str]:
    """Return what is wrong with a manifest."""
    messages = list(_size(document))
    if document.get("kind") in ("WorkflowTemplate", "ClusterWorkflowTemplate", "Workflow"):
        messages += _workflow(document["spec"])
    return messages


def _size(document: Object) -> Iterator[str]:
    # `kubectl apply` keeps the object as JSON in an annotation, which has the same limit
    size = max(
        len(yaml.safe_dump(document)), len(json.dumps(document, ensure_ascii=False).encode())
    )
    if size > MAX_BYTES:
        name = f"{document['kind']} {document['metadata'].get('name')}"
        yield f"{name} has {size:,} bytes, more than {MAX_BYTES:,}"


def _workflow(spec: Object) -> Iterator[str]:
    if "parallelism" in spec:
        yield (
            "spec.parallelism counts pods: a gang of more ranks than it would wait for itself; "
            "limit the DAG template"
        )
    for key in ("mutex", "semaphore"):
        if key in (spec.get("synchronization") or {}):
            yield f"spec.synchronization.{key} was removed in Argo 4; use the list"
    for template in spec.get("templates") or []:
        yield from _template(template)


def _template(template: Object) -> Iterator[str]:
    name = template["name"]
    if template.get("failFast") or (template.get("dag") or {}).get("failFast"):
        yield f"{name}: failFast would leave the other batches unmeasured"
    if template.get("daemon"):
        yield f"{name}: a daemon costs two reconciles and is not restarted by a retry"
    container = template.get("container")
    if container is None:
        return
    if not container.get("command"):
        yield f"{name}: no command, so the controller would ask a registry for it"
    if "retryStrategy" in template and name.startswith("rank"):
        yield f"{name}: a retried rank has a new address, unknown to its gang; retry the gang"
    if "podSpecPatch" not in template:
        yield (
            f"{name}: no podSpecPatch, "
            "so PodSecurity restricted refuses Argo's init and wait containers"
        )
    for text in [
        *container.get("args", []),
        *(variable.get("value") or "" for variable in container.get("env") or []),
    ]:
        if "$(" in text:
            yield f"{name}: the kubelet rewrites $(...) in {text!r}"
    patch = template.get("podSpecPatch") or ""
    if patch.startswith("{{=") and "}}" in patch[:-2]:
        yield f"{name}: two closing braces end the expression of podSpecPatch early"

"""Rules for manifests that `argo lint` accepts although a cluster then refuses or hangs on them."""

import json
from collections.abc import Iterator

from perfdag.kube.client import Object
from perfdag.workflows.runs import MAX_BYTES


def problems(document: Object) -> list[str]:
    """Return what is wrong with a manifest."""
    found = []
    if len(json.dumps(document, ensure_ascii=False).encode()) > MAX_BYTES:
        found.append(f"{document['metadata'].get('name')} is too large")
    if document["kind"] in ("WorkflowTemplate", "Workflow"):
        spec = document["spec"]
        if any("container" in each for each in spec.get("templates") or []) and not (
            spec.get("podSpecPatch")
            or all(each.get("podSpecPatch") for each in spec["templates"] if "container" in each)
        ):
            found.append("without a podSpecPatch Pod Security restricted refuses Argo's containers")
        if "parallelism" in spec:
            found.append("spec.parallelism counts pods: a large gang would wait for itself")
        if {"mutex", "semaphore"} & set(spec.get("synchronization") or {}):
            found.append("spec.synchronization has lists since Argo 4")
        found += [text for template in spec.get("templates") or [] for text in _template(template)]
    return found


def _template(template: Object) -> Iterator[str]:
    name, container = template["name"], template.get("container")
    if template.get("failFast") or (template.get("dag") or {}).get("failFast"):
        yield f"{name}: failFast would leave the other batches unmeasured"
    if container is None:
        return
    if not container.get("command"):
        yield f"{name}: no command, so the controller would ask a registry for it"
    if "retryStrategy" in template and name == "host":
        yield f"{name}: a retried host has a new address, unknown to its batch; retry the batch"
    patch = template.get("podSpecPatch", "")
    if patch.startswith("{{=") and "}}" in patch[:-2]:
        yield f"{name}: two closing braces end the expression of podSpecPatch early"
    values = [variable.get("value") or "" for variable in container.get("env") or []]
    for text in [*container.get("args", []), *values]:
        if "$(" in text:
            yield f"{name}: the kubelet rewrites $(...) in {text!r}"

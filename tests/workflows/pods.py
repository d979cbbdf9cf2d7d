"""Pods as Argo makes them of the Workflow's patch and a shape's, for API servers without Argo."""

import json
from typing import Any

import yaml

from perfdag.kube.client import Object
from perfdag.kube.patch import ATTEMPT_NUMBER, BATCH_NUMBER, PORT, Context, patch
from perfdag.shape import Shape
from perfdag.workflows import templates
from perfdag.workflows.installation import Installation

_KEYS = ("name", "mountPath")
"""What items of a list are merged by."""


def merged(base: Any, more: Any) -> Any:
    """A strategic merge of a patch: mappings by key, lists of named items by name."""
    if isinstance(base, dict) and isinstance(more, dict):
        return {**base, **{key: merged(base.get(key), value) for key, value in more.items()}}
    key = next((key for key in _KEYS if more and isinstance(more, list) and key in more[0]), None)
    if not isinstance(base, list) or key is None:
        return more
    items = {each[key]: each for each in base}
    for each in more:
        items[each[key]] = merged(items.get(each[key], {}), each)
    return [*items.values()]


def pod(
    shape: Object,
    name: str,
    *,
    run: str = "r",
    batch: int = 0,
    rank: int = 0,
    attempt: int = 0,
    store: str = "s3://b/r",
    more: Object | None = None,
) -> Object:
    """A pod of that rank, in which Argo has merged both patches; `more` is laid over its spec."""
    context = Context(run, "uid", "registry.example/perfdag-{name}:1", store)
    own = (
        json.dumps(patch(Shape.model_validate(shape), context, rank))
        .replace(f'"{PORT}"', str(20000 + rank))
        .replace(BATCH_NUMBER, str(batch))
        .replace(ATTEMPT_NUMBER, str(attempt))
    )
    template = templates.run_template(Installation(store=store))["spec"]
    host = next(each for each in template["templates"] if each["name"] == "host")
    spec = {
        "securityContext": template["securityContext"],
        "tolerations": template["tolerations"],
        "initContainers": [{"name": "init"}],
        "volumes": host["volumes"],
    }
    spec = merged(merged(spec, yaml.safe_load(template["podSpecPatch"])), json.loads(own))
    for each in [*spec["containers"], *spec["initContainers"]]:
        each.setdefault("image", "registry.example/image:1")
    numbers = {
        "perfdag/batch": str(batch),
        "perfdag/rank": str(rank),
        "perfdag/attempt": str(attempt),
    }
    labels = {"perfdag/measuring": "true", "perfdag/run": run, **numbers}
    spec |= {"restartPolicy": "Never", "automountServiceAccountToken": False} | (more or {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": spec,
    }

"""Pods as Argo makes them of a shape's patch, for API servers and schedulers without Argo."""

import json

from perfdag.kube.client import Object
from perfdag.kube.patch import (
    ATTEMPT_NUMBER,
    BATCH_NUMBER,
    CLAIMED,
    NODES,
    PORT,
    Context,
    of_roles,
    patch,
)
from perfdag.shape import Shape


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
    """A pod of that rank: the patch with its placeholders replaced, laid over Argo's three
    containers; `more` is laid over its spec.
    """
    read = Shape.model_validate(shape)
    role = list(of_roles(read).values())[rank : rank + 1]
    spec_patch = patch(read, Context(run, "uid", "registry.example/perfdag-{name}:1", store))
    text = (
        json.dumps(spec_patch)
        .replace(f'"{CLAIMED}"', '{"name": "store", "emptyDir": {}}')
        .replace(f'"{NODES}"', json.dumps(role[0].node_selector if role else {}))
        .replace(f'"{PORT}"', str(20000 + rank))
    )
    spec = json.loads(text.replace(BATCH_NUMBER, str(batch)).replace(ATTEMPT_NUMBER, str(attempt)))
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

"""The images of VMIs on every node before a burst: a DaemonSet pulls what the primer's pod used."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from perfdag.kube.client import Kube, KubeError, Object
from perfdag.kube.pod_security import hardened
from perfdag.steps.scale.cluster.kubevirt import usable_nodes
from perfdag.steps.scale.cluster.removal import PRIMER
from perfdag.steps.scale.model.nodes import is_simulated
from perfdag.steps.scale.model.templates import RUN_LABEL

PULL = 600.0
"""Seconds that all nodes may take to pull the images."""
PAUSE = 0.5
"""Seconds between two looks at the pods."""
_LABEL = "perfdag/images"
_SCHEDULABLE = {"kubevirt.io/schedulable": "true"}
Digests = Mapping[str, list[str]]
"""Image -> its digests on the nodes: more than one if a tag was moved between two pulls."""


async def pull_images(
    kube: Kube, run: str, namespace: str, pod: Object, seconds: float
) -> tuple[Digests, list[str]]:
    """Pull the images of a VMI's `pod` on all nodes for VMIs; return their digests, and notes.

    Waits `seconds` at most. Simulated nodes pull nothing.
    """
    nodes = [node for node in (await usable_nodes(kube))[0] if not is_simulated(node)]
    if not nodes:
        return _digests([pod]), []
    body = _daemon_set(run, pod, _all_labelled(nodes))
    notes, pods = [], [pod]
    try:
        daemon_sets = await kube.resource("apps/v1", "DaemonSet")
        await kube.create(body, namespace)
        try:
            names = {node["metadata"]["name"] for node in nodes}
            pods, missing = await _wait(kube, run, namespace, names, seconds)
        finally:
            await kube.delete(daemon_sets, body["metadata"]["name"], namespace)
        if missing:
            notes = [f"{len(missing)} of {len(names)} nodes lack images of the VMIs: {missing[0]}"]
    except KubeError as error:
        notes = [f"whether all nodes have the images of the VMIs is unknown: {error}"]
    digests = _digests(pods)
    moved = [image for image, own in digests.items() if len(own) > 1]
    notes += [f"nodes have different images of {image}: name it by its digest" for image in moved]
    return digests, notes


def _all_labelled(nodes: Iterable[Object]) -> bool:
    """Return whether KubeVirt's label selects these nodes."""
    return all(_SCHEDULABLE.items() <= node["metadata"].get("labels", {}).items() for node in nodes)


def _daemon_set(run: str, pod: Object, labelled: bool) -> Object:
    """Return a DaemonSet whose containers need the images, and run a program that does not exist.

    An image of a disk has no program. A container that cannot start shows the digest all the same.
    """
    spec, labels = pod["spec"], {_LABEL: run}
    same = ("imagePullSecrets", "tolerations")
    own = {
        "containers": [
            {
                "name": f"image-{number}",
                "image": image,
                "imagePullPolicy": "IfNotPresent",
                "command": ["/perfdag-pull"],
                "securityContext": hardened(),
                "resources": {"requests": {"cpu": "1m", "memory": "1Mi"}},
            }
            for number, image in enumerate(sorted({item["image"] for item in _containers(pod)}))
        ],
        "nodeSelector": _SCHEDULABLE if labelled else {},
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
    }
    metadata = {"name": f"perfdag-images-{run}", "labels": {RUN_LABEL: f"{run}-{PRIMER}"}}
    template = {
        "metadata": {"labels": labels},
        "spec": own | {name: spec[name] for name in same if name in spec},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": metadata,
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }


async def _wait(
    kube: Kube, run: str, namespace: str, nodes: set[str], seconds: float
) -> tuple[list[Object], list[str]]:
    """Return the pods when all `nodes` have all images, and the nodes that lack some at the end."""
    deadline, resource = time.monotonic() + seconds, await kube.resource("v1", "Pod")
    while True:
        pods = await kube.list(resource, namespace, labels=f"{_LABEL}={run}")
        lack = dict.fromkeys(sorted(nodes), "no pod was started there")
        for pod in pods:
            lack[pod["spec"].get("nodeName", "")] = _missing_image(pod)
        missing = [f"{node}: {why}" for node, why in lack.items() if node in nodes and why]
        if not missing or time.monotonic() >= deadline:
            return pods, missing
        await asyncio.sleep(PAUSE)


def _missing_image(pod: Object) -> str:
    """Return why an image of the pod is not on its node, or an empty string."""
    statuses = {item["name"]: item for item in _statuses(pod)}
    for container in pod["spec"]["containers"]:
        status = statuses.get(container["name"], {})
        if not status.get("imageID"):
            waiting = (status.get("state") or {}).get("waiting") or {}
            reason = waiting.get("message") or waiting.get("reason") or "it is not pulled"
            return f"{container['image']}: {reason}"
    return ""


def _digests(pods: Iterable[Object]) -> Digests:
    by_image = defaultdict[str, set[str]](set)
    for pod in pods:
        images = {item["name"]: item["image"] for item in _containers(pod)}
        for status in _statuses(pod):
            if digest := status.get("imageID", "").rpartition("@")[2]:
                by_image[images[status["name"]]].add(digest)
    return {image: sorted(own) for image, own in sorted(by_image.items())}


def _containers(pod: Object) -> Iterator[Object]:
    for name in ("initContainers", "containers"):
        yield from pod["spec"].get(name) or ()


def _statuses(pod: Object) -> Iterator[Object]:
    for name in ("initContainerStatuses", "containerStatuses"):
        yield from (pod.get("status") or {}).get(name) or ()

"""GPUs of the cluster that no pod and no claim holds."""

import math
from collections import Counter, defaultdict

from perfdag.kube.client import Kube, Object
from perfdag.kube.errors import ignore_status
from perfdag.kube.node_fit import is_schedulable
from perfdag.quantities import parse_quantity
from perfdag.steps.scale.cluster.node_pods import pods_on_nodes
from perfdag.steps.scale.model.nodes import untolerated
from perfdag.steps.scale.scenarios.base import ScenarioUnavailableError

GPU = "nvidia.com/gpu"
FRACTION, RESERVATIONS = "gpu-fraction", "kai-resource-reservation"
"""KAI's annotation of pods that share a GPU, and the namespace of the pods that hold it."""
DRIVER = "gpu.nvidia.com"
"""NVIDIA's driver for dynamic resource allocation."""
CLAIM = "ResourceClaim"


async def usable_gpus(kube: Kube) -> tuple[dict[str, int], Counter[str]]:
    """Return allocatable GPUs by usable node, and the number of tainted GPU nodes by taint."""
    allocatable: dict[str, int] = {}
    barred: Counter[str] = Counter()
    for node in await kube.list(await kube.resource("v1", "Node")):
        count = int(parse_quantity((node["status"].get("allocatable") or {}).get(GPU, 0)))
        if count and is_schedulable(node):
            if taints := untolerated(node):
                barred[", ".join(taints)] += 1
            else:
                allocatable[node["metadata"]["name"]] = count
    return allocatable, barred


async def used_gpus(kube: Kube) -> Counter[str]:
    """Return the GPUs that pods of the whole cluster hold, by node.

    Pods that share GPUs (KAI's `gpu-fraction`) hold at least their sum, rounded up. KAI's own
    reservation pods hold those GPUs too, and count once.
    """
    used, reserved, shared = Counter[str](), Counter[str](), defaultdict[str, float](float)
    async for pod in pods_on_nodes(kube):
        node, metadata = pod["spec"]["nodeName"], pod["metadata"]
        count = sum(
            int(((container.get("resources") or {}).get("limits") or {}).get(GPU, 0))
            for container in pod["spec"]["containers"]
        )
        own = metadata.get("namespace") == RESERVATIONS
        (reserved if own else used)[node] += count
        shared[node] += float((metadata.get("annotations") or {}).get(FRACTION, 0))
    for node in {*reserved, *shared}:
        used[node] += max(reserved[node], math.ceil(shared[node]))
    return used + await _claimed(kube)


async def _claimed(kube: Kube) -> Counter[str]:
    """Return the GPUs that dynamic resource allocation gave to claims, by node (the pool's name).

    Administrative access holds no device. Source: resource.k8s.io, ResourceClaim,
    status.allocation.devices.results.
    """
    allocated = [(one.get("status") or {}).get("allocation") or {} for one in await _claims(kube)]
    results = [(one.get("devices") or {}).get("results") or [] for one in allocated]
    return Counter(
        item["pool"]
        for many in results
        for item in many
        if item["driver"] == DRIVER and not item.get("adminAccess")
    )


async def _claims(kube: Kube) -> list[Object]:
    for version in ("v1", "v1beta2", "v1beta1"):
        with ignore_status(404):
            return await kube.list(await kube.resource(f"resource.k8s.io/{version}", CLAIM))
    return []


async def free_gpus(kube: Kube) -> dict[str, int]:
    """Return unused GPUs by usable node. Raises ScenarioUnavailableError if there are none."""
    (gpus, barred), used = await usable_gpus(kube), await used_gpus(kube)
    free = {name: max(0, count - used[name]) for name, count in gpus.items()}
    if not sum(free.values()):
        tainted = "".join(
            f"; {count} nodes with GPUs have taints that our pods do not tolerate: {keys}"
            for keys, count in barred.items()
        )
        raise ScenarioUnavailableError(
            f"no free {GPU} on this cluster{tainted}; `perfdag scale nodes` creates simulated nodes"
        )
    return free

"""The number of VMIs that fit on the nodes, from the requests of the primer's pod."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal
from typing import Any

from perfdag.kube.client import Kube, KubeError, Object
from perfdag.quantities import parse_quantity
from perfdag.steps.scale.cluster.kubevirt import usable_nodes
from perfdag.steps.scale.cluster.node_pods import pods_on_nodes

Request = Mapping[str, Decimal]
"""Resource -> amount, as a pod requests it."""
KVM = "devices.kubevirt.io/kvm"
UNPRIMED: Request = {"pods": Decimal(1), KVM: Decimal(1)}
"""The request of a VMI without a primer: one pod with KVM is all that is known."""
GIB = 1 << 30


def request_of(pod: Mapping[str, Any]) -> Counter[str]:
    """Return what a pod requests of its node, as the scheduler counts it.

    Init containers run before the others, so the larger of both counts. Source: Kubernetes,
    "Pod Overhead" and "Init containers: resource sharing".
    """
    spec = pod["spec"]
    total, first = Counter[str](), Counter[str]()
    for container in spec.get("containers") or []:
        total.update(_amounts(container))
    for container in spec.get("initContainers") or []:
        own = Counter(_amounts(container))
        if container.get("restartPolicy") == "Always":
            total.update(own)
        else:
            first |= own
    total |= first
    total.update({name: parse_quantity(v) for name, v in (spec.get("overhead") or {}).items()})
    total["pods"] = Decimal(1)  # type: ignore[assignment]
    return total


def _amounts(container: Mapping[str, Any]) -> dict[str, Any]:
    resources = container.get("resources") or {}
    amounts = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: parse_quantity(amount) for name, amount in amounts.items()}


async def any_pod(kube: Kube, uids: Collection[str], namespace: str) -> Object | None:
    """Return one of these pods, or None if none is there. Raises KubeError."""
    if uids:
        for pod in await kube.list(await kube.resource("v1", "Pod"), namespace):
            if pod["metadata"]["uid"] in uids:
                return pod
    return None


def fitting(
    nodes: Sequence[Mapping[str, Any]], used: Mapping[str, Counter[str]], request: Request
) -> dict[str, int]:
    """Return how many such pods fit by each resource, and with all of them (empty name)."""
    fits = Counter[str]()
    for node in nodes:
        allocatable, reserved = (
            node["status"].get("allocatable") or {},
            used[node["metadata"]["name"]],
        )
        counts = {
            name: max(0, int((parse_quantity(allocatable.get(name, 0)) - reserved[name]) // amount))
            for name, amount in request.items()
            if amount
        }
        fits.update(counts | {"": min(counts.values())})
    return dict(fits)


async def room_line(kube: Kube, request: Request, count: int) -> tuple[str, bool]:
    """Return in one line what fits beside the existing pods, and whether it is less than `count`.

    An empty request is that of a VMI without a primer. Raises KubeError.
    """
    nodes, _ = await usable_nodes(kube)
    used: dict[str, Counter[str]] = {node["metadata"]["name"]: Counter() for node in nodes}
    try:
        async for pod in pods_on_nodes(kube):
            if pod["spec"]["nodeName"] in used:
                used[pod["spec"]["nodeName"]].update(request_of(pod))
    except KubeError as error:
        if error.status != 403:
            raise
        return f"whether {count} VMIs fit is unknown: {error}", False
    served = {name for node in nodes for name in node["status"].get("allocatable") or {}}
    wanted = request or {name: UNPRIMED[name] for name in UNPRIMED if name in served}
    fits = fitting(nodes, used, wanted)
    parts = [f"{name} {fits[name]:,} ({_text(name, wanted[name])} each)" for name in sorted(wanted)]
    doubt = "" if request else "; CPU and memory are unknown without a primer"
    room = fits.get("", 0)
    return (
        f"{room:,} VMIs fit on {len(nodes)} nodes, {count:,} are planned: "
        f"{', '.join(parts)}{doubt}",
        room < count,
    )


def _text(name: str, amount: Decimal) -> str:
    in_bytes = name in ("memory", "ephemeral-storage") or name.startswith("hugepages-")
    return f"{float(amount) / GIB:.2f} GiB" if in_bytes else f"{float(amount):g}"

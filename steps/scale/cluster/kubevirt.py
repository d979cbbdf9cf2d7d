"""The cluster under VMIs: node capacity, KubeVirt's version, nested virtualisation."""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from perfdag.kube.client import Kube, KubeError, Object
from perfdag.kube.errors import ignore_status
from perfdag.kube.node_fit import is_schedulable
from perfdag.steps.scale.model.nodes import is_simulated, is_virtual
from perfdag.steps.scale.model.records import Record
from perfdag.steps.scale.model.stages import VMI
from perfdag.units import plural


class TooDenseError(ValueError):
    """More VMIs were requested than `per_node` allows."""


async def usable_nodes(kube: Kube) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the nodes that can run VMIs, and the simulated ones of all. Raises KubeError."""
    every = await kube.list(await kube.resource("v1", "Node"))
    nodes = [node for node in every if is_schedulable(node)]
    labelled = [
        node
        for node in nodes
        if node["metadata"].get("labels", {}).get("kubevirt.io/schedulable") == "true"
    ]
    fake = [node for node in nodes if is_simulated(node)]
    return labelled or fake or [node for node in nodes if not _control_plane(node)], fake


async def check_nodes(kube: Kube, count: int, per_node: int) -> dict[str, Any]:
    """Return facts about the nodes that can run VMIs.

    `nested_virtualisation` lists nodes that are virtual machines, `nested_unknown` nodes without
    that information, `vmis_before` the existing VMIs by node. Raises TooDenseError if all VMIs
    together exceed `per_node`; KubeError.
    """
    usable, fake = await usable_nodes(kube)
    before = await _running(kube)
    existing = before.total()
    if count + existing > per_node * len(usable):
        beside = f" beside {existing} existing ones" if existing else ""
        raise TooDenseError(
            f"{count} VMIs{beside} on {len(usable)} nodes are more than {per_node} a node; use "
            f"{-(-(count + existing) // per_node)} nodes, or raise per_node"
        )
    virtual_by_name = {node["metadata"]["name"]: is_virtual(node) for node in usable}
    simulated = {node["metadata"]["name"] for node in fake}
    facts: dict[str, Any] = {"nodes": len(usable), "simulated_nodes": len(fake)}
    facts["nested_virtualisation"] = [name for name, virtual in virtual_by_name.items() if virtual]
    facts["nested_unknown"] = [
        name
        for name, virtual in virtual_by_name.items()
        if virtual is None and name not in simulated
    ]
    facts["vmis_before"] = dict(before)
    return facts | {"kubevirt_version": await kubevirt_version(kube)}


def check_density(vmis: Iterable[Record], facts: dict[str, Any], per_node: int) -> str:
    """Return a note if a node had more than `per_node` VMIs at once, those before included.

    `facts` are those of `check_nodes`, and get `vmis_per_node_max`.
    """
    here, most = Counter[str](facts["vmis_before"]), Counter[str]()
    moments = sorted(_moves(vmis))
    for _, change, node in moments:
        here[node] += change
        most[node] = max(most[node], here[node])
    (node, peak), *_ = most.most_common(1) or [("", 0)]
    facts["vmis_per_node_max"] = peak
    dense = sum(count > per_node for count in most.values())
    if not dense:
        return ""
    return (
        f"{dense} nodes had more than {per_node} VMIs, {node} had {peak}: the scheduler did not "
        "spread them evenly"
    )


def _moves(vmis: Iterable[Record]) -> Iterator[tuple[int, int, str]]:
    """Yield (monotonic ns, +1 or -1, node) for the scheduling and the end of each VMI."""
    for vmi in vmis:
        placed = vmi.times("scheduled") or vmi.times("running")
        if vmi.node and placed:
            yield placed[2], 1, vmi.node
            if gone := vmi.times("gone"):
                yield gone[2], -1, vmi.node


def nested_note(facts: dict[str, Any]) -> str | None:
    """Return a warning if latencies may not be those of bare metal."""
    if facts["nested_virtualisation"]:
        count = len(facts["nested_virtualisation"])
        return f"nested virtualisation on {plural(count, 'node')}: latencies are not of bare metal"
    if facts["nested_unknown"]:
        count = len(facts["nested_unknown"])
        return (
            f"nested virtualisation: unknown on {plural(count, 'node')}; install Node "
            "Feature Discovery to label them"
        )
    return None


async def kubevirt_version(kube: Kube) -> str | None:
    """Return the version in KubeVirt's status; None if absent, simulated or not readable."""
    with suppress(KubeError):
        for kubevirt in await kube.list(await kube.resource("kubevirt.io/v1", "KubeVirt")):
            version: str | None = (kubevirt.get("status") or {}).get("observedKubeVirtVersion")
            return version
    return None


async def _running(kube: Kube) -> Counter[str]:
    """Count the cluster's VMIs that have not ended, by node; none without the right to list."""
    vmis = list[Object]()
    with ignore_status(403, 404):
        vmis = await kube.list(await kube.resource("kubevirt.io/v1", VMI))
    states = [vmi.get("status") or {} for vmi in vmis]
    return Counter(
        str(state.get("nodeName", ""))
        for state in states
        if state.get("phase") not in ("Succeeded", "Failed")
    )


def _control_plane(node: dict[str, Any]) -> bool:
    return any(
        label.startswith("node-role.kubernetes.io/control-plane")
        for label in node["metadata"].get("labels", {})
    )

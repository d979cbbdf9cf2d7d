"""Check whether only measuring pods reach the servers of measuring pods."""

from perfdag.app.doctor.argo import list_readable
from perfdag.app.doctor.finding import Finding
from perfdag.kube.client import Kube, KubeError

POLICY = "perfdag-measuring"
ENFORCERS = ("antrea", "calico", "canal", "cilium", "kube-router", "ovn", "weave")
"""Words in the names of DaemonSets of network plugins that enforce every NetworkPolicy."""


async def check_network_policy(client: Kube, namespace: str, install: str) -> Finding:
    """Return whether the policy exists, and whether a known network plugin enforces it.

    No API tells whether a plugin enforces policies. Raises KubeError.
    """
    try:
        await client.get(
            await client.resource("networking.k8s.io/v1", "NetworkPolicy"), POLICY, namespace
        )
    except KubeError as error:
        if error.status == 403:
            text = f"you may not read whether there is a NetworkPolicy {POLICY} in {namespace}"
            return Finding("warn", text)
        if error.status != 404:
            raise
        return Finding(
            "warn",
            f"there is no NetworkPolicy {POLICY} in {namespace}: any pod of the cluster may reach "
            "the servers of measuring pods, and fio's server runs the jobs of whoever connects",
            f"{install} without --no-network-policy",
        )
    daemons = await list_readable(client, "apps/v1", "DaemonSet") or []
    names = sorted(daemon["metadata"]["name"] for daemon in daemons)
    enforcer = next((name for name in names if any(word in name for word in ENFORCERS)), None)
    if enforcer:
        return Finding("ok", f"NetworkPolicy {POLICY}, which {enforcer} enforces")
    return Finding(
        "warn",
        f"whether NetworkPolicy {POLICY} is enforced is not known: no DaemonSet is of a network "
        f"plugin that always enforces policies ({', '.join(ENFORCERS)})",
        "ask an admin of the cluster; until then, any of its pods may reach the servers of "
        "measuring pods",
    )

"""The version of Run:ai on a cluster."""

from contextlib import suppress

from perfdag.kube.client import Kube, KubeError


async def runai_version(kube: Kube) -> str | None:
    """Return the version in Run:ai's ConfigMap; None if absent, simulated or not readable.

    Source: Run:ai documentation, "Install a cluster", verify your installation.
    """
    with suppress(KubeError):
        config_map = await kube.get(await kube.resource("v1", "ConfigMap"), "runai-public", "runai")
        version: str | None = (config_map.get("data") or {}).get("cluster-version")
        return version
    return None

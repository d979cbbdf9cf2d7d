"""Simulated clusters on KWOK: nodes with GPUs, and Stages that play KubeVirt or Run:ai where neither is installed.

Nothing here is known to the generator or the observer: against the real systems only these Stages and CRDs fall away. Needs KWOK
with its Stage CRD (https://kwok.sigs.k8s.io/docs/user/stages-configuration/). What it makes carries the label `perfdag/simulated`.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfdag.digest import canonical, digest
from perfdag.kube.client import Kube, KubeError
from perfdag.steps.scale.model import nodes as of_nodes

FOLDER = Path(__file__).parent / "simulated"
DIGEST = "perfdag/digest"  # of a Stage as it was asked for
LABEL = "perfdag/simulated"
_CRD = "CustomResourceDefinition"
PREFIX = "perfdag-sim-"
_GPU = "nvidia.com/gpu"
_GPU_LABELS = {"run.ai/simulated-gpu-node-pool": "default", "nvidia.com/gpu.present": "true"}


async def make_nodes(
    kube: Kube,
    count: int,
    gpus: int,
    *,
    cpus: int = 96,
    memory: str = "1Ti",
    pods: int = 250,
    prefix: str = PREFIX,
) -> tuple[int, int]:
    """Make KWOK nodes `<prefix>0` ... have `gpus` GPUs each (labelled for fake-gpu-operator too); returns how many were new, and how many
    were there with other resources, which now have these.

    They are tainted, so nothing else lands on them. Raises KubeError, also for a node of such a name that is not ours.
    """
    resources = {"cpu": str(cpus), "memory": memory, "pods": str(pods), "ephemeral-storage": "1Ti"}
    if gpus:
        resources[_GPU] = str(gpus)
    made = changed = 0

    async def make(index: int) -> None:
        nonlocal made, changed
        name = f"{prefix}{index}"
        labels = {
            LABEL: "true",
            "type": "kwok",
            "kubernetes.io/hostname": name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
        }
        if gpus:
            labels |= _GPU_LABELS
        body = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": name,
                "labels": labels,
                "annotations": {
                    of_nodes.NODE_ANNOTATION: "fake",
                    "node.alpha.kubernetes.io/ttl": "0",
                },
            },
            "spec": {
                "taints": [
                    {"key": of_nodes.NODE_ANNOTATION, "value": "fake", "effect": "NoSchedule"}
                ]
            },
            "status": {"capacity": resources, "allocatable": resources, "nodeInfo": _NODE_INFO},
        }
        try:
            await kube.create(body)
            made += 1
        except KubeError as error:
            if error.reason != "AlreadyExists":
                raise
            renewed = await _renew(kube, name, resources)
            changed += renewed

    for start in range(0, count, 100):
        await asyncio.gather(*(make(index) for index in range(start, min(count, start + 100))))
    return made, changed


async def _renew(kube: Kube, name: str, resources: Mapping[str, str]) -> bool:
    """Give a simulated node that is there these resources; false where it has them. Raises KubeError where it is not ours."""
    nodes = await kube.resource("v1", "Node")
    there = await kube.get(nodes, name)
    if LABEL not in (there["metadata"].get("labels") or {}):
        raise KubeError(
            409, "Foreign", f"the node {name} was not made by perfdag", "rename or delete it"
        )
    status = there.get("status") or {}
    if status.get("allocatable") == resources == status.get("capacity"):
        return False
    wanted = {_GPU: None, **resources}  # None deletes what was there
    await kube.patch(
        nodes, name, {"status": {"capacity": wanted, "allocatable": wanted}}, subresource="status"
    )
    await kube.patch(
        nodes,
        name,
        {
            "metadata": {
                "labels": {
                    key: _GPU_LABELS[key] if _GPU in resources else None for key in _GPU_LABELS
                }
            }
        },
    )
    return True


_NODE_INFO = {
    "architecture": "amd64",
    "operatingSystem": "linux",
    "kubeletVersion": "simulated",
    "kubeProxyVersion": "simulated",
    "bootID": "",
    "containerRuntimeVersion": "",
    "kernelVersion": "",
    "machineID": "",
    "osImage": "",
    "systemUUID": "",
}


async def remove_nodes(kube: Kube) -> int:
    """Delete all nodes that make_nodes made; returns how many."""
    nodes = await kube.resource("v1", "Node")
    found = await kube.list(nodes, labels=f"{LABEL}=true")
    for start in range(0, len(found), 100):
        await asyncio.gather(
            *(kube.delete(nodes, each["metadata"]["name"]) for each in found[start : start + 100])
        )
    return len(found)


async def nodes_ready(
    kube: Kube, count: int, timeout: float = 60.0, *, prefix: str = PREFIX
) -> bool:
    """Wait until the simulated nodes `<prefix>0` ... are Ready, `count` of them; false after `timeout` seconds (KWOK does not run)."""
    nodes = await kube.resource("v1", "Node")
    wanted = {f"{prefix}{index}" for index in range(count)}
    for _ in range(max(1, int(timeout / 0.5))):
        found = await kube.list(nodes, labels=f"{LABEL}=true")
        if wanted <= {each["metadata"]["name"] for each in found if of_nodes.ready(each)}:
            return True
        await asyncio.sleep(0.5)
    return False


def parse_delay(text: str) -> tuple[str, int, int]:
    """`STAGE=MS` or `STAGE=MS-MS` (uniform between them) -> stage, from, to in ms. Raises ValueError with the form wanted."""
    stage, _, span = text.partition("=")
    low, _, high = span.partition("-")
    try:
        bounds = int(low), int(high or low)
    except ValueError:
        raise ValueError(
            f"not a delay: {text!r}; write STAGE=MS or STAGE=MS-MS, for example vmi-running=800-3300"
        ) from None
    if not stage or bounds[0] < 0 or bounds[1] < bounds[0]:
        raise ValueError(f"not a delay: {text!r}; the second figure is the larger one, in ms")
    return stage, *bounds


def objects(
    system: str, delays: Mapping[str, tuple[int, int]] | None = None, failures: int = 0
) -> list[dict[str, Any]]:
    """Return the objects that play `system`: CRDs, Stages, and a StorageClass for 'storage'.

    `delays` are in ms (from, to) by Stage, `failures` in percent. Raises ValueError for an unknown Stage, and for failures of what does not fail.
    """
    import yaml

    found: list[dict[str, Any]] = list(yaml.safe_load_all((FOLDER / f"{system}.yaml").read_text()))
    known = {body["metadata"]["name"]: body for body in found if body["kind"] == "Stage"}
    for name, (low, high) in (delays or {}).items():
        if name not in known:
            raise ValueError(f"no stage {name!r} in {system}; there are {', '.join(known)}")
        known[name]["spec"] = {
            **known[name]["spec"],
            "delay": {"durationMilliseconds": low}
            | ({"jitterDurationMilliseconds": high} if high > low else {}),
        }
    if failures and "vmi-failed" not in known:
        raise ValueError(f"nothing of {system} fails by itself; failures are of VMIs, of kubevirt")
    if "vmi-failed" in known:
        known["vmi-running"]["spec"]["weight"] = 100 - failures
        known["vmi-failed"]["spec"]["weight"] = failures
        if not failures:
            found.remove(known["vmi-failed"])
        elif "delay" in known["vmi-running"]["spec"]:
            known["vmi-failed"]["spec"]["delay"] = known["vmi-running"]["spec"]["delay"]
    for each in found:
        each["metadata"]["labels"] = {LABEL: system}
    return found


async def install(
    kube: Kube, system: str, delays: Mapping[str, tuple[int, int]] | None = None, failures: int = 0
) -> list[str]:
    """Put CRDs and Stages of `system` on the cluster; returns the Stages' names. Stages that are there as wanted stay as they are:
    KWOK misses what is deleted while they are made anew, and another run may be waiting for it.

    Raises KubeError where the real system is there (its CRDs are not ours) or KWOK's Stage CRD is not.
    """
    wanted = objects(system, delays, failures)
    crds = [body for body in wanted if body["kind"] == _CRD]
    definitions = await kube.resource("apiextensions.k8s.io/v1", _CRD)
    kwok = await _stage_kind(kube)
    known = True
    for body in crds:
        name = body["metadata"]["name"]
        try:
            there = await kube.get(definitions, name)
        except KubeError as error:
            if error.status != 404:
                raise
            known = False
        else:
            if LABEL not in (there["metadata"].get("labels") or {}):
                raise KubeError(
                    409,
                    "Real",
                    f"{name} is installed for real here",
                    "simulate on a cluster without it",
                )
        await kube.apply(body)
    for body in crds:
        await _established(kube, definitions, body["metadata"]["name"])
    await _described(
        kube, {f"{body['spec']['group']}/{body['spec']['versions'][0]['name']}" for body in crds}
    )
    played = {body["metadata"]["name"]: body for body in wanted if body["kind"] == "Stage"}
    digests = {name: digest(canonical(body)) for name, body in played.items()}
    for body in wanted:
        if body["kind"] not in ("Stage", _CRD):
            await kube.apply(body)
    found = [each["metadata"] for each in await kube.list(kwok, labels=f"{LABEL}={system}")]
    if known and digests == {
        each["name"]: (each.get("annotations") or {}).get(DIGEST) for each in found
    }:
        return list(played)
    # a Stage of a kind that KWOK did not know when it saw the Stage is dead until it is made anew
    for each in found:
        await kube.delete(kwok, each["name"])
    for name, body in played.items():
        body["metadata"]["annotations"] = {DIGEST: digests[name]}
        await kube.apply(body)
    return list(played)


async def remove(kube: Kube, system: str) -> None:
    """Take Stages and CRDs of `system` away again, objects of those kinds included. Leaves real ones alone."""
    kwok = await _stage_kind(kube)
    definitions = await kube.resource("apiextensions.k8s.io/v1", _CRD)
    classes = await kube.resource("storage.k8s.io/v1", "StorageClass")
    volumes = await kube.resource("v1", "PersistentVolume")
    for resource in (kwok, definitions, classes, volumes):
        for each in await kube.list(resource, labels=f"{LABEL}={system}"):
            await kube.delete(resource, each["metadata"]["name"])


async def _stage_kind(kube: Kube) -> Any:
    try:
        return await kube.resource("kwok.x-k8s.io/v1alpha1", "Stage")
    except KubeError as error:
        if error.status != 404:
            raise
        raise KubeError(
            404,
            "NoKwok",
            "KWOK's Stage CRD is not on this cluster",
            "install KWOK with --enable-crds=Stage",
        ) from None


async def _established(kube: Kube, definitions: Any, name: str) -> None:
    for _ in range(100):
        body = await kube.get(definitions, name)
        if any(
            c["type"] == "Established" and c["status"] == "True"
            for c in (body.get("status") or {}).get("conditions") or []
        ):
            return
        await asyncio.sleep(0.1)
    raise KubeError(0, "Timeout", f"the CRD {name} was not established in 10 s")


async def _described(kube: Kube, group_versions: set[str]) -> None:
    """Wait until the API server's OpenAPI v3 tells of the kinds: KWOK reads it once when a Stage appears."""
    for _ in range(200):
        paths = (await kube.request("GET", "/openapi/v3"))["paths"]
        if all(f"apis/{each}" in paths for each in group_versions):
            return
        await asyncio.sleep(0.1)
    raise KubeError(
        0,
        "Timeout",
        f"the API server's OpenAPI does not tell of {', '.join(sorted(group_versions))} after 20 s",
    )


async def simulated_nodes(kube: Kube) -> tuple[set[str] | None, str]:
    """Names of the nodes that KWOK plays, known by their annotation; None and why where that is not known: an API server that is away just
    now costs this word, and not the figures.
    """
    try:
        found = await kube.list(await kube.resource("v1", "Node"))
    except KubeError as error:
        return (
            None,
            f"whether nodes are simulated is not known: {'we may not list nodes' if error.status == 403 else error}",
        )
    return {each["metadata"]["name"] for each in found if of_nodes.simulated(each)}, ""

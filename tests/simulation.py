"""Install the simulations of deploy/kwok: CRDs, and KWOK Stages that move their objects.

The generator and the observer do not know of them: a real system replaces only these objects. They
need KWOK with its Stage CRD (https://kwok.sigs.k8s.io/docs/user/stages-configuration/) and carry
the label `perfdag/simulated`.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from perfdag.identity import canonical, digest
from perfdag.kube.client import Kube, KubeError, Object
from perfdag.steps.scale.cluster import SIMULATED_LABEL as LABEL

FOLDER = Path(__file__).parent.parent / "deploy" / "kwok"
DIGEST = "perfdag/digest"
"""Annotation of a Stage: the digest of its manifest."""
_CRD = "CustomResourceDefinition"
_DEFINITIONS = f"apiextensions.k8s.io/v1/{_CRD}"
_STAGES = "kwok.x-k8s.io/v1alpha1/Stage"


def objects(system: str, delays: Mapping[str, tuple[int, int]] | None = None) -> list[Object]:
    """Return the objects that simulate `system`: CRDs, Stages, and a StorageClass for 'storage'.

    `delays` are in ms (from, to) by Stage. Raises KeyError for an unknown Stage.
    """
    import yaml

    files = sorted(FOLDER.glob(f"{system}*.yaml"))  # the CRDs first
    bodies: list[Object] = [body for file in files for body in yaml.safe_load_all(file.read_text())]
    known = {body["metadata"]["name"]: body for body in bodies if body["kind"] == "Stage"}
    for name, (low, high) in (delays or {}).items():
        known[name]["spec"] = {
            **known[name]["spec"],
            "delay": {"durationMilliseconds": low}
            | ({"jitterDurationMilliseconds": high} if high > low else {}),
        }
    return bodies


async def install(
    kube: Kube, system: str, delays: Mapping[str, tuple[int, int]] | None = None
) -> None:
    """Install the CRDs and Stages of `system`.

    Equal Stages stay as they are: KWOK misses deletions while Stages are replaced, and another run
    may wait for one. Raises KubeError.
    """
    wanted = objects(system, delays)
    crds = [body for body in wanted if body["kind"] == _CRD]
    await _require_stages(kube)
    known = True
    for body in crds:
        name = body["metadata"]["name"]
        try:
            await kube.get(_DEFINITIONS, name)
        except KubeError as error:
            if error.status != 404:
                raise
            known = False
        await kube.apply(body)
    for body in crds:
        await _established(kube, body["metadata"]["name"])
    await _wait_for_openapi(
        kube, {f"{body['spec']['group']}/{body['spec']['versions'][0]['name']}" for body in crds}
    )
    stages = {body["metadata"]["name"]: body for body in wanted if body["kind"] == "Stage"}
    digests = {name: digest(canonical(body)) for name, body in stages.items()}
    for body in wanted:
        if body["kind"] not in ("Stage", _CRD):
            await kube.apply(body)
    installed = {
        body["metadata"]["name"]: (body["metadata"].get("annotations") or {}).get(DIGEST)
        for body in await kube.list(_STAGES, labels=f"{LABEL}={system}")
    }
    if known and digests == installed:
        return
    # KWOK ignores a Stage whose kind it did not know when it read the Stage: create it again.
    for name in installed:
        await kube.delete(_STAGES, name)
    for name, body in stages.items():
        body["metadata"]["annotations"] = {DIGEST: digests[name]}
        await kube.apply(body)


async def _require_stages(kube: Kube) -> None:
    try:
        await kube.path(_STAGES)
    except KubeError as error:
        if error.status != 404:
            raise
        raise KubeError(
            404,
            "NoKwok",
            "KWOK's Stage CRD is not on this cluster",
            "install KWOK with --enable-crds=Stage",
        ) from None


async def _established(kube: Kube, name: str) -> None:
    for _ in range(100):
        body = await kube.get(_DEFINITIONS, name)
        if any(
            c["type"] == "Established" and c["status"] == "True"
            for c in (body.get("status") or {}).get("conditions") or []
        ):
            return
        await asyncio.sleep(0.1)
    raise KubeError(0, "Timeout", f"the CRD {name} was not established in 10 s")


async def _wait_for_openapi(kube: Kube, group_versions: set[str]) -> None:
    """Wait until OpenAPI v3 describes the kinds: KWOK reads it once when a Stage appears."""
    for _ in range(200):
        paths = (await kube.request("GET", "/openapi/v3"))["paths"]
        if all(f"apis/{version}" in paths for version in group_versions):
            return
        await asyncio.sleep(0.1)
    raise KubeError(
        0,
        "Timeout",
        f"OpenAPI does not describe {', '.join(sorted(group_versions))} after 20 s",
    )


def simulate(system: str) -> None:
    """Install the simulation of a system on the cluster that KUBECONFIG names."""

    async def work() -> None:
        async with Kube() as kube:
            await install(kube, system)

    asyncio.run(work())

"""Argo Workflows as `perfdag doctor --cluster` sees it: its kinds, whether a controller answers, and its version."""

import re
from typing import TYPE_CHECKING

from perfdag.cli.doctor import Finding
from perfdag.kube.objects import Object

if TYPE_CHECKING:
    from perfdag.kube.client import Kube

ARGO = "argoproj.io/v1alpha1"
NEEDED = "4.1 or newer"


async def optional(
    client: "Kube", api: str, kind: str, namespace: str | None = None
) -> list[Object] | None:
    """Objects of a kind, None where the cluster lacks it or we may not read it. Raises KubeError."""
    from perfdag.kube.client import KubeError

    try:
        return await client.list(await client.resource(api, kind), namespace)
    except KubeError as error:
        if error.status in (403, 404):
            return None
        raise


async def findings(client: "Kube") -> list[Finding]:
    """Whether Argo Workflows is there, works and is new enough. Raises KubeError."""
    from perfdag.kube.client import KubeError

    found = []
    for kind in ("Workflow", "WorkflowTemplate", "CronWorkflow", "WorkflowTaskResult"):
        try:
            await client.resource(ARGO, kind)
        except KubeError:
            found.append(
                Finding(
                    "missing",
                    f"Argo Workflows: no kind {kind}",
                    f"install Argo Workflows {NEEDED} (its CRDs and controller)",
                )
            )
    if found:
        return found
    runs = await optional(client, ARGO, "Workflow") or []
    seen = [each for each in runs if (each.get("status") or {}).get("phase")]
    said = (
        "and its controller answered before"
        if seen
        else "no workflow has run yet, so that the controller works is not shown"
    )
    return [
        Finding("ok" if seen else "warn", f"Argo Workflows: CRDs are there, {said}"),
        *await _version(client),
    ]


async def _version(client: "Kube") -> list[Finding]:
    """The version by the controller's image, where it is a Deployment that we may read; else by what its CRDs know."""
    deployed = await optional(client, "apps/v1", "Deployment") or []
    images = [
        container["image"]
        for each in deployed
        for container in each["spec"]["template"]["spec"]["containers"]
        if "workflow-controller" in container["image"]
    ]
    tags = [(image, version_of(image)) for image in images]
    if any(tag for _, tag in tags):
        return [
            Finding("ok", f"Argo's controller is {image}")
            if tag >= (4, 1)
            else Finding(
                "missing",
                f"Argo's controller is {image}: pods that never start would be waited for",
                f"use {NEEDED}: pendingTimeout",
            )
            for image, tag in tags
            if tag
        ]
    if (
        knows := _knows_pending_timeout(
            await optional(client, "apiextensions.k8s.io/v1", "CustomResourceDefinition") or []
        )
    ) is None:
        return [
            Finding(
                "warn",
                "Argo's version is not known: its controller and CRDs do not tell",
                f"make sure that it is {NEEDED}",
            )
        ]
    if knows:
        return [Finding("ok", "Argo's CRDs are of 4.1 or newer (they know pendingTimeout)")]
    return [
        Finding(
            "missing",
            "Argo's CRDs do not know pendingTimeout: they are older than 4.1",
            f"use Argo Workflows {NEEDED}",
        )
    ]


def version_of(image: str) -> tuple[int, ...]:
    """Major and minor version of an image's tag; empty where it has none."""
    found = re.search(r":v?(\d+)\.(\d+)", image)
    return (int(found[1]), int(found[2])) if found else ()


def _knows_pending_timeout(definitions: list[Object]) -> bool | None:
    """Whether the schema of a WorkflowTemplate has it; None where there is none (minimal CRDs)."""
    found = next(
        (
            each
            for each in definitions
            if each["metadata"]["name"] == "workflowtemplates.argoproj.io"
        ),
        None,
    )
    for version in found["spec"]["versions"] if found else []:
        spec = (
            version.get("schema", {})
            .get("openAPIV3Schema", {})
            .get("properties", {})
            .get("spec", {})
            .get("properties", {})
        )
        fields = spec.get("templates", {}).get("items", {}).get("properties")
        if fields:
            return "pendingTimeout" in fields
    return None

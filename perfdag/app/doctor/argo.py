"""Check Argo Workflows: its kinds, its controller and its version."""

import re

from perfdag.app.cluster.template import ARGO
from perfdag.app.doctor.finding import Finding
from perfdag.kube.client import Kube, KubeError, Object

MIN_VERSION = (4, 1)
MIN_VERSION_TEXT = "4.1 or newer"
ARGO_KINDS = ("Workflow", "WorkflowTemplate", "CronWorkflow", "WorkflowTaskResult")


async def list_readable(
    client: Kube, api: str, kind: str, namespace: str | None = None
) -> list[Object] | None:
    """Return the objects of a kind; None if the cluster lacks the kind or hides it.

    Raises KubeError.
    """
    try:
        return await client.list(await client.resource(api, kind), namespace)
    except KubeError as error:
        if error.status in (403, 404):
            return None
        raise


async def check_argo(client: Kube) -> list[Finding]:
    """Return whether Argo Workflows is installed, works and is new enough. Raises KubeError."""
    findings = []
    for kind in ARGO_KINDS:
        try:
            await client.resource(ARGO, kind)
        except KubeError:
            findings.append(
                Finding(
                    "missing",
                    f"Argo Workflows: no kind {kind}",
                    f"install Argo Workflows {MIN_VERSION_TEXT} (its CRDs and controller)",
                )
            )
    if findings:
        return findings
    workflows = await list_readable(client, ARGO, "Workflow") or []
    if any((workflow.get("status") or {}).get("phase") for workflow in workflows):
        controller = Finding("ok", "Argo Workflows: the CRDs exist and the controller has answered")
    else:
        controller = Finding(
            "warn",
            "Argo Workflows: the CRDs exist; "
            "no Workflow has run yet, so it is unknown whether the controller works",
        )
    return [controller, *await _check_version(client)]


async def _check_version(client: Kube) -> list[Finding]:
    """Check the version by the image of the controller; if that is not readable, by the CRDs."""
    deployments = await list_readable(client, "apps/v1", "Deployment") or []
    images = [
        container["image"]
        for deployment in deployments
        for container in deployment["spec"]["template"]["spec"]["containers"]
        if "workflow-controller" in container["image"]
    ]
    versions = {image: version for image in images if (version := image_version(image))}
    if versions:
        return [_image_finding(image, version) for image, version in versions.items()]
    kind = "CustomResourceDefinition"
    definitions = await list_readable(client, "apiextensions.k8s.io/v1", kind) or []
    knows = _knows_pending_timeout(definitions)
    if knows is None:
        return [
            Finding(
                "warn",
                "Argo's version is unknown: neither its controller nor its CRDs show it",
                f"make sure that it is {MIN_VERSION_TEXT}",
            )
        ]
    if knows:
        return [Finding("ok", f"Argo's CRDs are of {MIN_VERSION_TEXT} (they know pendingTimeout)")]
    return [
        Finding(
            "missing",
            "Argo's CRDs do not know pendingTimeout: they are older than 4.1",
            f"use Argo Workflows {MIN_VERSION_TEXT}",
        )
    ]


def _image_finding(image: str, version: tuple[int, int]) -> Finding:
    if version >= MIN_VERSION:
        return Finding("ok", f"Argo's controller is {image}")
    return Finding(
        "missing",
        f"Argo's controller is {image}: runs would wait forever for pods that never start",
        f"use {MIN_VERSION_TEXT}, which has pendingTimeout",
    )


def image_version(image: str) -> tuple[int, int] | None:
    """Return the major and minor version in an image's tag, or None."""
    match = re.search(r":v?(\d+)\.(\d+)", image)
    return (int(match[1]), int(match[2])) if match else None


def _knows_pending_timeout(definitions: list[Object]) -> bool | None:
    """Return whether the WorkflowTemplate's schema has the field; None for minimal CRDs."""
    for definition in definitions:
        if definition["metadata"]["name"] != "workflowtemplates.argoproj.io":
            continue
        for version in definition["spec"]["versions"]:
            schema = version.get("schema", {}).get("openAPIV3Schema", {})
            for key in ("spec", "templates"):
                schema = schema.get("properties", {}).get(key, {})
            if fields := schema.get("items", {}).get("properties"):
                return "pendingTimeout" in fields
    return None

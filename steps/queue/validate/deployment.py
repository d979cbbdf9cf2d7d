"""A Deployment of a queue's backends: its replicas, its pods, and its other scalers."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from perfdag.hosts.device_use import DeviceUse
from perfdag.kube.client import Kube, KubeError
from perfdag.kube.errors import ignore_status
from perfdag.outcome import Skip
from perfdag.steps.queue.validate.validate import BadInput
from perfdag.units import plural

PART_OF = "app.kubernetes.io/part-of"
FINAL_PHASES = ("Succeeded", "Failed")


def not_permitted(refusal: str, benchmark: str) -> Skip:
    """Return the outcome for a pod whose account lacks a right, with the command that grants it."""
    return Skip(
        f"{refusal}; `perfdag install --store ... --allow {benchmark}=NAMESPACE`, with its other "
        "options again, grants it to its pods"
        " (with --namespaced in the installation's own namespace alone: docs/queue.md)"
    )


class DeploymentTarget:
    """A Deployment that is scaled through its scale subresource and watched through its pods."""

    def __init__(self, kube: Kube, namespace: str, name: str) -> None:
        self.kube, self.namespace, self.name = kube, namespace, name
        self.selector = ""
        self.wanted = 0

    async def find(self) -> None:
        """Read the Deployment. Raises BadInput if there is none."""
        self.deployments = await self.kube.resource("apps/v1", "Deployment")
        self.sets = await self.kube.resource("apps/v1", "ReplicaSet")
        self.pods = await self.kube.resource("v1", "Pod")
        try:
            deployment = await self.kube.get(self.deployments, self.name, self.namespace)
        except KubeError as error:
            if error.status != 404:
                raise
            names = [
                item["metadata"]["name"]
                for item in await self.kube.list(self.deployments, self.namespace)
            ]
            raise BadInput(
                f"no Deployment {self.name!r} in namespace {self.namespace!r}; there are: "
                f"{', '.join(sorted(names)) or 'none'}"
            ) from None
        self.uid = deployment["metadata"]["uid"]
        self.selector = _selector(deployment["spec"]["selector"])
        self.wanted = deployment["spec"].get("replicas", 1)

    async def scaler(self) -> str | None:
        """Return what else scales the Deployment, None for nothing.

        That is a HorizontalPodAutoscaler, with its owner, or a CronJob of the same name, which
        starts more backends. Raises KubeError, 403 without permission.
        """
        for autoscaler in await self._all("autoscaling/v2", "HorizontalPodAutoscaler"):
            if scales(autoscaler, self.name):
                owners = autoscaler["metadata"].get("ownerReferences") or []
                owner = f" (owned by {owners[0]['kind']} {owners[0]['name']})" if owners else ""
                return f"HorizontalPodAutoscaler {autoscaler['metadata']['name']}{owner}"
        for starter in await self._all("batch/v1", "CronJob"):
            if starts(starter, self.name):
                return f"CronJob {self.name}"
        return None

    async def _all(self, version: str, kind: str) -> list[dict[str, Any]]:
        """Return the objects of a kind, none if the cluster does not serve it."""
        with ignore_status(404):
            return await self.kube.list(await self.kube.resource(version, kind), self.namespace)
        return []

    async def replicas(self) -> int:
        return self.wanted

    async def scale(self, replicas: int) -> None:
        self.wanted = replicas
        await self.kube.scale(self.deployments, self.name, replicas, self.namespace)

    async def _list(self) -> list[dict[str, Any]]:
        """Return the pods of its ReplicaSets that have not ended.

        Labels alone do not do: pods of others may carry the same ones.
        """
        sets = await self.kube.list(self.sets, self.namespace, labels=self.selector)
        uids = {item["metadata"]["uid"] for item in sets if _owned(item, {self.uid})}
        return [
            pod
            for pod in await self.kube.list(self.pods, self.namespace, labels=self.selector)
            if _owned(pod, uids) and pod.get("status", {}).get("phase") not in FINAL_PHASES
        ]

    async def ready(self) -> int:
        return sum(
            _ready(pod) for pod in await self._list() if "deletionTimestamp" not in pod["metadata"]
        )

    async def lost(self) -> str:
        return ""  # its ReplicaSet replaces pods, and the kubelet restarts containers

    async def gone(self) -> bool:
        return len(await self._list()) <= self.wanted

    async def why(self) -> str:
        reasons: dict[str, int] = {}
        for pod in await self._list():
            for reason in _reasons(pod):
                reasons[reason] = reasons.get(reason, 0) + 1
        return "; ".join(
            f"{reason} ({plural(count, 'pod')})" for reason, count in sorted(reasons.items())
        )

    def watch_devices(self) -> AbstractContextManager[dict[str, DeviceUse]]:
        return nullcontext({})  # the devices are those of its nodes


def mapping_at(body: dict[str, Any], *path: str) -> dict[str, Any]:
    """Return the mapping at a path of an object, an empty one if there is no mapping."""
    value: Any = body
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def job_of(starter: dict[str, Any]) -> dict[str, Any]:
    """Return the specification of the Jobs of a CronJob, empty for other kinds."""
    return mapping_at(starter, "spec", "jobTemplate", "spec")


def starts(body: dict[str, Any], deployment: str) -> bool:
    """Tell whether a CronJob starts more backends of a Deployment's queue."""
    part_of = mapping_at(body, "metadata", "labels").get(PART_OF)
    return (
        bool(job_of(body)) and body["metadata"]["name"] == deployment and part_of == "perfdag-queue"
    )


def scales(body: dict[str, Any], deployment: str) -> bool:
    """Tell whether an object is a HorizontalPodAutoscaler of a Deployment."""
    reference = mapping_at(body, "spec", "scaleTargetRef")
    return (
        reference.get("kind", "Deployment") == "Deployment" and reference.get("name") == deployment
    )


def _selector(selector: dict[str, Any]) -> str:
    """Return a label selector in the syntax of the API's query."""
    parts = [f"{key}={value}" for key, value in (selector.get("matchLabels") or {}).items()]
    for expression in selector.get("matchExpressions") or []:
        key, values = expression["key"], f"({','.join(expression.get('values') or [])})"
        parts.append(
            {
                "In": f"{key} in {values}",
                "NotIn": f"{key} notin {values}",
                "Exists": key,
                "DoesNotExist": f"!{key}",
            }[expression["operator"]]
        )
    return ",".join(parts)


def _owned(body: dict[str, Any], owners: set[str]) -> bool:
    return any(
        owner["uid"] in owners and owner.get("controller")
        for owner in body["metadata"].get("ownerReferences") or []
    )


def _ready(pod: dict[str, Any]) -> bool:
    return any(
        c["type"] == "Ready" and c["status"] == "True"
        for c in pod.get("status", {}).get("conditions", [])
    )


def _reasons(pod: dict[str, Any]) -> list[str]:
    status = pod.get("status", {})
    reasons = [
        c.get("message", c.get("reason", ""))
        for c in status.get("conditions", [])
        if c["type"] == "PodScheduled" and c["status"] != "True"
    ]
    for container in status.get("containerStatuses", []):
        waiting = container.get("state", {}).get("waiting")
        if waiting:
            reasons.append(
                f"{waiting.get('reason', 'waiting')}: {waiting.get('message', '')}".rstrip(": ")[
                    :200
                ]
            )
    return reasons

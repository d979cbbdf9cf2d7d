"""A Deployment as the backends of a queue: scaled through the API server, watched through its pods, and what else scales it."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from perfdag.steps.queue.validate import BadInput

if TYPE_CHECKING:
    from perfdag.kube import Kube

PART_OF = "app.kubernetes.io/part-of"
ENDED = ("Succeeded", "Failed")


class DeploymentTarget:
    """A Deployment scaled through its scale subresource and watched through its pods. Pods that a CronJob of its name starts count with
    them, once `scaler` has found that."""

    def __init__(self, kube: Kube, namespace: str, name: str) -> None:
        self.kube, self.namespace, self.name = kube, namespace, name
        self.selector = ""
        self.wanted = 0
        self.cron: dict[str, Any] | None = None

    async def find(self) -> None:
        """Look the Deployment up. Raises BadInput where there is none."""
        from perfdag.kube import KubeError

        self.deployments = await self.kube.resource("apps/v1", "Deployment")
        self.sets = await self.kube.resource("apps/v1", "ReplicaSet")
        self.pods = await self.kube.resource("v1", "Pod")
        self.jobs = await self.kube.resource("batch/v1", "Job")
        try:
            found = await self.kube.get(self.deployments, self.name, self.namespace)
        except KubeError as error:
            if error.status != 404:
                raise
            names = [
                one["metadata"]["name"]
                for one in await self.kube.list(self.deployments, self.namespace)
            ]
            raise BadInput(
                f"no Deployment {self.name!r} in namespace {self.namespace!r}; there are: {', '.join(sorted(names)) or 'none'}"
            ) from None
        self.uid = found["metadata"]["uid"]
        self.selector = _selector(found["spec"]["selector"])
        self.wanted = found["spec"].get("replicas", 1)
        self.containers: list[dict[str, Any]] = found["spec"]["template"]["spec"]["containers"]

    async def scaler(self) -> str | None:
        """What else scales it: a HorizontalPodAutoscaler, with its owner where it has one (KEDA makes one for a ScaledObject), or a CronJob
        of its name that starts more of its queue's backends; None where nothing does. Raises KubeError, 403 where one may not look."""
        for each in await _none_of_404(
            self.kube.list(
                await self.kube.resource("autoscaling/v2", "HorizontalPodAutoscaler"),
                self.namespace,
            )
        ):
            if scales(each, self.name):
                owners = each["metadata"].get("ownerReferences") or []
                made = f" (made by {owners[0]['kind']} {owners[0]['name']})" if owners else ""
                return f"HorizontalPodAutoscaler {each['metadata']['name']}{made}"
        for each in await _none_of_404(
            self.kube.list(await self.kube.resource("batch/v1", "CronJob"), self.namespace)
        ):
            if starts(each, self.name):
                self.cron = each
                return f"CronJob {self.name}"
        return None

    async def replicas(self) -> int:
        return self.wanted

    async def scale(self, replicas: int) -> None:
        self.wanted = replicas
        await self.kube.scale(self.deployments, self.name, replicas, self.namespace)

    async def _list(self) -> list[dict[str, Any]]:
        """Its pods that have not ended: those of its ReplicaSets, since pods of others may carry the same labels, and of its CronJob's Jobs."""
        sets = await self.kube.list(self.sets, self.namespace, labels=self.selector)
        pods = await self._pods(sets, self.uid, self.selector)
        if self.cron:
            labels = self.cron["spec"]["jobTemplate"]["spec"]["template"]["metadata"]["labels"]
            jobs = await self.kube.list(self.jobs, self.namespace)
            pods += await self._pods(
                jobs, self.cron["metadata"]["uid"], _selector({"matchLabels": labels})
            )
        return [pod for pod in pods if pod.get("status", {}).get("phase") not in ENDED]

    async def _pods(
        self, between: list[dict[str, Any]], owner: str, selector: str
    ) -> list[dict[str, Any]]:
        """Pods of those of the ReplicaSets or Jobs that an owner has."""
        mine = {each["metadata"]["uid"] for each in between if _owned(each, {owner})}
        return [
            pod
            for pod in await self.kube.list(self.pods, self.namespace, labels=selector)
            if _owned(pod, mine)
        ]

    async def ready(self) -> int:
        return sum(
            _ready(pod) for pod in await self._list() if "deletionTimestamp" not in pod["metadata"]
        )

    async def lost(self) -> str:
        return ""  # its ReplicaSet starts others, and the kubelet their containers

    async def gone(self) -> bool:
        return len(await self._list()) <= self.wanted

    async def why(self) -> str:
        reasons: dict[str, int] = {}
        for pod in await self._list():
            for reason in _reasons(pod):
                reasons[reason] = reasons.get(reason, 0) + 1
        return "; ".join(f"{reason} ({count} pods)" for reason, count in sorted(reasons.items()))


async def _none_of_404(found: Awaitable[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """What is found, and nothing where the cluster does not serve it."""
    from perfdag.kube import KubeError

    try:
        return await found
    except KubeError as error:
        if error.status != 404:
            raise
        return []


def within(body: dict[str, Any], *path: str) -> dict[str, Any]:
    """The mapping that an object has there; an empty one where it has none, null or something else."""
    found: Any = body
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def starts(body: dict[str, Any], deployment: str) -> bool:
    """Whether an object is the CronJob of `manifests` that starts backends beside those of that Deployment."""
    part_of = within(body, "metadata", "labels").get(PART_OF)
    return (
        "jobTemplate" in within(body, "spec")
        and body["metadata"]["name"] == deployment
        and part_of == "perfdag-queue"
    )


def scales(body: dict[str, Any], deployment: str) -> bool:
    """Whether an object is an autoscaler (HorizontalPodAutoscaler, ScaledObject) of that Deployment."""
    reference = within(body, "spec", "scaleTargetRef")
    return (
        reference.get("kind", "Deployment") == "Deployment" and reference.get("name") == deployment
    )


def _selector(selector: dict[str, Any]) -> str:
    """A label selector as the API's query takes it."""
    parts = [f"{key}={value}" for key, value in (selector.get("matchLabels") or {}).items()]
    for each in selector.get("matchExpressions") or []:
        key, values = each["key"], f"({','.join(each.get('values') or [])})"
        parts.append(
            {
                "In": f"{key} in {values}",
                "NotIn": f"{key} notin {values}",
                "Exists": key,
                "DoesNotExist": f"!{key}",
            }[each["operator"]]
        )
    return ",".join(parts)


def _owned(body: dict[str, Any], owners: set[str]) -> bool:
    return any(
        each["uid"] in owners and each.get("controller")
        for each in body["metadata"].get("ownerReferences") or []
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

"""What the validator scales and loads: processes and an own client here, a Deployment and its client's port elsewhere."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode

from perfdag.steps.queue.load import ClosedLoop
from perfdag.steps.queue.processes import Processes
from perfdag.steps.queue.steady import Stats
from perfdag.steps.queue.tally import Tally
from perfdag.steps.queue.validate import BadInput

if TYPE_CHECKING:
    from perfdag.kube import Kube


CLIENT_SECONDS = 10.0
"""A client's control port answers at once; one that takes longer is gone."""


class LocalTarget:
    """Processes as replicas."""

    def __init__(self, processes: Processes) -> None:
        self.processes = processes

    async def replicas(self) -> int:
        return len(self.processes.running)

    async def scale(self, replicas: int) -> None:
        await self.processes.scale(replicas)

    async def ready(self) -> int:
        return await self.processes.ready()

    async def lost(self) -> str:
        return self.processes.lost()

    async def gone(self) -> bool:
        return await self.processes.gone()

    async def why(self) -> str:
        return ""


class LocalLoad:
    """A client in this process."""

    def __init__(self, loop: ClosedLoop, tally: Tally) -> None:
        self.loop, self.tally = loop, tally

    async def parallel(self, requests: int) -> int:
        return self.loop.set_parallel(requests)

    async def reset(self) -> None:
        self.tally.reset()

    async def stats(self) -> Stats:
        return self.tally.as_json()


class HttpLoad:
    """A client by its control port. ``get`` fetches a path with its query and returns the body."""

    def __init__(self, get: Callable[[str], Awaitable[bytes]]) -> None:
        self.get = get

    async def up(self, seconds: float) -> None:
        """Wait until the client answers. Raises what the last try raised."""
        from perfdag.kube import KubeError

        end = time.monotonic() + seconds
        while True:
            try:
                await self.get("healthz")
            except (KubeError, BadInput):
                if time.monotonic() > end:
                    raise
                await asyncio.sleep(0.5)
            else:
                return

    async def parallel(self, requests: int) -> int:
        answer = json.loads(await self.get(f"parallel?{urlencode({'type': 'json', 'value': requests})}"))
        return int(answer["result"])

    async def reset(self) -> None:
        await self.get("reset?type=json")

    async def stats(self) -> Stats:
        body = await self.get("stats?type=json")
        try:
            stats: Stats = json.loads(body)
        except ValueError:
            raise BadInput("the client has no JSON statistics: it has to be perfdag's") from None
        return stats


def by_url(url: str, token: str) -> Callable[[str], Awaitable[bytes]]:
    """Fetch from a client's control port at ``url``. Raises BadInput where it cannot be reached or refuses."""

    def fetch(path: str) -> bytes:
        request = urllib.request.Request(f"{url.rstrip('/')}/{path}", headers={"Authorization": f"Bearer {token}"} if token else {})
        try:
            with urllib.request.urlopen(request, timeout=CLIENT_SECONDS) as answer:
                body: bytes = answer.read()
                return body
        except urllib.error.HTTPError as error:
            raise BadInput(
                f"the client at {url} answers {error.code} {error.reason}: {error.read()[:200].decode(errors='replace')}"
            ) from None
        except OSError as error:
            raise BadInput(f"no client at {url}: {getattr(error, 'reason', error)}") from None

    if not url.startswith(("http://", "https://")):
        raise BadInput(f"client URL {url!r} does not start with http:// or https://")

    async def get(path: str) -> bytes:
        return await asyncio.to_thread(fetch, path)

    return get


def by_service(kube: Kube, namespace: str, service: str, port: int, token: str) -> Callable[[str], Awaitable[bytes]]:
    """Fetch from a client's Service through the API server's proxy, which works from outside of the cluster."""
    headers = {"X-Perfdag-Token": token} if token else {}

    async def get(path: str) -> bytes:
        bare, _, query = path.partition("?")
        where = f"/api/v1/namespaces/{namespace}/services/{service}:{port}/proxy/{bare}"
        _, _, body = await kube.raw("GET", where, params=dict(parse_qsl(query)), headers=headers, timeout=CLIENT_SECONDS, retries=2)
        return bytes(body)

    return get


class DeploymentTarget:
    """A Deployment scaled through its scale subresource and watched through its pods."""

    def __init__(self, kube: Kube, namespace: str, name: str) -> None:
        self.kube, self.namespace, self.name = kube, namespace, name
        self.selector = ""
        self.wanted = 0

    async def find(self) -> None:
        """Look the Deployment up. Raises BadInput where there is none."""
        from perfdag.kube import KubeError

        self.deployments = await self.kube.resource("apps/v1", "Deployment")
        self.sets = await self.kube.resource("apps/v1", "ReplicaSet")
        self.pods = await self.kube.resource("v1", "Pod")
        try:
            found = await self.kube.get(self.deployments, self.name, self.namespace)
        except KubeError as error:
            if error.status != 404:
                raise
            names = [one["metadata"]["name"] for one in await self.kube.list(self.deployments, self.namespace)]
            raise BadInput(
                f"no Deployment {self.name!r} in namespace {self.namespace!r}; there are: {', '.join(sorted(names)) or 'none'}"
            ) from None
        self.uid = found["metadata"]["uid"]
        self.selector = _selector(found["spec"]["selector"])
        self.wanted = found["spec"].get("replicas", 1)
        self.containers: list[dict[str, Any]] = found["spec"]["template"]["spec"]["containers"]

    async def scaler(self) -> str | None:
        """What else scales it: a HorizontalPodAutoscaler, with its owner where it has one (KEDA makes one for a ScaledObject); None
        where nothing does. Raises KubeError, 403 where one may not look."""
        from perfdag.kube import KubeError

        try:
            found = await self.kube.list(await self.kube.resource("autoscaling/v2", "HorizontalPodAutoscaler"), self.namespace)
        except KubeError as error:
            if error.status != 404:
                raise
            return None
        for each in found:
            if scales(each, self.name):
                owners = each["metadata"].get("ownerReferences") or []
                made = f" (made by {owners[0]['kind']} {owners[0]['name']})" if owners else ""
                return f"HorizontalPodAutoscaler {each['metadata']['name']}{made}"
        return None

    async def replicas(self) -> int:
        return self.wanted

    async def scale(self, replicas: int) -> None:
        self.wanted = replicas
        await self.kube.scale(self.deployments, self.name, replicas, self.namespace)

    async def _list(self) -> list[dict[str, Any]]:
        """Its pods that have not ended: those of its ReplicaSets, since pods of others may carry the same labels."""
        sets = await self.kube.list(self.sets, self.namespace, labels=self.selector)
        mine = {each["metadata"]["uid"] for each in sets if _owned(each, {self.uid})}
        pods = await self.kube.list(self.pods, self.namespace, labels=self.selector)
        return [pod for pod in pods if _owned(pod, mine) and pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")]

    async def ready(self) -> int:
        return sum(_ready(pod) for pod in await self._list() if "deletionTimestamp" not in pod["metadata"])

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


def scales(body: dict[str, Any], deployment: str) -> bool:
    """Whether an object is an autoscaler (HorizontalPodAutoscaler, ScaledObject) of that Deployment."""
    reference = body.get("spec", {}).get("scaleTargetRef") or {}
    return reference.get("kind", "Deployment") == "Deployment" and reference.get("name") == deployment


def _selector(selector: dict[str, Any]) -> str:
    """A label selector as the API's query takes it."""
    parts = [f"{key}={value}" for key, value in (selector.get("matchLabels") or {}).items()]
    for each in selector.get("matchExpressions") or []:
        key, values = each["key"], f"({','.join(each.get('values') or [])})"
        parts.append(
            {"In": f"{key} in {values}", "NotIn": f"{key} notin {values}", "Exists": key, "DoesNotExist": f"!{key}"}[each["operator"]]
        )
    return ",".join(parts)


def _owned(body: dict[str, Any], owners: set[str]) -> bool:
    return any(each["uid"] in owners and each.get("controller") for each in body["metadata"].get("ownerReferences") or [])


def _ready(pod: dict[str, Any]) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod.get("status", {}).get("conditions", []))


def _reasons(pod: dict[str, Any]) -> list[str]:
    status = pod.get("status", {})
    reasons = [
        c.get("message", c.get("reason", "")) for c in status.get("conditions", []) if c["type"] == "PodScheduled" and c["status"] != "True"
    ]
    for container in status.get("containerStatuses", []):
        waiting = container.get("state", {}).get("waiting")
        if waiting:
            reasons.append(f"{waiting.get('reason', 'waiting')}: {waiting.get('message', '')}".rstrip(": ")[:200])
    return reasons

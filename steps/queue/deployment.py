"""A Deployment of a queue's backends: apply and scale it, watch its pods, drive its client."""

import asyncio
import base64
import json
import os
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

from perfdag import signals
from perfdag.hosts.gpu_use import DeviceUse
from perfdag.kube.client import Kube, KubeError
from perfdag.kube.config import ignore_status
from perfdag.kube.pods import pod_trouble
from perfdag.outcome import Skip
from perfdag.steps.queue import wire
from perfdag.steps.queue.steady_state import Stats
from perfdag.steps.queue.validate import BadInput, Load, Plan, idle, validate
from perfdag.steps.queue.verdict import Verdict
from perfdag.units import plural

PART_OF = "app.kubernetes.io/part-of"
FINAL_PHASES = ("Succeeded", "Failed")
POLL_SECONDS = 0.5
OPTIONAL = {"ServiceMonitor", "ScaledObject", "ScaledJob"}
"""Kinds of operators that a validation does not need."""
CONTROL_PORT = 9996
TOKEN_SECRET = "perfdag-queue-token"
"""Secret of the token of the clients' control ports."""
Send = Callable[[str, str], Awaitable[bytes]]
CLIENT_SECONDS = 10.0
"""Time of a client's control port to answer."""


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
        labels = deployment["spec"]["selector"].get("matchLabels") or {}
        self.selector = ",".join(f"{key}={value}" for key, value in labels.items())
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
        reasons = Counter(filter(None, (pod_trouble(pod)[0] for pod in await self._list())))
        return "; ".join(f"{why} ({plural(count, 'pod')})" for why, count in reasons.items())

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


@asynccontextmanager
async def deployed(
    kube: Kube,
    file: str | None,
    namespace: str | None,
    validated: str,
    seconds: float,
    report: Callable[[str], None],
) -> AsyncIterator[None]:
    """Apply the objects of a YAML file, then delete them in reverse order and wait.

    The wait lasts for `seconds`. Remaining objects are reported.
    These objects are reported and not applied: existing ones, scalers of the Deployment
    `validated`, and
    optional kinds that the cluster does not serve.
    Raises ValueError if the file holds no objects, or if an object of an earlier validation does
    not go.
    Raises KubeError if the cluster refuses an object.
    """
    if not file:
        yield
        return
    bodies, applied = _objects(file), list[dict[str, Any]]()
    try:
        for body in bodies:
            why = await _reason_to_skip(kube, body, validated)
            if not why and await _exists(kube, body, namespace, seconds, report):
                why = "which exists already and stays unchanged"
            if why:
                report(f"not applied: {_named(body)}, {why}")
                continue
            applied.append(body)
            await kube.apply(body, None if "namespace" in body["metadata"] else namespace)
        yield
    finally:
        if applied:
            report(f"deleting the {len(applied)} objects that were applied")
        await _remove(kube, list(reversed(applied)), namespace, seconds, report)


async def _remove(
    kube: Kube,
    bodies: list[dict[str, Any]],
    namespace: str | None,
    seconds: float,
    report: Callable[[str], None],
) -> None:
    """Delete all objects, even if some fail, and wait. Raises the first KubeError at the end."""
    refused: list[KubeError] = []
    for body in bodies:
        try:
            await _delete(kube, body, namespace)
        except KubeError as error:
            refused.append(error)
    if refused:
        raise refused[0]
    if left := await _wait_gone(kube, bodies, namespace, seconds):
        report(f"not gone {seconds:g} s after they were deleted: {', '.join(map(_named, left))}")


async def _wait_gone(
    kube: Kube, bodies: list[dict[str, Any]], namespace: str | None, seconds: float
) -> list[dict[str, Any]]:
    """Wait until the objects are gone; return those that remain after `seconds`."""
    end = time.monotonic() + seconds
    left = []
    for body in bodies:
        while await _read(kube, body, namespace):
            if time.monotonic() > end:
                left.append(body)
                break
            await asyncio.sleep(POLL_SECONDS)
    return left


def _named(body: dict[str, Any]) -> str:
    return f"{body['kind']} {body['metadata']['name']}"


def _objects(file: str) -> list[dict[str, Any]]:
    import yaml

    try:
        bodies = [body for body in yaml.safe_load_all(Path(file).read_text()) if body]
    except yaml.YAMLError as error:
        raise ValueError(f"{file} is no YAML: {str(error).splitlines()[0]}") from None
    for body in bodies:
        if not isinstance(body, dict) or not {"apiVersion", "kind", "metadata"} <= set(body):
            raise ValueError(
                f"{file} holds a document that is no Kubernetes object; render a file of "
                "queues with: perfdag queue manifests"
            )
        if not isinstance(mapping_at(body, "metadata").get("name"), str):
            raise ValueError(
                f"{file}: a {body['kind']} has no metadata.name; objects that are removed "
                "afterwards need a name"
            )
    return bodies


async def _reason_to_skip(kube: Kube, body: dict[str, Any], validated: str) -> str | None:
    """Return the reason not to apply an object, None if it may be applied."""
    if scales(body, validated) or starts(body, validated):
        return f"which would scale {validated} while it is validated"
    if body["kind"] in OPTIONAL:
        try:
            await kube.resource(body["apiVersion"], body["kind"])
        except KubeError as error:
            if error.reason != "NoKind":
                raise
            return "which the cluster does not serve"
    return None


async def _exists(
    kube: Kube,
    body: dict[str, Any],
    namespace: str | None,
    seconds: float,
    report: Callable[[str], None],
) -> bool:
    """Tell whether an object exists and stays; wait for one that is being deleted.

    Raises ValueError if that one does not go.
    """
    existing = await _read(kube, body, namespace)
    if not existing or not existing["metadata"].get("deletionTimestamp"):
        return existing is not None
    report(f"waiting for {_named(body)}, which is being deleted, to be gone")
    if await _wait_gone(kube, [body], namespace, seconds):
        raise ValueError(
            f"{_named(body)} is being deleted and not gone after {seconds:g} s: remove "
            "what blocks its deletion, then validate again"
        )
    return False


async def _read(kube: Kube, body: dict[str, Any], namespace: str | None) -> dict[str, Any] | None:
    """Return the object of the cluster, None if there is none."""
    resource = await kube.resource(body["apiVersion"], body["kind"])
    with ignore_status(404):
        return await kube.get(
            resource, body["metadata"]["name"], body["metadata"].get("namespace") or namespace
        )
    return None


async def _delete(kube: Kube, body: dict[str, Any], namespace: str | None) -> None:
    with ignore_status(404):
        resource = await kube.resource(body["apiVersion"], body["kind"])
        await kube.delete(
            resource, body["metadata"]["name"], body["metadata"].get("namespace") or namespace
        )


class HttpLoad:
    """A client behind its control port.

    `send` sends a request of a method to a path with its query, and returns the body.
    """

    def __init__(self, send: Send) -> None:
        self.send = send

    async def up(self, seconds: float) -> None:
        """Wait until the client answers. Raises the error of the last attempt."""
        end = time.monotonic() + seconds
        while True:
            try:
                await self.send("GET", "healthz")
            except (KubeError, BadInput):
                if time.monotonic() > end:
                    raise
                await asyncio.sleep(0.5)
            else:
                return

    async def parallel(self, requests: int) -> int:
        answer = json.loads(
            await self.send("POST", f"parallel?{urlencode({'type': 'json', 'value': requests})}")
        )
        return int(answer["result"])

    async def reset(self) -> None:
        await self.send("POST", "reset?type=json")

    async def stats(self) -> Stats:
        body = await self.send("GET", "stats?type=json")
        try:
            stats: Stats = json.loads(body)
        except ValueError:
            raise BadInput("the client has no JSON statistics: use the client of perfdag") from None
        return stats


async def token_of(kube: Kube, namespace: str) -> str:
    """Return the token of the control ports of a namespace; "" if none may be read.

    It is PERFDAG_QUEUE_TOKEN, or else that of the Secret. Raises KubeError.
    """
    if token := os.environ.get(wire.TOKEN_VARIABLE):
        return token
    with ignore_status(403, 404):
        secret = await kube.get(await kube.resource("v1", "Secret"), TOKEN_SECRET, namespace)
        return base64.b64decode(secret["data"]["token"]).decode()
    return ""


def send_by_url(url: str, token: str) -> Send:
    """Return what sends requests to the control port at `url`.

    It raises BadInput if the port refuses or is unreachable.
    """

    def send_now(method: str, path: str) -> bytes:
        request = urllib.request.Request(
            f"{url.rstrip('/')}/{path}",
            headers={"Authorization": f"Bearer {token}"} if token else {},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=CLIENT_SECONDS) as answer:
                body: bytes = answer.read()
                return body
        except urllib.error.HTTPError as error:
            raise BadInput(
                f"the client at {url} answers {error.code} {error.reason}: "
                f"{error.read()[:200].decode(errors='replace')}"
            ) from None
        except OSError as error:
            raise BadInput(f"no client at {url}: {getattr(error, 'reason', error)}") from None

    if not url.startswith(("http://", "https://")):
        raise BadInput(f"client URL {url!r} does not start with http:// or https://")

    async def send(method: str, path: str) -> bytes:
        return await asyncio.to_thread(send_now, method, path)

    return send


def send_by_service(kube: Kube, namespace: str, service: str, token: str) -> Send:
    """Return what sends requests to a client's Service through the API server's proxy.

    It works outside of the cluster.
    """
    headers = {"X-Perfdag-Token": token} if token else {}

    async def send(method: str, path: str) -> bytes:
        bare, _, query = path.partition("?")
        url = f"/api/v1/namespaces/{namespace}/services/{service}:{CONTROL_PORT}/proxy/{bare}"
        _, _, body = await kube.raw(
            method,
            url,
            params=dict(parse_qsl(query)),
            headers=headers,
            timeout=CLIENT_SECONDS,
            retries=2,
        )
        return bytes(body)

    return send


@dataclass(frozen=True)
class ClientAddress:
    """Where the client's control port is: a Service in a namespace, or a URL."""

    service: str | None = None
    namespace: str | None = None
    url: str | None = None


def validate_deployment(
    name: str,
    namespace: str | None,
    client: ClientAddress,
    plan: Plan,
    manifests: str | None,
    report: Callable[[str], None],
) -> Verdict:
    """Validate a Deployment. Objects of the file `manifests` are there only meanwhile.

    Raises ValueError (BadInput), KubeError, KeyboardInterrupt.
    """

    async def work() -> Verdict:
        seconds = plan.scale_seconds + 60  # beyond the grace of pods, a namespace takes some
        async with Kube() as kube, deployed(kube, manifests, namespace, name, seconds, report):
            target = DeploymentTarget(kube, namespace or kube.namespace, name)
            await target.find()
            if scaler := await other_scaler(target, report):
                raise BadInput(f"{scaler} scales {name} as well: delete it during the validation")
            load = HttpLoad(await sender(kube, client, target))
            await load.up(plan.scale_seconds if manifests else 0)
            verdict = await validate(target, load, plan, report)
            if manifests:
                await wait_idle(target, load, plan.scale_seconds, report)
            return verdict

    return signals.run_until_stopped(work())


async def sender(kube: Kube, client: ClientAddress, target: DeploymentTarget) -> Send:
    """Return the function that sends requests to the client's control port. Raises KubeError."""
    namespace = client.namespace or target.namespace
    token = await token_of(kube, namespace)
    if client.url:
        return send_by_url(client.url, token)
    service = client.service or f"{target.name}-client"
    return send_by_service(kube, namespace, service, token)


async def wait_idle(
    target: DeploymentTarget, load: Load, seconds: float, report: Callable[[str], None]
) -> None:
    """Wait until all requests are answered, before the objects are deleted. Report a failure."""
    try:
        await idle(target, load, seconds)
    except (BadInput, KubeError) as error:
        report(str(error))


async def other_scaler(target: DeploymentTarget, report: Callable[[str], None]) -> str | None:
    """Return what else scales the Deployment, or None if nothing does. Report a missing right."""
    try:
        return await target.scaler()
    except KubeError as error:
        if error.status != 403:
            raise
        report(f"not known whether anything else scales {target.name}: {error}")
        return None

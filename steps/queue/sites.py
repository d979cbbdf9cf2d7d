"""Where a validation finds backends and their client: on this machine, or behind an API server."""

import asyncio
import base64
import os
import socket
from collections import Counter
from collections.abc import Sequence
from typing import Any

from perfdag.kube.client import Kube, ignore_status
from perfdag.kube.pods import is_ready, pod_trouble
from perfdag.steps.queue.backend import Backend, Workload, find_device
from perfdag.steps.queue.client import ClientStats, Load
from perfdag.steps.queue.frontend import Frontend
from perfdag.steps.queue.protocol import TOKEN_VARIABLE, Address
from perfdag.steps.queue.validate import Plan, Replicas, Result, Site, Stats, validate
from perfdag.units import plural

CONTROL_PORT = 9996
DEPLOYMENTS = "apps/v1/Deployment"
TOKEN_SECRET = "perfdag-queue-token"
"""Secret of the token of the clients' control ports."""
CLIENT_SECONDS = 10.0
"""Time of a client's control port to answer."""
GRACE_SECONDS = 30.0
"""Time of the backends to end their items before the commands are killed."""


class LocalSite(Site):
    """A queue on this machine, as an async context manager.

    Its frontend, its client and its backends share an event loop: a command is a process of its
    own. `most_parallel`: requests in parallel. `glob`: its first match replaces FILENAME.
    `item_limit`: seconds that an item may run, 0 for no limit. Raises ValueError for a command that
    cannot run, and a glob without a match.
    """

    name = "local"

    def __init__(
        self, command: Sequence[str], most_parallel: int, glob: str = "", item_limit: float = 0.0
    ) -> None:
        self.most_parallel = most_parallel
        self.item_limit = item_limit
        self.workload = Workload(command, find_device(glob))
        self.backends: list[Backend] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "LocalSite":
        loopback = Address("127.0.0.1", 0)
        self.frontend = Frontend([self.name])
        await self.frontend.start(loopback, loopback, loopback)
        clients, self.address, _ = (loopback._replace(port=port) for port in self.frontend.ports)
        self.load = Load(
            clients, self.name, ClientStats(), self.most_parallel, limit=self.item_limit
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.load.stop()
        await self.scale(0)
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=GRACE_SECONDS)
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.frontend.stop()

    async def replicas(self) -> Replicas:
        at_work = len(self.backends)
        return Replicas(at_work, at_work, sum(not task.done() for task in self.tasks))

    async def scale(self, replicas: int) -> None:
        while len(self.backends) < replicas:
            pod = f"{self.name}-{len(self.tasks)}"
            # In a pod the host name is the pod's.
            node = os.environ.get("PERFDAG_NODE") or socket.gethostname()
            # Without a wait of its own a backend would end when the queue is empty.
            backend = Backend(self.address, self.name, pod, node, self.workload, 0.005, 0.02)
            self.backends.append(backend)
            self.tasks.append(asyncio.create_task(backend.serve()))
        while len(self.backends) > replicas:
            self.backends.pop().stopping.set()

    async def parallel(self, requests: int) -> int:
        return self.load.set_parallel(requests)

    async def reset(self) -> None:
        self.load.stats.reset()

    async def stats(self) -> Stats:
        return self.load.stats.as_json()


class DeploymentSite(Site):
    """A Deployment of backends, and the Service of its client, behind an API server.

    It is scaled through its scale subresource and watched through its pods. The client is reached
    through the API server's proxy.
    """

    def __init__(
        self,
        kube: Kube,
        namespace: str | None,
        name: str,
        client: str | None = None,
        client_namespace: str | None = None,
    ) -> None:
        self.kube = kube
        self.namespace = namespace or kube.cluster.namespace
        self.name = name
        self.client_namespace = client_namespace or self.namespace
        self.client = client or f"{name}-client"

    async def find(self) -> None:
        """Read the Deployment, and the token of its client. Raises KubeError."""
        body = await self.kube.get(DEPLOYMENTS, self.name, self.namespace)
        labels = body["spec"]["selector"].get("matchLabels") or {}
        self.selector = ",".join(f"{key}={value}" for key, value in labels.items())
        self.requested = int(body["spec"].get("replicas", 1))
        self.token = await token_of(self.kube, self.client_namespace)

    async def replicas(self) -> Replicas:
        listed = await self.kube.list("v1/Pod", self.namespace, labels=self.selector)
        ended = ("Succeeded", "Failed")
        pods = [pod for pod in listed if pod.get("status", {}).get("phase") not in ended]
        ready = sum("deletionTimestamp" not in pod["metadata"] and is_ready(pod) for pod in pods)
        troubles = Counter(filter(None, (pod_trouble(pod)[0] for pod in pods)))
        reasons = [f"{trouble} ({plural(count, 'pod')})" for trouble, count in troubles.items()]
        return Replicas(self.requested, ready, len(pods), "; ".join(reasons))

    async def scale(self, replicas: int) -> None:
        self.requested = replicas
        body = {"spec": {"replicas": replicas}}
        await self.kube.patch(DEPLOYMENTS, self.name, body, self.namespace, subresource="scale")

    async def parallel(self, requests: int) -> int:
        return int((await self.send("POST", "parallel", value=str(requests)))["result"])

    async def reset(self) -> None:
        await self.send("POST", "reset")

    async def stats(self) -> Stats:
        return dict(await self.send("GET", "stats"))

    async def send(self, method: str, path: str, **query: str) -> Any:
        """Send a request to the client through the API server's proxy; return the JSON.

        Raises KubeError, and ValueError for another client than perfdag's.
        """
        at = f"/api/v1/namespaces/{self.client_namespace}/services/{self.client}:{CONTROL_PORT}"
        return await self.kube.request(
            method,
            f"{at}/proxy/{path}",
            params={"type": "json", **query},
            headers={"X-Perfdag-Token": self.token} if self.token else {},
        )


async def token_of(kube: Kube, namespace: str) -> str:
    """Return the token of the control ports of a namespace; "" if none may be read.

    It is PERFDAG_QUEUE_TOKEN, or else that of the Secret. Raises KubeError.
    """
    if token := os.environ.get(TOKEN_VARIABLE):
        return token
    with ignore_status(403, 404):
        secret = await kube.get("v1/Secret", TOKEN_SECRET, namespace)
        return base64.b64decode(secret["data"]["token"]).decode()
    return ""


async def validate_local(
    command: Sequence[str], plan: Plan, glob: str = "", item_limit: float = 0.0
) -> Result:
    """Validate a command on this machine. Raises ValueError as LocalSite and validate() do."""
    async with LocalSite(command, plan.limit, glob, item_limit) as site:
        return (await validate([site], plan))[0]


async def validate_deployments(
    names: Sequence[str],
    plan: Plan,
    namespace: str | None,
    client: str | None,
    client_namespace: str | None,
) -> list[Result]:
    """Validate Deployments at the same time. Raises KubeError, and ValueError as validate() does.

    `client`: the Service of the client (default: that of each Deployment).
    """
    async with Kube(retries=2, timeout=CLIENT_SECONDS) as kube:
        sites = [DeploymentSite(kube, namespace, name, client, client_namespace) for name in names]
        for site in sites:
            await site.find()
        return await validate(sites, plan)

"""The loads of the validator: a client in this process, or one behind its control port."""

import asyncio
import base64
import json
import math
import os
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode

from perfdag.kube.client import Kube, KubeError
from perfdag.kube.errors import ignore_status
from perfdag.steps.queue.backend.processes import Processes
from perfdag.steps.queue.backend.workload import Workload, device
from perfdag.steps.queue.client.load import Load, Work
from perfdag.steps.queue.client.stats import ClientStats
from perfdag.steps.queue.dispatcher import Limits, raise_file_limit
from perfdag.steps.queue.frontend import Frontend
from perfdag.steps.queue.validate.steady_state import Stats
from perfdag.steps.queue.validate.validate import BadInput
from perfdag.steps.queue.wire import Address

CONTROL_PORT = 9996
TOKEN_VARIABLE, TOKEN_SECRET = "PERFDAG_QUEUE_TOKEN", "perfdag-queue-token"
"""Environment variable and Secret of the token of the clients' control ports."""
Send = Callable[[str, str], Awaitable[bytes]]
CLIENT_SECONDS = 10.0
"""Time of a client's control port to answer."""


class LocalLoad:
    """A client in this process."""

    def __init__(self, load: Load) -> None:
        self.load, self.client_stats = load, load.client_stats

    async def parallel(self, requests: int) -> int:
        return self.load.set_parallel(requests)

    async def reset(self) -> None:
        self.client_stats.reset()

    async def stats(self) -> Stats:
        return self.client_stats.as_json()


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
    if token := os.environ.get(TOKEN_VARIABLE):
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


QUEUE = "local"


class Local:
    """An async context manager with `target` and `load` for the validator.

    `most`: requests in parallel. `glob`: its first match replaces FILENAME.
    `item_limit`: seconds that an item may run, 0 for no limit.
    Raises ValueError for a command that cannot run, a glob without a match, and a bad limit.
    """

    def __init__(
        self,
        command: Sequence[str],
        most: int,
        limits: Limits | None = None,
        *,
        glob: str = "",
        item_limit: float = 0.0,
        **options: Any,
    ) -> None:
        if not 0 <= item_limit < math.inf:
            raise ValueError(f"item limit {item_limit:g} s is not a finite time from 0 (no limit)")
        file = device(glob)
        Workload(command, file)  # raises early for a bad command
        self.command, self.most, self.limits, self.item_limit = (
            list(command),
            most,
            limits,
            item_limit,
        )
        # Without a wait of its own a backend would end when the queue is empty between two steps.
        polling = {"backoff": 0.005, "backoff_max": 0.02}
        self.options = {
            "workload": {"command": self.command, "device": file},
            **polling,
            **options,
        }

    async def __aenter__(self) -> "Local":
        anywhere = Address("127.0.0.1", 0)
        # Both ends of the client's connections, and the frontend's of those to backends.
        raise_file_limit(3 * self.most)
        self.frontend = Frontend([QUEUE], self.limits)
        await self.frontend.start(anywhere, anywhere, anywhere)
        clients, workers, _ = self.frontend.ports
        self.target = Processes(Address("127.0.0.1", workers), QUEUE, self.command, **self.options)
        work = Work(Address("127.0.0.1", clients), QUEUE, limit=self.item_limit)
        self.client_stats = ClientStats()
        self.client = Load(work, self.client_stats, self.most)
        self.load = LocalLoad(self.client)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.stop()
        await self.target.stop()
        await self.frontend.stop()

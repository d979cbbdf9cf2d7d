"""What the validator scales and loads here, processes and an own client, and the client's port elsewhere (deployment.py has its pods)."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING
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
        answer = json.loads(
            await self.get(f"parallel?{urlencode({'type': 'json', 'value': requests})}")
        )
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
        request = urllib.request.Request(
            f"{url.rstrip('/')}/{path}",
            headers={"Authorization": f"Bearer {token}"} if token else {},
        )
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


def by_service(
    kube: Kube, namespace: str, service: str, port: int, token: str
) -> Callable[[str], Awaitable[bytes]]:
    """Fetch from a client's Service through the API server's proxy, which works from outside of the cluster."""
    headers = {"X-Perfdag-Token": token} if token else {}

    async def get(path: str) -> bytes:
        bare, _, query = path.partition("?")
        where = f"/api/v1/namespaces/{namespace}/services/{service}:{port}/proxy/{bare}"
        _, _, body = await kube.raw(
            "GET",
            where,
            params=dict(parse_qsl(query)),
            headers=headers,
            timeout=CLIENT_SECONDS,
            retries=2,
        )
        return bytes(body)

    return get

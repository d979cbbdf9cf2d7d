"""A small API server of a test's own."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web

from perfdag.kube.client import Kube
from perfdag.kube.config import Cluster, Credentials

Handle = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def served(handle: Handle) -> AsyncIterator[Cluster]:
    """`handle` answers every request."""
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield Cluster(
            f"http://127.0.0.1:{runner.addresses[0][1]}", "fake", "default", Credentials(), "test"
        )
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def client(handle: Handle) -> AsyncIterator[Kube]:
    """A client of such a server."""
    async with served(handle) as cluster, Kube(cluster) as kube:
        yield kube

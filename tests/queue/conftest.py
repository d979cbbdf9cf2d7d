"""A frontend on free ports of the loopback, and what talks to it."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from perfdag.steps.queue.client.stats import ClientStats
from perfdag.steps.queue.frontend.dispatcher import Limits
from perfdag.steps.queue.frontend.frontend import Frontend
from perfdag.steps.queue.wire import Address

ANY = Address("127.0.0.1", 0)
Start = Callable[..., Awaitable[Frontend]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts frontends and stops them after the test."""
    started: list[Frontend] = []

    async def one(*names: str, limits: Limits | None = None) -> Frontend:
        frontend = Frontend(names or ("sleep",), limits)
        await frontend.start(ANY, ANY, ANY)
        started.append(frontend)
        return frontend

    yield one
    for frontend in started:
        await frontend.stop()


@pytest.fixture
async def frontend(start: Start) -> Frontend:
    return await start()


@pytest.fixture
def client_stats() -> ClientStats:
    return ClientStats()


def clients(frontend: Frontend) -> Address:
    return Address("127.0.0.1", frontend.ports[0])


def workers(frontend: Frontend) -> Address:
    return Address("127.0.0.1", frontend.ports[1])

"""A frontend on free ports of the loopback, and what talks to it."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from perfdag.steps.queue.client import ClientStats, Load
from perfdag.steps.queue.frontend import Frontend
from perfdag.steps.queue.protocol import Address
from tests.queue import conversation

ANY = Address("127.0.0.1", 0)
Start = Callable[..., Awaitable[Frontend]]
StartBackends = Callable[..., list[subprocess.Popen[bytes]]]
Dial = Callable[..., Awaitable[conversation.Connection]]
Loop = Callable[..., Load]


@pytest.fixture
async def ending() -> AsyncIterator[AsyncExitStack]:
    """What is stopped after the test, the newest first."""
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
async def start(ending: AsyncExitStack) -> Start:
    """Starts frontends and stops them after the test."""

    async def one(*names: str, bound: int = 0) -> Frontend:
        frontend = Frontend(names or ("sleep",), bound)
        await frontend.start(ANY, ANY, ANY)
        ending.push_async_callback(frontend.stop)
        return frontend

    return one


@pytest.fixture
async def frontend(start: Start) -> Frontend:
    return await start()


@pytest.fixture
def backends(ending: AsyncExitStack) -> StartBackends:
    """Starts backends of a queue `sleep` as processes and kills them after the test."""

    def some(frontend: Frontend, count: int, *command: str) -> list[subprocess.Popen[bytes]]:
        at = [f"-faddr={workers(frontend)}", "-verbose", "-backoff=0.005", "-backoff-max", "0.02"]
        argv = [sys.executable, "-m", "perfdag", "queue", "backend", *at, "--", *command]
        processes = [subprocess.Popen(argv) for _ in range(count)]
        for process in processes:
            ending.callback(process.wait)
            ending.callback(process.kill)
        return processes

    return some


@pytest.fixture
def dial(ending: AsyncExitStack) -> Dial:
    """Opens connections and closes them after the test."""

    async def one(port: int, text: str = "") -> conversation.Connection:
        line = await conversation.dial(port, text)
        ending.callback(line.writer.close)
        return line

    return one


@pytest.fixture
def closed_loop(ending: AsyncExitStack, client_stats: ClientStats) -> Loop:
    """Starts closed loops that send to a queue `sleep`, and stops them after the test."""

    def one(frontend: Frontend, parallel: int) -> Load:
        loop = Load(clients(frontend), "sleep", client_stats, parallel)
        ending.push_async_callback(loop.stop)
        loop.set_parallel(parallel)
        return loop

    return one


@pytest.fixture
def client_stats() -> ClientStats:
    return ClientStats()


async def until(true: Callable[..., object], seconds: float = 20.0) -> None:
    """Wait until `true` returns so."""
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0.01)


def clients(frontend: Frontend) -> Address:
    return Address("127.0.0.1", frontend.ports[0])


def workers(frontend: Frontend) -> Address:
    return Address("127.0.0.1", frontend.ports[1])

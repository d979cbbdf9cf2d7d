"""Peers that flood or stay silent, and a process without descriptors: other peers are served."""

import asyncio
import contextlib
import json
import os
import resource
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web as aiohttp_web

from perfdag.steps.queue import http
from perfdag.steps.queue.frontend import connection_limits
from perfdag.steps.queue.frontend.dispatcher import Limits
from perfdag.steps.queue.frontend.frontend import Frontend
from perfdag.steps.queue.wire import Address
from tests.queue.conftest import Start
from tests.queue.conversation import Connection, dial, scrape
from tests.queue.test_frontend import adds_up, until

HELLO = "perfdag/1\n"


@asynccontextmanager
async def flooding(port: int, data: bytes, count: int) -> AsyncIterator[None]:
    """Open connections that send without end, and reconnect when they are closed."""

    async def one() -> None:
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(HELLO.encode() + data)
                while await reader.read(1 << 16):
                    writer.write(data)
                    await asyncio.sleep(0)
                writer.close()

    tasks = [asyncio.create_task(one()) for _ in range(count)]
    yield
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def receive_all(line: Connection) -> list[dict[str, object]]:
    """Every line until the connection ends."""
    with contextlib.suppress(ConnectionError):
        return [
            json.loads(one) for one in (await asyncio.wait_for(line.reader.read(), 5)).splitlines()
        ]
    return []


async def test_refused_requests_end_the_connection(start: Start) -> None:
    frontend = await start(limits=Limits(refusals=20))
    line = await dial(frontend.ports[0], HELLO + '{"Queue": "nowhere"}\n' * 21)
    answers = await receive_all(line)
    assert len(answers) == 21
    assert (
        answers[-1]["Error"] == "Unknown 'nowhere' queue, and 21 refused requests on one connection"
    )
    assert frontend.rejected == 21
    assert frontend.peers == 0


async def test_an_accepted_request_takes_a_refusal_back(start: Start) -> None:
    frontend = await start(limits=Limits(refusals=2))
    line = await dial(frontend.ports[0], HELLO + '{"Queue": "nowhere"}\n{"Queue": "sleep"}\n' * 40)
    await until(lambda: frontend.queues["sleep"].waiting == 40)
    assert frontend.peers == 1
    await line.close()


async def test_a_flood_is_handled_in_slices(start: Start) -> None:
    """One read of thousands of messages is not one turn of the loop."""
    frontend = await start(limits=Limits(refusals=10**9))
    longest = before = 0
    async with flooding(frontend.ports[0], b"{}\n" * 2500, 1):
        while frontend.rejected < 5000:
            await asyncio.sleep(0)
            longest, before = max(longest, frontend.rejected - before), frontend.rejected
    assert 0 < longest < 1000, longest  # a read holds 2730


async def test_flooding_clients_leave_the_others_their_turn(start: Start) -> None:
    frontend = await start(limits=Limits(refusals=10**9))
    worker = Connection(*await asyncio.open_connection("127.0.0.1", frontend.ports[1]))
    client = Connection(*await asyncio.open_connection("127.0.0.1", frontend.ports[0]))
    await worker.send(HELLO + '{"Queue": "sleep"}\n')
    await client.send(HELLO)
    async with flooding(frontend.ports[0], b"{}\n" * 2500, 8):
        await until(lambda: frontend.rejected > 1000)
        before = frontend.rejected
        for number in range(20):
            await client.send(f'{{"Id": {number}, "Queue": "sleep"}}\n')
            await asyncio.wait_for(worker.reader.readline(), 5)
            await worker.send('{"Retcode": 0, "Queue": "sleep"}\n')
            assert json.loads(await asyncio.wait_for(client.reader.readline(), 5))["Id"] == number
        assert (
            frontend.rejected - before < 60_000
        )  # a request is three turns, each with slices of the flood
    for line in (worker, client):
        await line.close()


async def test_all_messages_of_one_piece_are_handled(frontend: Frontend) -> None:
    line = await dial(frontend.ports[0], HELLO + '{"Queue": "sleep"}\n' * 400 + '{"Queue"')
    await until(lambda: frontend.queues["sleep"].waiting == 400)
    assert frontend.peers == 1
    await line.close()
    await until(lambda: frontend.queues["sleep"].disconnected == 400)
    assert adds_up(frontend.queues["sleep"])


async def test_a_peer_that_completes_messages_is_not_stuck(start: Start) -> None:
    """Each piece ends in the middle of a message, for longer than one message may take."""
    frontend = await start(limits=Limits(message_seconds=0.6))
    line = await dial(frontend.ports[0], HELLO + '{"Queue"')
    for number in range(1, 13):
        await asyncio.sleep(0.15)
        await line.send(': "sleep"}\n{"Queue"')
        await until(lambda number=number: frontend.queues["sleep"].waiting == number)
    assert frontend.stuck == 0
    await until(lambda: frontend.stuck == 1, 3)
    await line.close()


async def test_requests_of_clients_that_left_are_let_go(frontend: Frontend) -> None:
    queue = frontend.queues["sleep"]
    stays = await dial(frontend.ports[0], '{"Queue": "sleep", "Args": ["stays"]}')
    for number in range(1, 4):
        line = await dial(frontend.ports[0], HELLO + '{"Queue": "sleep"}\n' * 300)
        await until(lambda number=number: queue.accepted == 1 + 300 * number)
        await line.close()
        await until(lambda: queue.waiting == 1)
    assert len(queue.items) <= 66
    worker = await dial(frontend.ports[1], '{"Queue": "sleep"}')
    assert (await worker.receive())["Args"] == ["stays"]
    for line in (worker, stays):
        await line.close()


@pytest.fixture
def few_files() -> Iterator[None]:
    """No descriptor is free; those taken for it are given back by the test or at its end."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("few_files")
async def test_without_descriptors_those_connected_are_served(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, frontend: Frontend
) -> None:
    worker = await dial(frontend.ports[1], HELLO + '{"Queue": "sleep"}\n')
    client = await dial(frontend.ports[0], HELLO)
    late = [socket.socket() for _ in range(3)]
    highest = os.open(os.devnull, os.O_RDONLY)
    os.close(highest)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
    for peer, port in zip(late, frontend.ports, strict=True):
        peer.setblocking(False)
        peer.connect_ex(("127.0.0.1", port))
    await until(lambda: frontend.exhaustion.count >= 6)
    used = time.process_time()
    for _ in range(10):
        await client.send('{"Queue": "sleep"}\n')
        assert (await worker.receive())["Error"] == ""
        await worker.send('{"Retcode": 0, "Queue": "sleep"}\n')
        assert (await client.receive())["Retcode"] == 0
        await asyncio.sleep(0.05)
    assert time.process_time() - used < 0.3  # it waits before it tries again
    assert frontend.peers == 2
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    await until(lambda: frontend.peers == 4, 3)
    await asyncio.sleep(1.1)  # asyncio's own listener tries again after a second
    values = await scrape(frontend.ports[2])
    assert values["hpa_peers_unaccepted_total"] == frontend.exhaustion.count
    output = capfd.readouterr().err
    assert not caplog.records  # nor a traceback from asyncio
    assert (
        output
        == "cannot accept connections: Too many open files; open ones are served, and accepting is retried\n"
    )
    for peer in late:
        peer.close()


@pytest.mark.usefixtures("few_files")
async def test_connections_stay_below_the_limit_of_open_files(start: Start) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (1000, hard))
    assert (await start()).max_peers == 1000 - connection_limits.RESERVE
    connection_limits.raise_file_limit(1200)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (1200 + connection_limits.RESERVE, hard)
    assert (await start(limits=Limits(peers=1200))).max_peers == 1200
    connection_limits.raise_file_limit(10)
    assert (
        resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 1200 + connection_limits.RESERVE
    )  # never lowered


async def test_who_does_not_read_its_page_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "CONNECTION_SECONDS", 0.2)
    size = 16 << 20
    server = await http.serve(
        Address("127.0.0.1", 0), lambda _: aiohttp_web.Response(text="x" * size)
    )
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", server.sockets[0].getsockname()[1], limit=1024
    )
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    await asyncio.sleep(0.5)
    body = b""
    with contextlib.suppress(ConnectionError):
        while data := await asyncio.wait_for(reader.read(1 << 20), 5):
            body += data
    assert len(body) < size
    writer.close()
    server.close()


async def test_silent_connections_leave_the_metrics_port_after_their_time(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 8)
    monkeypatch.setattr(http, "CONNECTION_SECONDS", 1.0)
    port = (await start()).ports[2]
    silent = [await dial(port) for _ in range(8)]
    assert await scrape(port) == {}  # one connection too many is closed
    await until(lambda: all(line.reader.at_eof() or line.reader.exception() for line in silent), 5)
    assert (await scrape(port))["hpa_peers"] == 0
    for line in silent:
        line.writer.close()

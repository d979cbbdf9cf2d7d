"""Peers that flood, hold memory or take every connection, and a process without descriptors: the others are served."""

from __future__ import annotations

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

from perfdag.steps.queue import slots, web
from perfdag.steps.queue.frontend import Limits
from perfdag.steps.queue.slots import Slots
from perfdag.steps.queue.wire import Address
from tests.queue.conftest import Start
from tests.queue.conversation import Line, dial, scrape
from tests.queue.test_frontend import adds_up, until

HELLO = "perfdag/1\n"


@asynccontextmanager
async def flooding(port: int, data: bytes, count: int) -> AsyncIterator[None]:
    """So many connections that send without an end, read what comes, and dial again where they are cut off."""

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


async def hear(line: Line) -> list[dict[str, object]]:
    """Every line until the connection ends."""
    with contextlib.suppress(ConnectionError):
        return [
            json.loads(one) for one in (await asyncio.wait_for(line.reader.read(), 5)).splitlines()
        ]
    return []


async def test_refused_requests_end_the_connection(start: Start) -> None:
    frontend = await start(limits=Limits(refusals=20))
    line = await dial(frontend.ports[0], HELLO + '{"Queue": "nowhere"}\n' * 21)
    heard = await hear(line)
    assert len(heard) == 21
    assert (
        heard[-1]["Error"] == "Unknown 'nowhere' queue, and 21 refused requests on one connection"
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
    worker = Line(*await asyncio.open_connection("127.0.0.1", frontend.ports[1]))
    client = Line(*await asyncio.open_connection("127.0.0.1", frontend.ports[0]))
    await worker.say(HELLO + '{"Queue": "sleep"}\n')
    await client.say(HELLO)
    async with flooding(frontend.ports[0], b"{}\n" * 2500, 8):
        await until(lambda: frontend.rejected > 1000)
        before = frontend.rejected
        for number in range(20):
            await client.say(f'{{"Id": {number}, "Queue": "sleep"}}\n')
            await asyncio.wait_for(worker.reader.readline(), 5)
            await worker.say('{"Retcode": 0, "Queue": "sleep"}\n')
            assert json.loads(await asyncio.wait_for(client.reader.readline(), 5))["Id"] == number
        assert (
            frontend.rejected - before < 60_000
        )  # a request is three turns, each with slices of the flood
    for line in (worker, client):
        await line.close()


async def test_all_messages_of_one_piece_are_handled(start: Start) -> None:
    frontend = await start()
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
        await line.say(': "sleep"}\n{"Queue"')
        await until(lambda number=number: frontend.queues["sleep"].waiting == number)
    assert frontend.stuck == 0
    await until(lambda: frontend.stuck == 1, 3)
    await line.close()


async def test_requests_of_one_connection_are_bounded_in_bytes(start: Start) -> None:
    frontend = await start(limits=Limits(request_bytes=100_000))
    big = json.dumps({"Queue": "sleep", "Args": ["x" * 20_000]}) + "\n"
    line = await dial(frontend.ports[0], HELLO + big * 4)
    await until(lambda: frontend.queues["sleep"].waiting == 4)
    assert 80_000 < frontend.memory.held < 100_000
    await line.say(big)
    assert "more than 100000 bytes of requests" in str((await hear(line))[-1]["Error"])
    assert frontend.memory.held == 0


async def test_who_holds_most_is_cut_off_where_all_hold_too_much(start: Start) -> None:
    frontend = await start("sleep", "other", limits=Limits(held_bytes=1_000_000))
    small = await dial(frontend.ports[0], '{"Queue": "sleep"}')
    big = json.dumps({"Queue": "other", "Args": ["x" * 20_000]}) + "\n"
    lines = [await dial(frontend.ports[0], HELLO + big * number) for number in (16, 20, 8)]
    await until(lambda: frontend.queues["other"].waiting == 44)
    assert frontend.toll.heavy == 0
    lines.append(await dial(frontend.ports[0], HELLO + big * 6))
    await until(lambda: frontend.toll.heavy == 1)
    await until(lambda: frontend.queues["other"].waiting == 30)
    assert await hear(lines[1]) == []
    assert frontend.queues["other"].disconnected == 20
    assert (await scrape(frontend.ports[2]))["hpa_peers_heavy_total"] == 1
    for line in (small, lines[0], lines[2], lines[3]):
        await line.close()
    await until(lambda: frontend.peers == 0)
    assert frontend.memory.held == 0
    assert adds_up(frontend.queues["other"])


async def test_requests_of_clients_that_left_are_let_go(start: Start) -> None:
    frontend = await start()
    queue = frontend.queues["sleep"]
    stays = await dial(frontend.ports[0], '{"Queue": "sleep", "Args": ["stays"]}')
    for number in range(1, 4):
        line = await dial(frontend.ports[0], HELLO + '{"Queue": "sleep"}\n' * 300)
        await until(lambda number=number: queue.accepted == 1 + 300 * number)
        await line.close()
        await until(lambda: queue.waiting == 1)
    assert len(queue.items) <= 66
    worker = await dial(frontend.ports[1], '{"Queue": "sleep"}')
    assert (await worker.hear())["Args"] == ["stays"]
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
    start: Start, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    frontend = await start()
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
    await until(lambda: frontend.toll.exhausted >= 6)
    used = time.process_time()
    for _ in range(10):
        await client.say('{"Queue": "sleep"}\n')
        assert (await worker.hear())["Error"] == ""
        await worker.say('{"Retcode": 0, "Queue": "sleep"}\n')
        assert (await client.hear())["Retcode"] == 0
        await asyncio.sleep(0.05)
    assert time.process_time() - used < 0.3  # it waits before it tries again
    assert frontend.peers == 2
    assert frontend.memory.held == 0
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    await until(lambda: frontend.peers == 4, 3)
    await asyncio.sleep(1.1)  # asyncio's own listener tries again after a second
    values = await scrape(frontend.ports[2])
    assert values["hpa_peers_unaccepted_total"] == frontend.toll.exhausted
    said = capfd.readouterr().err
    assert not caplog.records  # nor a traceback of asyncio's
    assert (
        said
        == "no connection can be accepted: Too many open files; those open are served, and it is tried again\n"
    )
    for peer in late:
        peer.close()


@pytest.mark.usefixtures("few_files")
async def test_connections_stay_below_the_limit_of_open_files(start: Start) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (1000, hard))
    assert (await start()).slots.total == 1000 - slots.RESERVE
    slots.raise_limit(1200)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (1200 + slots.RESERVE, hard)
    assert (await start(limits=Limits(peers=1200))).slots.total == 1200
    slots.raise_limit(10)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 1200 + slots.RESERVE  # never lowered


async def test_one_address_never_takes_every_connection(start: Start) -> None:
    frontend = await start(limits=Limits(peers=16))
    mine = [await dial(frontend.ports[0]) for _ in range(12)]
    await until(lambda: frontend.peers == 12)
    assert "from one address (12 of 16)" in (await (await dial(frontend.ports[0])).hear())["Error"]
    other = socket.create_connection(
        ("127.0.0.1", frontend.ports[0]), source_address=("127.0.0.2", 0)
    )
    await until(lambda: frontend.peers == 13)
    other.close()
    await until(lambda: frontend.peers == 12)
    await mine[0].close()
    again = await dial(frontend.ports[0], '{"Queue": "sleep"}')
    await until(lambda: frontend.queues["sleep"].waiting == 1)
    for line in (*mine[1:], again):
        await line.close()


async def test_one_address_never_takes_the_metrics_port(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "PEERS", 16)
    monkeypatch.setattr(web, "READ_SECONDS", 30)
    port = (await start()).ports[2]

    async def heard(source: str, text: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
        writer.write(text)
        answer = await asyncio.wait_for(reader.read(), 5)
        writer.close()
        return answer

    probe = b"GET /healthz HTTP/1.1\r\n\r\n"
    idle = [await dial(port) for _ in range(40)]
    assert b"too many connections from one address (12 of 16)" in await heard("127.0.0.1", b"")
    assert b" 200 OK" in await heard("127.0.0.2", probe)
    for line in idle:
        await line.close()
    assert b" 200 OK" in await heard("127.0.0.1", probe)


async def test_who_does_not_read_its_page_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "READ_SECONDS", 0.1)
    size = 16 << 20
    server = await web.serve(Address("127.0.0.1", 0), lambda _: web.Response(200, "x" * size))
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", server.sockets[0].getsockname()[1], limit=1024
    )
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    await asyncio.sleep(0.3)
    assert len(await asyncio.wait_for(reader.read(), 5)) < size
    writer.close()
    server.close()


def test_shares_of_connections() -> None:
    free = Slots(8, 1.0)
    assert [bool(free.take("a")) for _ in range(9)] == [False] * 8 + [True]
    v6 = Slots(8, 0.5)
    assert [bool(v6.take(f"2001:db8::{n}")) for n in range(7)] == [False] * 6 + [
        True
    ]  # neighbours count as one
    assert not v6.take("2001:db8:1::1%eth0")
    for n in range(7):
        v6.leave(f"2001:db8::{n}")
    v6.leave("2001:db8:1::1")
    assert v6.taken == 0
    assert not v6.hosts

"""The frontend under clients, backends and floods, and its metrics."""

import asyncio
import json
import random
import re
import time
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from perfdag.steps.queue import frontend as module
from perfdag.steps.queue.client import ClientStats
from perfdag.steps.queue.frontend import Frontend, Queue
from perfdag.steps.queue.manifests import Queues, manifests
from tests.queue.conftest import Dial, Loop, Start, StartBackends, until
from tests.queue.conversation import scrape

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "queue.json"
ASK = '{"Queue": "sleep"}'


def adds_up(queue: Queue) -> bool:
    ended = queue.success + queue.failure + queue.disconnected
    return queue.accepted == ended + queue.waiting + queue.running


async def test_an_item_goes_to_a_backend_of_its_queue(start: Start, dial: Dial) -> None:
    port, backend_port, _ = (await start("sleep", "other")).ports
    await dial(port, ASK)
    await dial(port, '{"Queue": "other", "Args": ["mine"]}')
    worker = await dial(backend_port, '{"Queue": "other"}')
    assert (await worker.receive())["Args"] == ["mine"]


@pytest.mark.parametrize(
    "data",
    [b"\0" * 100, b"{" * 200_000, b'{"Queue":"' + b"x" * 200_000, b"GET / HTTP/1.1\r\n\r\n"],
)
async def test_malicious_bytes_are_refused(start: Start, data: bytes, dial: Dial) -> None:
    frontend = await start()
    for port in frontend.ports[:2]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        try:
            answer = await asyncio.wait_for(reader.read(), 5)
            assert not answer or json.loads(answer)["Error"]
        except ConnectionError:
            pass
        writer.close()
    await until(lambda: not frontend.peers)
    line = await dial(frontend.ports[0], ASK)
    await until(lambda: frontend.queues["sleep"].waiting == 1)
    await line.close()
    await until(lambda: frontend.queues["sleep"].disconnected == 1)


@pytest.mark.slow
async def test_killed_backends_lose_nothing_silently(
    frontend: Frontend,
    client_stats: ClientStats,
    backends: StartBackends,
    closed_loop: Loop,
) -> None:
    kills = 8
    queue = frontend.queues["sleep"]
    replicas = backends(frontend, 6, "sleep", "0.02")
    loop = closed_loop(frontend, 12)
    chance = random.Random(7)
    await until(lambda: client_stats.success > 20)
    for _ in range(kills):
        victim = replicas.pop(chance.randrange(6))
        await asyncio.sleep(chance.uniform(0, 0.04))
        victim.kill()
        replicas += backends(frontend, 1, "sleep", "0.02")
        await until(lambda: queue.running >= 3)
    loop.set_parallel(0)
    await until(lambda: client_stats.pending == 0)
    assert adds_up(queue)
    assert (queue.waiting, queue.running, queue.disconnected) == (0, 0, 0)
    assert (client_stats.success, client_stats.failure) == (queue.success, queue.failure)
    lost = "No bytes (0) / error (EOF) from worker reply read"
    assert client_stats.causes == {lost: client_stats.failure}
    assert kills / 5 < client_stats.failure <= kills


async def test_a_silent_backend_is_given_up(
    frontend: Frontend, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REPLY_GRACE", 0.2)
    line = await dial(frontend.ports[0], '{"Queue": "sleep", "Limit": 0.1}')
    await dial(frontend.ports[1], ASK)
    began = time.monotonic()
    assert "worker reply read" in (await line.receive())["Error"]
    assert time.monotonic() - began < 2
    assert adds_up(frontend.queues["sleep"])


async def test_waiting_time_shows_while_items_wait_and_run(frontend: Frontend, dial: Dial) -> None:
    async def longest() -> float:
        return (await scrape(frontend.ports[2]))['hpa_queue_maxwait_seconds{name="sleep"}']

    assert await longest() == 0
    lines = [await dial(frontend.ports[0], ASK) for _ in range(2)]
    await asyncio.sleep(0.3)
    assert await longest() > 0.3
    await lines[0].close()
    worker = await dial(frontend.ports[1], ASK)
    assert await worker.receive()
    handed = await longest()
    await asyncio.sleep(0.1)
    assert await longest() == handed > 0.3  # the item runs: nobody waits any longer


async def test_times_are_told_and_impossible_ones_refused(frontend: Frontend, dial: Dial) -> None:
    for seconds, error in ((-9, "Runtime -9 is not valid"), (2.5, "")):
        line = await dial(frontend.ports[0], ASK)
        worker = await dial(frontend.ports[1], ASK)
        await worker.receive()
        await worker.send(f'{{"Node": "n", "Retcode": 0, "Runtime": {seconds}}}')
        assert error in (await line.receive())["Error"]
    want = {
        'hpa_queue_device_success_total{device="",name="sleep",node="n"}': 1,
        'hpa_queue_maxrun_seconds{name="sleep"}': 2.5,
        'hpa_queue_run_seconds_bucket{le="5.0",name="sleep"}': 1,
        'hpa_queue_run_seconds_bucket{le="1.0",name="sleep"}': 0,
        'hpa_queue_run_seconds_sum{name="sleep"}': 2.5,
    }
    assert (await scrape(frontend.ports[2])).items() >= want.items()


async def test_the_dashboard_and_the_adapter_ask_for_metrics_that_there_are(start: Start) -> None:
    frontend = await start('odd "name"\n\\', "sleep")
    queue = {"name": "sleep", "command": ["sleep", "1"], "autoscale": {"by": "custom"}}
    [rules] = [
        body["data"]["config.yaml"]
        for body in manifests(Queues.model_validate({"queues": [queue]}))
        if body["metadata"]["name"] == "perfdag-queue-adapter-rules"
    ]
    text = generate_latest(frontend.registry).decode()
    exposed = set(re.findall(r"^# TYPE (\w+)", text, re.M))
    used = set(re.findall(r"hpa_\w+?(?=_bucket|\b)", DASHBOARD.read_text()))
    used |= set(re.findall(r"(hpa_\w+){", rules))
    assert len(used) > 5
    assert used <= exposed
    assert 'hpa_queue_all{name="odd \\"name\\"\\n\\\\"} 0' in text


async def test_a_second_request_on_a_connection_is_refused(frontend: Frontend, dial: Dial) -> None:
    line = await dial(frontend.ports[0], ASK)
    await until(lambda: frontend.queues["sleep"].waiting == 1)
    await line.send(ASK)
    assert "more than one request" in (await line.receive())["Error"]
    await until(lambda: frontend.queues["sleep"].waiting == 0)


async def test_half_open_peers_are_cut_off(
    frontend: Frontend, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MESSAGE_SECONDS", 0.3)
    pieces = ["", "{", '{"Queue": "sle']
    lines = [await dial(frontend.ports[n % 2], pieces[n // 2]) for n in range(6)]
    answers = [(await line.receive())["Error"] for line in lines]
    assert answers == ["no complete message in 0.3 s"] * 6
    await until(lambda: not frontend.peers)

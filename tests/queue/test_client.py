"""Closed loops, live control, statistics and their pages."""

import asyncio
import html
import json
from functools import partial
from urllib.parse import urlencode

import pytest
from aiohttp.test_utils import make_mocked_request

from perfdag.steps.queue.client import ClientStats, Load, Times
from perfdag.steps.queue.control import Handler, answer, serve
from perfdag.steps.queue.frontend import Frontend
from perfdag.steps.queue.protocol import REPLY, Address
from tests.queue.conftest import Loop, StartBackends, until


def idle(client_stats: ClientStats) -> Handler:
    """The control port of a client that has sent nothing."""
    return partial(answer, Load(Address("localhost", 1), "q", client_stats, 8))


def get(control: Handler, path: str, **query: str) -> tuple[int, str]:
    response = control(
        make_mocked_request("GET", f"{path}?{urlencode({'type': 'plain', **query})}")
    )
    return response.status, response.text or ""


async def settled(client_stats: ClientStats, pending: int) -> None:
    """So many are in flight, and it stays like that for a moment."""
    async with asyncio.timeout(20):
        seen = 0
        while seen < 5:
            await asyncio.sleep(0.02)
            seen = seen + 1 if client_stats.pending == pending else 0


async def test_live_control_of_a_closed_loop(
    frontend: Frontend,
    client_stats: ClientStats,
    closed_loop: Loop,
    backends: StartBackends,
) -> None:
    backends(frontend, 3, "sleep", "0.02")
    control = partial(answer, closed_loop(frontend, 8))
    for expected, allowed in ((4, "4"), (99, "8"), (2, "2"), (-3, "0"), (3, "3")):
        assert get(control, "/parallel", value=str(expected)) == (200, f"{allowed}\n")
        await settled(client_stats, int(allowed))
    assert get(control, "/reset") == (200, "Reseted\n")  # while three are in flight
    assert client_stats.pending == 3
    await until(lambda: client_stats.success >= 5)
    assert get(control, "/parallel", value="0")[1] == "0\n"
    await settled(client_stats, 0)
    assert get(control, "/fails") == (200, "0\n")
    assert client_stats.run.least >= 0.02
    assert float(get(control, "/reqs-per-sec")[1]) > 0


@pytest.mark.parametrize(
    ("path", "query", "status", "message"),
    [
        ("/nope", {}, 404, ""),
        ("/stats", {"type": "xml"}, 400, "type 'xml'"),
        ("/parallel", {"value": "x"}, 400, "ERROR value 'x' is not a whole number"),
    ],
)
def test_control_refuses_what_it_does_not_know(
    path: str, query: dict[str, str], status: int, message: str
) -> None:
    code, text = get(idle(ClientStats()), path, **{"type": "html", **query})
    assert code == status
    assert message in html.unescape(text)


def test_errors_are_escaped(client_stats: ClientStats) -> None:
    client_stats.begin()
    reply = {**REPLY, "Node": "<i>n", "Device": '"d', "Error": "<b>bad</b>", "Retcode": 1}
    client_stats.finish(reply, 0, 0)
    control = idle(client_stats)
    page = get(control, "/nodes", type="html")[1]
    assert "<b>" not in page
    assert "<i>" not in page
    assert "&lt;b&gt;bad" in page
    assert "<b>bad</b>" in get(control, "/nodes")[1]
    assert json.loads(get(control, "/nodes", type="json")[1])["nodes"]["<i>n"]["errors"] == {
        "<b>bad</b>": 1
    }
    assert "<script>" not in get(control, "/parallel", type="html", value="<script>")[1]


def test_failures_are_counted_by_cause_and_device(client_stats: ClientStats) -> None:
    for n in range(40):
        client_stats.begin()
        reply = {**REPLY, "Pod": "p", "Node": "n1", "Device": f"card{n % 4}"}
        if n % 4 == 2 and n > 3:
            reply |= {"Retcode": 9, "Error": "x returned error code 9"}
        client_stats.finish(reply, 0, 0)
    stats = client_stats.as_json()
    assert stats["causes"] == {"x returned error code 9": 9}
    node = stats["nodes"]["n1"]
    assert (node["failed_devices"], node["devices"]["card1"]) == ({"card2": 9}, 10)
    assert "card1" in get(idle(client_stats), "/nodes")[1]


async def test_failures_of_the_network_are_counted(
    frontend: Frontend, client_stats: ClientStats, closed_loop: Loop
) -> None:
    loop = closed_loop(frontend, 2)
    await until(lambda: frontend.queues["sleep"].waiting == 2)
    await frontend.stop()
    await until(lambda: client_stats.causes["cannot connect"] >= 2)
    await loop.stop()
    assert client_stats.causes["connection lost"] == 2
    assert client_stats.pending == 0


def test_percentiles_within_one_percent_and_refused_below_their_samples() -> None:
    latencies = Times()
    for n in range(1, 459):
        latencies.add(n / 1000)
    assert latencies.summary()["p99"] is None
    latencies.add(0.459)
    seconds = latencies.summary()
    assert seconds == {
        **{"count": 459, "min": 0.001, "max": 0.459, "mean": pytest.approx(0.230)},
        **{"p50": 0.230, "p90": 0.414, "p95": 0.437, "p99": 0.455},
    }


SECRET = "Authorization: Bearer secret"


@pytest.mark.parametrize(
    ("token", "request_line", "header", "answer"),
    [
        ("secret", "GET /reset", SECRET, "405 /reset takes POST, not GET: curl -X POST ..."),
        ("secret", "GET /parallel?value=3", SECRET, "405 /parallel takes POST, not GET: curl"),
        ("secret", "POST /stats", SECRET, "405 "),
        ("secret", "POST /reset", "", "401 a token is needed"),
        ("secret", "POST /reset?type=plain", SECRET, "200 Reseted"),
        ("secret", "GET /fails?type=plain", "", "401 "),
        ("secret", "GET /fails?type=plain", "Authorization: Bearer wrong", "401 "),
        ("secret", "GET /fails?type=plain", "Authorization: Basic !!", "401 "),
        ("secret", "GET /fails?type=plain", "Authorization: Basic bWU6c2VjcmV0", "200 1"),
        ("secret", "GET /fails?type=plain", "X-Perfdag-Token: secret", "200 1"),
        ("secret", "GET /healthz", "", "200 ok"),
        # the requests of validate-scaling.sh
        ("", "GET /parallel?type=plain&value=0", "", "200 0"),
        ("", "GET /reset?type=plain", "", "200 Reseted"),
        ("", "GET /reqs-per-sec?type=plain", "", "200 0.0"),
        ("", "GET /fails?type=plain", "", "200 1"),
        ("", "GET /stats?type=plain", "", "200 \n\nOverall request"),
        ("", "GET /nodes", "", "200 <!doctype html>"),
        ("", "POST /reset?type=plain", "", "200 Reseted"),
    ],
)
async def test_a_token_guards_the_control_port_and_without_one_it_is_that_of_the_original(
    token: str, request_line: str, header: str, answer: str, client_stats: ClientStats
) -> None:
    client_stats.failed("lost")
    server = await serve(Address("127.0.0.1", 0), idle(client_stats), token)
    port = server.sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"{header}\r\n" if header else ""
    writer.write(f"{request_line} HTTP/1.1\r\nHost: x\r\n{head}\r\n".encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    assert f"{head.split()[1]} {body}".startswith(answer)
    assert client_stats.failure == ("Reseted" not in body)
    writer.close()
    server.close()

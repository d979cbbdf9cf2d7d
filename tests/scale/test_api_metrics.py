"""Requests and latencies between two scrapes of the API servers, which must be all of them."""

import asyncio
import socket
from itertools import chain
from typing import Any

import pytest

from perfdag.kube.client import Kube, KubeError
from perfdag.steps.scale import api_metrics
from perfdag.steps.scale.api_metrics import Calls, Scrape, delta, worst
from perfdag.steps.scale.figures import SLO, evaluate, parse_gate
from tests.fakes.api_server import ApiServer, failure

from .builders import observer_of, session_of


def lines(
    verb: str,
    *buckets: tuple[str, int],
    resource: str = "pods",
    sub: str = "",
    scope: str = "resource",
) -> list[str]:
    of = f'resource="{resource}",scope="{scope}",subresource="{sub}",verb="{verb}"'
    name = 'apiserver_request_duration_seconds_bucket{component="apiserver",dry_run="",group=""'
    return [f'{name},{of},version="v1",le="{le}"}} {count}' for le, count in buckets]


def scrape_of(*series: list[str]) -> Scrape:
    total = Scrape()
    for line in chain.from_iterable(series):
        api_metrics.add(total, line.encode())
    return total


def calls_of(*series: list[str]) -> list[Calls]:
    return delta(Scrape(), scrape_of(*series))


@pytest.mark.parametrize(
    ("requests", "counts"),
    [
        (
            [("PATCH", ""), ("PUT", "")],
            {"PATCH-pods-count": 30, "PUT-pods-count": 30, "UPDATE-pods-count": 30},
        ),
        (
            [("POST", ""), ("POST", "binding"), ("APPLY", "status")],
            {
                "POST-pods-count": 30,
                "CREATE-pods-count": 30,
                "POST-pods/binding-count": 30,
                "CREATE-pods/binding-count": 30,
                "PATCH-pods/status-count": 30,
            },
        ),
        ([("WATCH", ""), ("CONNECT", "exec"), ("GET", "log")], {}),
    ],
)
def test_requests_are_counted_under_their_names(
    requests: list[tuple[str, str]], counts: dict[str, int]
) -> None:
    calls = calls_of(*(lines(verb, ("+Inf", 30), sub=sub) for verb, sub in requests))
    assert api_metrics.counts(calls) == counts


def test_a_p99_wants_its_requests_and_rare_kinds_are_taken_together() -> None:
    rare = [lines(verb, ("0.1", 0), ("1", 200), ("+Inf", 200)) for verb in ("POST", "GET", "PUT")]
    few = calls_of(*rare[:2])
    assert worst(few) is None, "400 are too few for a p99"
    assert api_metrics.slowest(few) == 1.0
    assert worst(calls_of(*rare)) == pytest.approx(0.1 + 0.9 * 0.99)


def test_probes_of_the_api_server_are_no_requests_and_lists_are_their_own() -> None:
    """Quick answers to /readyz would hide slow requests."""
    listing = lines("LIST", ("1", 0), ("+Inf", 5), scope="cluster")
    emptied = lines("DELETECOLLECTION", ("1", 0), ("10", 4), ("+Inf", 4), scope="namespace")
    probes = lines("GET", ("0.005", 600), ("+Inf", 600), resource="", sub="/readyz", scope="")
    calls = calls_of(listing, emptied, probes, ["go_goroutines 5"])
    assert [call.verb for call in calls] == ["LIST", "DELETECOLLECTION"]
    assert worst(calls, least=1) is None
    assert worst(calls, "LIST", least=1) == 1.0, "beyond its last bucket: its lower bound"
    assert worst(calls, "DELETECOLLECTION", least=1) == pytest.approx(1 + 9 * 0.99)


def test_few_lists_or_none_show_their_limit_kept() -> None:
    slow = calls_of(lines("LIST", ("20", 9), ("60", 10), ("+Inf", 10), scope="cluster"))
    none = calls_of(lines("POST", ("1", 9), ("+Inf", 9)))
    for calls, want in ((slow, None), (none, True), ([], None)):
        assert evaluate(SLO[1:], api_metrics.latencies(calls))[0].passed is want


@pytest.mark.parametrize(("deletions", "held"), [(600, False), (20, True)])
def test_a_gate_sees_creation_and_deletion_together(deletions: int, held: bool) -> None:
    """600 quick creations; then 600 slow deletions, or 20, which are too few for a p99."""
    quick = lines("POST", ("0.1", 600), ("2", 600), ("+Inf", 600))
    slow = lines("DELETE", ("0.1", 0), ("2", deletions), ("+Inf", deletions))
    after = scrape_of(quick, slow)
    phases = {"creation": calls_of(quick), "deletion": delta(scrape_of(quick), after)}
    figures = api_metrics.figures(phases)
    assert (figures["api_p99"] or 9) < 0.1, "the creation's figure is its own"
    judged = api_metrics.latencies(delta(Scrape(), after))
    assert evaluate([parse_gate("api_p99 < 1")], figures | judged)[0].passed is held
    assert figures["deletion/DELETE-pods-count"] == deletions


@pytest.mark.parametrize(("second", "same"), [(7.0, True), (8.0, False)])
async def test_another_api_server_or_a_restarted_one_has_no_difference(
    second: float, same: bool
) -> None:
    """Behind a load balancer each scrape may be of another server."""
    starts = iter((7.0, second))

    class Balanced:
        async def lines(self, *_: Any) -> Any:
            yield b"process_start_time_seconds %f" % next(starts), 0

    server: Any = Balanced()
    session = session_of(server, observer_of(), servers=[server])
    session.scrapes = [await api_metrics.scrape([server])]
    await session.scrape("creation")
    assert ("creation" in session.phases) == bool(session.scrapes) == same
    assert bool(session.notes) != same


def control(hosts: list[str], renewed: list[str], port: int = 0) -> Kube:
    """A client of a control plane with API servers at these addresses, of which some renew a
    Lease.
    """
    endpoints = [{"addresses": [host]} for host in hosts]
    slices = [{"ports": [{"port": port}], "endpoints": endpoints}] if hosts else []
    leases = [{"spec": {"renewTime": f"2026-01-01T00:{at}Z"}} for at in renewed]
    server, no = ApiServer(), failure(403)
    server.on("/endpointslices", lambda _: {"metadata": {}, "items": slices} if slices else no)
    server.on("/leases", lambda _: {"metadata": {}, "items": leases} if leases else no)
    return server.client()


@pytest.mark.parametrize(
    ("hosts", "renewed"),
    [([], []), (["10.0.0.1"], ["00:01"]), (["10.0.0.1"], ["30:00", "00:01"])],
    ids=["nothing tells", "one", "one that was replaced"],
)
async def test_the_only_server_is_asked_as_ever(hosts: list[str], renewed: list[str]) -> None:
    kube = control(hosts, renewed)
    async with api_metrics.clients(kube) as servers:
        assert servers == [kube]


async def test_several_servers_are_asked_each_at_its_own_address_and_added_up() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = (await reader.readuntil(b"\r\n\r\n")).split()[1]
        number = writer.get_extra_info("sockname")[0][-1]
        text = [f"process_start_time_seconds {number}", *lines("POST", ("+Inf", int(number)))]
        body = b"{}" if request == b"/version" else "\n".join([*text, ""]).encode()
        head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
        writer.write(head + body)
        await writer.drain()
        writer.close()

    hosts = ["127.0.0.2", "127.0.0.3"]
    with socket.create_server((hosts[0], 0)) as free:
        port = free.getsockname()[1]
    server = await asyncio.start_server(serve, hosts, port)
    try:
        async with api_metrics.clients(control(hosts, [], port)) as servers:
            total = await api_metrics.scrape(servers)
    finally:
        server.close()
    assert total.started == [2.0, 3.0]
    assert api_metrics.counts(delta(Scrape(), total))["POST-pods-count"] == 5


async def test_where_not_all_can_be_asked_there_is_no_data() -> None:
    with pytest.raises(KubeError, match="2 API servers share 1 address"):
        async with api_metrics.clients(control(["10.0.0.1"], ["00:01", "00:09"])):
            pass
    async with api_metrics.clients(control(["127.0.0.1", "127.0.0.2"], [], 9)) as servers:
        with pytest.raises(KubeError, match=r"127\.0\.0\.1:9"):
            await api_metrics.scrape(servers)

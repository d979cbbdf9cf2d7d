"""Why a gang is not there, and what its lead reports."""

import asyncio
import contextlib
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from perfdag.hosts.base import Host
from perfdag.hosts.local import LocalHost
from perfdag.kube import client as kube_client
from perfdag.kube.client import KubeError
from perfdag.kube.pods import Pod, selector
from perfdag.plan.plan import make_plan
from perfdag.results.samples import SampleRecord
from perfdag.shape import Shape
from perfdag.steps.loop import PRECISE
from perfdag.steps.pods import gather, lead, peer
from perfdag.steps.pods.context import EXIT_REFUSED, EXIT_RETRYABLE
from perfdag.steps.pods.gather import GangPool, GangUnavailable
from perfdag.steps.pods.lead import ProgressReporter
from perfdag.store.base import FolderStore
from perfdag.suite.load import parse_suite
from tests.fakes.api_server import ApiServer

from .test_plan_step import place

SLEEPS = (
    "name: s\nentries:\n  - {benchmark: command, params: {argv: ['true']}, permutations: "
    "{product: {exit_code: [0, 1, 2, 3, 4]}}}\n"
)


def rank_pod(rank: int) -> dict[str, Any]:
    here = place()
    labels = dict(
        each.split("=") for each in selector(here.run_id, here.workflow, 0, 0).split(",")
    ) | {"perfdag/rank": str(rank)}
    return {
        "kind": "Pod",
        "metadata": {"name": f"rank-{rank}", "namespace": here.namespace, "labels": labels},
        "spec": {"nodeName": "n", "containers": []},
        "status": {"phase": "Running", "podIP": "10.0.0.1"},
    }


async def test_a_pod_that_is_deleted_before_the_gang_is_complete_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As by a drain. Argo creates such a pod again only if it never ran."""
    here, server = place(), ApiServer(rank_pod(0), rank_pod(1))
    monkeypatch.setattr(gather, "Kube", server.client)
    monkeypatch.setattr(gather, "GONE_SECONDS", 0.4)
    labels = selector(here.run_id, here.workflow, 0, 0)

    async def drain() -> None:
        await asyncio.sleep(0.5)
        async with server.client() as kube:
            await kube.delete(await kube.resource("v1", "Pod"), "rank-1", here.namespace)

    draining = asyncio.create_task(drain())
    with pytest.raises(GangUnavailable, match="rank-1 was deleted before the gang was complete"):
        await gather.running(here, labels, 3, 30.0, "ipv4")
    await draining


def test_a_peer_ends_if_its_lead_is_deleted_and_not_created_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = ApiServer(rank_pod(0), rank_pod(1))
    monkeypatch.setattr(kube_client, "Kube", server.client)
    monkeypatch.setattr(peer, "LOST_SECONDS", 0.2)
    watch, early = (peer.LeadWatch(place(), 0, 0) for _ in range(2))
    assert watch.exit_code() is None
    server.objects.pop(server.path(rank_pod(0)))
    assert watch.exit_code() is None
    time.sleep(0.3)
    assert watch.exit_code() == EXIT_RETRYABLE
    assert early.exit_code() is None, "a lead that was never there may come"


async def test_kept_pods_of_the_workflow_that_a_resume_continues_are_no_gang_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = place()
    pods = [rank_pod(rank) for rank in range(3)]
    for pod, phase in zip(pods, ("Running", "Failed"), strict=False):
        pod["metadata"]["labels"]["workflows.argoproj.io/workflow"] = "wf-of-yesterday"
        pod["status"]["phase"] = phase
    monkeypatch.setattr(gather, "Kube", ApiServer(*pods).client)
    labels = selector(here.run_id, here.workflow, 0, 0)
    assert list(await gather.running(here, labels, 1, 5.0, "ipv4")) == ["rank-2"]
    with pytest.raises(GangUnavailable, match="1 of 2 pods"):
        await gather.running(here, labels, 2, 0.0, "ipv4")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (GangUnavailable("x"), EXIT_RETRYABLE),
        (KubeError(403, "Forbidden", "may not"), EXIT_REFUSED),
    ],
)
def test_want_of_rights_is_noted_and_not_tried_again(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    plan = make_plan(parse_suite(SLEEPS))
    monkeypatch.setattr(lead, "assembled", Mock(side_effect=error))
    assert lead.lead(place(), store, plan, 0, 0) == code
    assert str(error) in store.get(f"runs/{plan.run_id}/notes/batch-0.json").decode()
    away = KubeError(503, "Unavailable", "no")  # it may be back for the next attempt
    monkeypatch.setattr(lead, "assembled", Mock(side_effect=away))
    with pytest.raises(KubeError):
        lead.lead(place(), store, plan, 0, 0)


def gang_of(*digests: str | None) -> dict[str, Pod]:
    """Running pods by name, one a node, the first of them the lead in `place()`."""
    names = [place().pod, *(f"p{rank}" for rank in range(1, len(digests)))]
    return {
        name: Pod(name, 0, 0, rank, "Running", f"node-{rank}", "127.0.0.1", image_digest=digest)
        for rank, (name, digest) in enumerate(zip(names, digests, strict=True))
    }


def hosts_on(*ranks: int) -> list[Host]:
    return [LocalHost(name=f"node-{rank}") for rank in ranks]


@pytest.mark.parametrize(
    ("digests", "used", "why"),
    [
        (
            ("a/i@sha256:aaa", "a/i@sha256:bbb"),
            (0, 1),
            "different images: sha256:aaa on node-0, sha256:bbb on node-1; ",
        ),
        (
            ("sha256:aaa", "sha256:bbb"),
            (0, 1),
            "different images: sha256:aaa on node-0, sha256:bbb on node-1; ",
        ),
        (("a/i@sha256:aaa", "mirror/i@sha256:aaa"), (0, 1), None),
        (("a/i@sha256:aaa", "sha256:ccc"), (0, 1), None),  # pulled here, loaded there
        (("a/i@sha256:aaa", None), (0, 1), None),
        (("a/i@sha256:aaa", "a/i@sha256:aaa", "a/i@sha256:bbb"), (0, 1), None),  # a pair of a gang
        (
            ("a/i@sha256:aaa", "a/i@sha256:aaa", "a/i@sha256:bbb"),
            (1, 2),
            "sha256:aaa on node-1, sha256:bbb on node-2",
        ),
    ],
)
def test_hosts_of_different_images_are_no_gang(
    digests: tuple[str | None, ...], used: tuple[int, ...], why: str | None
) -> None:
    shape = Shape.model_validate({"hosts": {"count": len(digests)}})
    there = GangPool(place(), shape, gather.Hosts([], gang_of(*digests)))
    result = there.misplacement(shape, hosts_on(*used))
    assert result is None if why is None else why in str(result)


@pytest.mark.parametrize(
    ("volume", "facts"),
    [
        ({"claim": "mine"}, {"volume_reused": True}),
        ({"access": "ReadWriteMany"}, {"volume_reused": True}),
        ({"access": "ReadWriteOnce"}, {}),
        ({"kind": "emptyDir"}, {}),
        ({"kind": "hostPath", "path": "/mnt/data"}, {"volume_reused": True}),
    ],
)
def test_a_volume_that_was_written_to_before_is_called_reused(
    store: FolderStore,
    monkeypatch: pytest.MonkeyPatch,
    volume: dict[str, str],
    facts: dict[str, bool],
) -> None:
    plan = make_plan(
        parse_suite(
            f"name: s\nentries: [{{benchmark: command, volume: {json.dumps(volume)}, params: "
            f"{{argv: ['true']}}}}]\n"
        )
    )
    seen: list[dict[str, Any]] = []
    hosts = gather.Hosts([LocalHost(name="node-0")], gang_of(None))
    monkeypatch.setattr(lead, "assembled", lambda *_: contextlib.nullcontext(hosts))
    monkeypatch.setattr(
        lead, "measure_batch", lambda store, plan, place, *_: seen.append(place.facts)
    )
    ours, next_workflow = place(), replace(place(), workflow_uid="another")
    for here, attempt in ((ours, 0), (ours, 1), (next_workflow, 0)):
        assert lead.lead(here, store, plan, 0, attempt) == 0
    fresh = {} if volume.get("access") == "ReadWriteMany" else facts
    assert seen == [fresh, facts, fresh], "a run that is resumed has claims of its own"


def test_a_folder_of_the_node_that_only_root_may_write_to_says_what_to_do(tmp_path: Path) -> None:
    shape = Shape.model_validate({"volume": {"kind": "hostPath", "path": "/mnt/data"}})
    advice = GangPool(place(), shape, gather.Hosts([], {})).advice
    wants = (
        "volume.path: make it writable for uid 1000, which pods run as: chown 1000 /mnt/data on "
        "the node"
    )
    assert advice(shape, "writing /perfdag/volume/x on n: Permission denied") == wants
    assert advice(shape, "writing /tmp/x on n: Permission denied") is None
    of_root = shape.model_copy(update={"privileges": ["mtu"]})
    assert advice(of_root, "writing /perfdag/volume/x on n: Permission denied") is None


def test_pods_without_an_address_of_the_family_are_no_gang() -> None:
    four = Pod("a", 0, 0, 0, "Running", "n", None, addresses=("10.0.0.1",))
    for family, expected in (("ipv6", 1), ("ipv4", 2)):
        with pytest.raises(GangUnavailable, match=f"a has no {family} address, only 10.0.0.1"):
            gather.require_family([four], family, expected)
    gather.require_family([four], "ipv4", 1)


@pytest.mark.parametrize(
    ("network", "message"),
    [({"mtu": 9000}, r"carry packets of 9000 bytes \(network.mtu\)\?$"), ({}, "[^?]$")],
)
def test_a_peer_that_no_ssh_reaches_may_be_behind_a_path_of_smaller_packets(
    network: dict[str, int], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather, "CONNECT_PATIENCE", 0.1)
    shape = Shape.model_validate({"image": "x", "hosts": {"count": 2}, "network": network})
    with pytest.raises(GangUnavailable, match=message):
        gather.add_peers(
            gather.Hosts([], {}),
            [Pod("a", 1, 0, 0, "Running", "n", "127.0.0.1")],
            tmp_path / "none",
            shape,
            "run",
        )


def test_the_address_of_an_extra_network_is_a_global_one() -> None:
    addresses = [{"local": "fe80::1", "scope": "link"}, {"local": "fd00::1", "scope": "global"}]
    shape = Shape.model_validate({"network": {"name": "a/b", "family": "ipv6"}})
    host = Mock(
        **{"run.side_effect": lambda *_, **__: Mock(stdout=json.dumps([{"addr_info": addresses}]))}
    )
    assert gather.extra_address(host, shape) == "fd00::1"
    addresses.pop()
    with pytest.raises(GangUnavailable, match="no address on net1"):
        gather.extra_address(host, shape)


def test_progress_is_told_to_argo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "progress"
    monkeypatch.setenv("ARGO_PROGRESS_FILE", str(file))
    monkeypatch.setattr("perfdag.steps.pods.lead.SUMMARY", str(tmp_path / "summary"))
    progress = ProgressReporter(4)
    assert file.read_text() == "0/4\n"
    point = make_plan(parse_suite(SLEEPS)).points[0]
    progress.finished(point, SampleRecord(point.id, 1, "failed", "it broke"))
    assert file.read_text() == "1/4\n"
    progress.skipped(point, 1, "stored before")
    assert file.read_text() == "1/4\n"
    progress.skipped(point, 4, PRECISE)
    assert file.read_text() == "2/4\n", "what `until` does not need is not waited for"
    assert capsys.readouterr().out.splitlines() == [
        f"1/4 failed command {point.label} repetition 1: it broke"
    ]


@pytest.mark.parametrize(
    ("better", "summary"),
    [
        ("lower", "streams=1 1.5 (1 to 2) Gbit/s, 2 of 3 points"),
        ("higher", "streams=4 8 Gbit/s, 2 of 3 points"),
    ],
)
def test_the_output_of_a_node_is_its_best_headline(
    better: str,
    summary: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ARGO_PROGRESS_FILE", str(tmp_path / "progress"))
    monkeypatch.setattr("perfdag.steps.pods.lead.SUMMARY", str(tmp_path / "summary"))
    text = "{name: s, entries: [{benchmark: iperf, permutations: {product: {streams: [1, 4, 8]}}}]}"
    points = make_plan(parse_suite(text)).points
    progress = ProgressReporter(5, points=3)
    assert (tmp_path / "summary").read_text() == "0 of 3 points"
    for point, repetition, value in (
        (points[0], -1, 9e9),
        (points[0], 1, 1e9),
        (points[0], 2, 2e9),
        (points[1], 1, 8e9),
    ):
        row = {"metric": "x", "headline": True, "value": value, "unit": "bit/s", "better": better}
        progress.finished(point, SampleRecord(point.id, repetition, "ok", rows=[row]))
    progress.finished(points[2], SampleRecord(points[2].id, 1, "failed", "it broke"))
    assert (tmp_path / "summary").read_text() == summary
    assert "4/5 ok iperf streams=4 repetition 1 8 Gbit/s" in capsys.readouterr().out


def test_progress_that_cannot_be_told_is_said_once_and_costs_no_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ARGO_PROGRESS_FILE", str(tmp_path / "no" / "such" / "folder"))
    ProgressReporter(2).skipped(make_plan(parse_suite(SLEEPS)).points[0], 4, PRECISE)
    assert capsys.readouterr().err.count("progress is not reported to Argo") == 1


def test_an_interrupt_while_all_peers_are_there_is_no_lost_gang() -> None:
    with pytest.raises(KeyboardInterrupt), gather.Hosts([], {}).watched():
        raise KeyboardInterrupt

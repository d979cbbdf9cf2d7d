"""Why a gang is not there, and what its lead reports."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from perfdag.benchmark.contract import Infrastructure
from perfdag.hosts.local import LocalHost
from perfdag.kube.pods import Pod, selector
from perfdag.plan import TimeLeft, make_plan
from perfdag.results.samples import SampleRecord
from perfdag.shape import Shape
from perfdag.steps.loop import PRECISE
from perfdag.steps.pods import lead
from perfdag.steps.pods.context import EXIT_RETRYABLE
from perfdag.steps.pods.lead import GangPool, ProgressReporter
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
        "status": {"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}]},
    }


async def test_kept_pods_of_the_workflow_that_a_resume_continues_are_no_gang_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = place()
    pods = [rank_pod(rank) for rank in range(3)]
    for pod, phase in zip(pods, ("Running", "Failed"), strict=False):
        pod["metadata"]["labels"]["workflows.argoproj.io/workflow"] = "wf-of-yesterday"
        pod["status"]["phase"] = phase
    monkeypatch.setattr(lead, "Kube", ApiServer(*pods).client)
    labels = selector(here.run_id, here.workflow, 0, 0)
    assert list(await lead.running(here, labels, Shape(), 5.0)) == [2]
    two = Shape.model_validate({"hosts": {"count": 2}})
    with pytest.raises(Infrastructure, match="1 of 2 pods"):
        await lead.running(here, labels, two, 0.0)


def test_why_a_gang_is_not_complete_is_the_message_of_its_lead(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch, termination_message: Path
) -> None:
    """The watchdog reads it there, as whoever looks at the node in Argo does."""
    plan = make_plan(parse_suite(SLEEPS))
    error = Infrastructure("1 of 2 pods ran within 60 s")
    monkeypatch.setattr(lead, "assembled", Mock(side_effect=error))
    assert lead.lead(place(), store, plan, 0, 0) == EXIT_RETRYABLE
    assert termination_message.read_text() == str(error)


def gang_of(*digests: str | None) -> dict[int, Pod]:
    """Running pods by rank, one a node."""
    return {
        rank: Pod(f"p{rank}", 0, 0, rank, "Running", f"node-{rank}", "127.0.0.1", image_digest=each)
        for rank, each in enumerate(digests)
    }


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
    there = GangPool(shape=shape, pods=gang_of(*digests))
    result = there.mismatch([LocalHost(name=f"node-{rank}") for rank in used])
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
    volume: dict[str, str], facts: dict[str, bool]
) -> None:
    shape = Shape.model_validate({"volume": volume})
    fresh = {} if volume.get("access") == "ReadWriteMany" else facts
    seen = [lead.pool_of(place(), shape, {}, attempt).facts for attempt in (0, 1)]
    assert seen == [fresh, facts]


def test_pods_without_an_address_of_the_family_are_no_gang() -> None:
    four = Pod("a", 0, 0, 0, "Running", "n", None, addresses=("10.0.0.1",))
    for family, count in (("ipv6", 1), ("ipv4", 2)):
        shape = Shape.model_validate({"hosts": {"count": count}, "network": {"family": family}})
        with pytest.raises(Infrastructure, match=f"a has no {family} address, only 10.0.0.1"):
            lead.require_family([four], shape)
    lead.require_family([four], Shape())


@pytest.mark.parametrize(
    ("network", "message"),
    [({"mtu": 9000}, r"carry packets of 9000 bytes \(network.mtu\)\?$"), ({}, "[^?]$")],
)
def test_a_peer_that_no_ssh_reaches_may_be_behind_a_path_of_smaller_packets(
    network: dict[str, int], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lead, "CONNECT_PATIENCE", 0.1)
    shape = Shape.model_validate({"image": "x", "hosts": {"count": 2}, "network": network})
    with pytest.raises(Infrastructure, match=message):
        GangPool(shape=shape, pods=gang_of(None, None)).connect("run", tmp_path / "none")


def test_the_address_of_an_extra_network_is_a_global_one() -> None:
    addresses = [{"local": "fe80::1", "scope": "link"}, {"local": "fd00::1", "scope": "global"}]
    shape = Shape.model_validate({"network": {"name": "a/b", "family": "ipv6"}})
    host = Mock(
        **{"run.side_effect": lambda *_, **__: Mock(stdout=json.dumps([{"addr_info": addresses}]))}
    )
    assert lead.extra_address(host, shape) == "fd00::1"
    addresses.pop()
    with pytest.raises(Infrastructure, match="no address on net1"):
        lead.extra_address(host, shape)


def test_progress_is_told_to_argo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "progress"
    monkeypatch.setenv("ARGO_PROGRESS_FILE", str(file))
    monkeypatch.setattr("perfdag.steps.pods.lead.SUMMARY", str(tmp_path / "summary"))
    progress = ProgressReporter(4, TimeLeft(), 0)
    assert file.read_text() == "0/4\n"
    point = make_plan(parse_suite(SLEEPS)).points[0]
    progress.finished(point, SampleRecord(point.id, 1, "failed", "it broke"))
    assert file.read_text() == "1/4\n"
    progress.skipped(point, 1, "stored before")
    assert file.read_text() == "1/4\n"
    progress.skipped(point, 4, PRECISE)
    assert file.read_text() == "2/4\n", "what `until` does not need is not waited for"
    assert capsys.readouterr().out.splitlines() == [
        f"1/4 failed command, {point.title}, repetition 1: it broke (about 0 ms left)"
    ]


@pytest.mark.parametrize(
    ("better", "summary"),
    [
        ("lower", "1 stream, 1.5 (1 to 2) Gbit/s, 2 of 3 points"),
        ("higher", "4 streams, 8 Gbit/s, 2 of 3 points"),
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
    progress = ProgressReporter(5, TimeLeft(), 3)
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
    assert "4/5 ok iperf, 4 streams, repetition 1 8 Gbit/s" in capsys.readouterr().out


def test_progress_that_cannot_be_written_costs_no_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARGO_PROGRESS_FILE", str(tmp_path / "no" / "such" / "folder"))
    ProgressReporter(2, TimeLeft(), 0).skipped(make_plan(parse_suite(SLEEPS)).points[0], 4, PRECISE)


def test_an_interrupt_while_all_peers_are_there_is_no_lost_gang() -> None:
    with pytest.raises(KeyboardInterrupt), GangPool().watched():
        raise KeyboardInterrupt

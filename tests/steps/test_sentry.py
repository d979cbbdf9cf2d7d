"""What the sentry gives up, and what it waits for."""

from pathlib import Path
from typing import Any

import pytest

from perfdag.parts import part_key
from perfdag.plan import make_plan
from perfdag.steps.pods import Pod, explain, read
from perfdag.steps.sentry import Sentry, complete, finished, nodes_of
from perfdag.store import FolderStore
from perfdag.suite import loads


@pytest.fixture
def sentry(tmp_path: Path) -> Sentry:
    plan = make_plan(loads("name: s\npending_limit: 60s\nentries: [{benchmark: command, params: {argv: ['true']}}]\n"))
    return Sentry(plan, FolderStore(str(tmp_path)))


def pod(trouble: str | None, *, hopeless: bool = False, attempt: int = 0, phase: str = "Pending", uid: str = "u") -> Pod:
    return Pod("p", 0, attempt, 0, phase, None, None, trouble, hopeless, None, uid)


def notes(tmp_path: Path) -> list[str]:
    return [file.read_text() for file in tmp_path.glob("runs/*/notes/*")]


def test_a_missing_image_is_noted_at_once_and_given_up_after_20_s(sentry: Sentry, tmp_path: Path) -> None:
    waiting = pod("ImagePullBackOff: no such image")
    assert sentry.look([waiting], 0) == []
    assert sentry.look([waiting], 4) == []
    assert "no such image" in notes(tmp_path)[0]
    assert sentry.look([pod(None)], 8) == []
    assert sentry.look([waiting], 21) == [waiting]


def test_the_retry_of_a_gang_given_up_is_given_up_at_once(sentry: Sentry) -> None:
    sentry.look([pod("ErrImageNeverPull: x", hopeless=True)], 0)
    assert sentry.look([pod("ErrImageNeverPull: x", hopeless=True)], 4)
    again = pod("ImagePullBackOff: x", attempt=1, uid="v")
    assert sentry.look([again], 10) == []
    assert sentry.look([again], 14) == [again]


def test_a_full_cluster_is_waited_for_until_pending_limit(sentry: Sentry) -> None:
    full = pod("Unschedulable: 0/1 nodes are available: 1 Insufficient cpu.")
    assert sentry.look([full], 0) == []
    assert sentry.look([full], 59) == []
    assert sentry.look([full], 61) == [full]


def test_the_reason_outlives_the_deadline_that_ends_the_gang(sentry: Sentry, tmp_path: Path) -> None:
    full = pod("Unschedulable: didn't match pod anti-affinity rules", uid="v")
    lead = pod("DeadlineExceeded: Pod was active on the node longer than the specified deadline", phase="Failed")
    sentry.look([full], 0)
    assert sentry.look([full], 61)
    sentry.look([lead, full], 64)
    assert ["anti-affinity" in each for each in notes(tmp_path)] == [True]


def test_oom_is_noted_and_left_to_the_gang(sentry: Sentry, tmp_path: Path) -> None:
    assert sentry.look([pod("OOMKilled: container main passed its memory limit of 64Mi", phase="Failed")], 0) == []
    assert "OOMKilled" in notes(tmp_path)[0]


def test_a_quota_is_noted(sentry: Sentry, tmp_path: Path) -> None:
    node: dict[str, Any] = {
        "type": "Pod",
        "phase": "Pending",
        "message": 'pods "x" is forbidden: exceeded quota: tight',
        "inputs": {"parameters": [{"name": "batch", "value": "0"}, {"name": "rank", "value": "0"}]},
    }
    sentry.refused({"n": node})
    assert "exceeded quota" in notes(tmp_path)[0]


def test_explain_prefers_the_container_over_the_condition() -> None:
    waiting = {"name": "main", "image": "i", "state": {"waiting": {"reason": "ErrImageNeverPull", "message": "not present"}}}
    body: dict[str, Any] = {
        "metadata": {"name": "p"},
        "spec": {"containers": []},
        "status": {"phase": "Pending", "containerStatuses": [waiting]},
    }
    assert explain(body) == ("ErrImageNeverPull: not present (container main, image i)", True)


def test_addresses_by_family() -> None:
    body: dict[str, Any] = {
        "metadata": {"name": "p", "labels": {"perfdag/batch": "3", "perfdag/attempt": "1", "perfdag/rank": "2"}},
        "spec": {"nodeName": "n", "containers": []},
        "status": {"phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]},
    }
    assert read(body).address == "10.0.0.1"
    assert read(body, "ipv6").address == "fd00::1"
    assert (read(body).batch, read(body).attempt, read(body).rank) == (3, 1, 2)


@pytest.mark.parametrize(("checks", "ends"), [("", True), ("checks: [{metric: wall_time, op: <, value: 1s}]\n", False)])
def test_it_ends_once_every_sample_is_stored_and_none_may_be_measured_again(tmp_path: Path, checks: str, ends: bool) -> None:
    plan = make_plan(loads(f"name: s\nentries: [{{benchmark: command, repetitions: 2, params: {{argv: ['true']}}}}]\n{checks}"))
    store, gone = FolderStore(str(tmp_path)), [pod(None, phase="Succeeded")]
    store.put(part_key(plan.run_id, plan.key(0)), b"{}")
    assert not complete(store, plan, gone)
    store.put(part_key(plan.run_id, plan.key(1)), b"{}")
    assert complete(store, plan, gone) == ends
    assert not complete(store, plan, [*gone, pod(None, phase="Running")])
    assert not complete(store, plan, [])


def test_finished_reads_compressed_nodes() -> None:
    import base64
    import gzip
    import json

    nodes = {"a": {"name": "w.batches", "phase": "Failed"}}
    packed = base64.b64encode(gzip.compress(json.dumps(nodes).encode())).decode()
    workflow: dict[str, Any] = {"metadata": {"name": "w"}, "spec": {}, "status": {"phase": "Running", "compressedNodes": packed}}
    assert nodes_of(workflow) == nodes
    assert finished(workflow)
    workflow["status"] = {"phase": "Running", "nodes": {"a": {"name": "w.batches", "phase": "Running"}}}
    assert not finished(workflow)

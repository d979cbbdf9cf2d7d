"""Whose objects the observer keeps, what is settled, and what becomes of a watch that cannot be
read, without a cluster.
"""

from typing import Any
from unittest.mock import AsyncMock

import pytest

from perfdag.kube.client import KubeError
from perfdag.steps.scale import figures, watch
from perfdag.steps.scale.objects import CLOCK_NS, SET, VMI
from perfdag.steps.scale.watch import Observer, settled
from tests.fakes.api_server import ApiServer, client

from .builders import observer_of, record, rows_for, submissions_of


def body(
    uid: str, owner: str = "", name: str = "", run: str = "", ready: bool = False
) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "uid": uid,
        "name": name or uid,
        "namespace": "ns",
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    if owner:
        metadata["ownerReferences"] = [{"uid": owner, "controller": True}]
    if run:
        metadata["labels"] = {"perfdag/run": run}
    return {
        "metadata": metadata,
        "spec": {},
        "status": {"conditions": [{"type": "Ready", "status": "True"}] if ready else []},
    }


def see(observer: Observer, kind: str, *bodies: dict[str, Any]) -> None:
    for item in bodies:
        observer.take(kind, item, 7)


@pytest.fixture
def ours() -> Observer:
    return observer_of()


def test_pods_of_others_are_neither_kept_nor_counted(ours: Observer) -> None:
    see(
        ours,
        "Pod",
        body("alone", ready=True),
        body("theirs", run="q", ready=True),
        body("p1", owner="other-job", ready=True),
    )
    see(ours, "Job", body("other-job", run="q"), body("job", run="r"))
    see(ours, "Pod", body("p2", owner="job", ready=True))
    assert [item.uid for item in (*ours.of("Job"), *ours.of("Pod"))] == ["job", "p2"]
    assert ours.count("Pod", "ready") == 1


@pytest.mark.parametrize("order", [("w", "j", "p"), ("p", "j", "w"), ("j", "p", "w")])
def test_the_chain_of_owners_counts_in_any_order_of_arrival(order: tuple[str, ...]) -> None:
    created = {
        "w": ("TrainingWorkload", body("w", name="j-abc-0")),
        "j": ("RunaiJob", body("j", owner="w")),
        "p": ("Pod", body("p", owner="j", ready=True)),
    }
    ours = observer_of(named=("TrainingWorkload", "j-abc-"))
    for item in order:
        see(ours, *created[item])
    assert ours.count("Pod", "ready") == ours.count("TrainingWorkload", "created") == 1


def test_warnings_of_other_objects_are_not_ours_unless_they_are_adopted_later(
    ours: Observer,
) -> None:
    see(ours, "Pod", body("late"), body("p", run="r"))
    see(ours, "Pod", body("late", owner="p"))
    for uid in ("p", "q", "late"):
        event = {
            "metadata": {},
            "involvedObject": {"uid": uid, "kind": "Pod"},
            "reason": "Failed",
            "type": "Warning",
            "message": "no",
        }
        see(ours, "Event", event)
    assert {own.uid: own.message for own in ours.of("Pod")} == {
        "p": "Failed: no",
        "late": "Failed: no",
    }
    see(ours, "Pod", body("p", run="r", ready=True))
    assert ours.records["p"].message == "", "a retry went well"


def test_a_replayed_stage_has_the_time_of_the_api(ours: Observer) -> None:
    """A pod that is scheduled 1 s after its creation while the watch is away for 6 s."""
    condition = {
        "type": "PodScheduled",
        "status": "True",
        "lastTransitionTime": "2026-01-01T00:00:01Z",
    }
    placed = body("p", run="r") | {"status": {"conditions": [condition]}}
    ours.take("Pod", body("p", run="r"), 1_000)
    ours.take("Pod", placed, 0)
    (row,) = [
        row
        for row in rows_for("Pod", *ours.records.values(), submitted="p")
        if row.stage == "scheduled"
    ]
    assert (row.seconds, row.resolution_s, row.source) == (1.0, 1.0, "api")


def test_times_of_a_server_whose_clock_is_ahead_are_those_of_our_clock(ours: Observer) -> None:
    ours.ahead_s = 30.0
    ours.take("Pod", body("p", run="r"), 0)
    row = ours.rows(submissions_of("p"), "Pod", None)[0]
    assert (row.stage, row.reached) == ("created", (row.api_time or 0) - 30)


@pytest.mark.parametrize("first", ["pod", "event"])
def test_a_pod_is_scheduled_when_it_has_a_node_whatever_its_event_says(
    ours: Observer, first: str
) -> None:
    """KAI records the Event Scheduled before it binds the pod."""
    event = {
        "metadata": {},
        "involvedObject": {"uid": "p", "kind": "Pod"},
        "reason": "Scheduled",
        "eventTime": "2026-01-01T00:00:01.5Z",
    }
    early = [("Pod", body("p", run="r"), 1_000), ("Event", event, 2_000)]
    for change in early if first == "pod" else early[::-1]:
        ours.take(*change)
    assert ours.count("Pod", "scheduled") == 0
    bound = body("p", run="r") | {"spec": {"nodeName": "n", "schedulerName": "kai-scheduler"}}
    ours.take("Pod", bound, 245_000_000)
    received = 245_000_000 + CLOCK_NS
    assert ours.records["p"].stages["scheduled"] == (1767225601_500000000, received)


def test_kai_names_the_evicted_pod_in_the_message_of_a_pod_group(ours: Observer) -> None:
    """Whichever PodGroup it is: of the preemptor, or of the victim."""
    see(ours, "PodGroup", body("group", run="r"))
    see(ours, "Pod", body("victim", run="r"), body("other", run="r"))
    event = {
        "metadata": {},
        "involvedObject": {"uid": "group", "kind": "PodGroup"},
        "reason": "Evict",
        "type": "Normal",
        "message": "Pod ns/victim was preempted by higher priority workload ns/urgent",
        "firstTimestamp": "2026-01-01T00:00:09Z",
    }
    see(ours, "Event", event, event | {"message": "no pod is named"})
    assert "evicted" in ours.records["victim"].stages
    assert "evicted" not in ours.records["other"].stages
    see(ours, "Event", event | {"message": "Pod ns/unknown was preempted by x"})


def pod(*conditions: tuple[str, str, str], **status: Any) -> dict[str, Any]:
    message = [
        {"type": name, "status": value, "reason": reason, "message": "0/3 nodes"}
        for name, value, reason in conditions
    ]
    return {**body("p", run="r"), "status": {"conditions": message, **status}}


def warning(reason: str, message: str) -> dict[str, Any]:
    return {
        "metadata": {},
        "involvedObject": {"uid": "p"},
        "reason": reason,
        "type": "Warning",
        "message": message,
    }


def test_what_was_mended_is_no_error_any_more(ours: Observer) -> None:
    """A pod that had no room at first, and then no image."""
    see(ours, "Pod", pod(("PodScheduled", "False", "Unschedulable")))
    see(ours, "Event", warning("FailedScheduling", "0/3 nodes"))
    assert ours.records["p"].message == "Unschedulable: 0/3 nodes"
    see(ours, "Pod", pod(("PodScheduled", "True", "")))
    see(ours, "Event", warning("Failed", "ErrImagePull: no such image"))
    rows = rows_for("Pod", *ours.records.values(), submitted="p")
    assert figures.messages(rows) == {"Failed: ErrImagePull: no such image": 1}, (
        "what `history --failures` searches"
    )


@pytest.mark.parametrize("end", ["Failed", "gone"])
def test_what_it_said_last_stays_when_it_is_over(end: str) -> None:
    ours, kind = observer_of(), "VirtualMachineInstance"
    see(ours, kind, pod(("Synchronized", "False", "NoDisk")))
    last = body("p", run="r")
    last["status"] = {"phase": end} if end == "Failed" else {}
    ours.take(kind, last, 7, deleted=end == "gone")
    assert ours.records["p"].error == ("NoDisk: 0/3 nodes" if end == "gone" else "Failed:")


def job_of_run(name: str, since: str = "2026-01-01T00:00:01Z") -> dict[str, Any]:
    done = {"type": "Complete", "status": "True", "lastTransitionTime": since}
    own = body(name, run="r") | {"apiVersion": "batch/v1", "kind": "Job"}
    return own | {"status": {"conditions": [done]}}


async def test_what_has_not_the_form_of_its_kind_ends_the_wait_with_an_error(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "server_offset", AsyncMock(return_value=0.0))
    jobs = [("batch/v1", "Job")]
    async with client(server) as kube, Observer(kube, "r", jobs, ["ns"], events=False) as ours:
        server.add(job_of_run("a"), job_of_run("odd", since="yesterday"))
        with pytest.raises(KubeError, match=r"a Job is not a valid.*yesterday"):
            await ours.until(lambda: ours.count("Job", "succeeded") == 2, 5.0)
    assert ours.count("Job", "succeeded") == 1, "leaving raises nothing, what was seen is kept"


@pytest.mark.parametrize(
    ("kind", "members", "lost", "want"),
    [
        ("Job", [("failed",)], 1, 0),
        ("Job", [("ready", "failed")], 1, 1),
        ("Job", [("ready", "gone"), ("ready",), ("ready",), ()], 3, 2),
        ("Job", [("ready", "succeeded"), ("succeeded", "gone"), ("ready",), ()], 6, 3),
        ("Deployment", [("failed",)], 1, 1),
        ("Deployment", [("failed",), ()], 1, 0),
        ("Deployment", [("gone",)], 1, 0),
        ("Deployment", [("failed",), ("ready",), ("ready",)], 3, 3),
        ("Deployment", [("ready", "failed"), ("ready",), ("ready",), ()], 3, 2),
        ("RayCluster", [("ready",), ("ready",)], None, 1),
        ("RayCluster", [("ready",), ()], None, 0),
        ("RayCluster", [("failed",), ("gone",)], None, 1),
        ("RayCluster", [], None, 0),
        (SET, [("running",)], 1, 1),
        (SET, [("failed",)], 1, 1),
        (SET, [("failed",), ("pending",)], 1, 0),
        (SET, [("failed",), ("running",)], 1, 1),
        (SET, [("running",), ("failed",), ("running",)], 3, 3),
        (SET, [("running",), ("failed",), ("pending",)], 2, 1),
        (SET, [("gone",)], 1, 0),
        (SET, [("running",), ("running",), ("running", "gone"), ("pending",)], 3, 2),
        (SET, [("running",), ("running",), ("running", "gone"), ("running",)], 3, 3),
    ],
    ids=str,
)
def test_of_a_workload_that_lost_members_those_that_stand_in_count(
    kind: str, members: list[tuple[str, ...]], lost: int | None, want: int
) -> None:
    """A Job tries again until it says that it failed; of others a failed pod is the end where none
    took its place.
    """
    inner, goal = (VMI, "running") if kind == SET else ("Pod", "ready")
    made = [
        record(inner, f"p{i}", "a", created=2, **dict.fromkeys(stages, 3))
        for i, stages in enumerate(members)
    ]
    observer = observer_of(record(kind, "a", created=1), *made)
    assert settled(observer, kind, lost, goal) == {("ns", "a"): want}


@pytest.mark.parametrize("kind", ["Pod", VMI])
@pytest.mark.parametrize("end", ["failed", "gone", "goal", "succeeded"])
def test_an_object_of_its_own_has_nobody_to_stand_in_for_it(kind: str, end: str) -> None:
    goal = "running" if kind == VMI else "ready"
    own = record(kind, "a", created=1, **{goal if end == "goal" else end: 2.0})
    observer = observer_of(own, record(kind, "b", created=1))
    assert settled(observer, kind, 1, goal) == {("ns", "a"): 1, ("ns", "b"): 0}

"""Objects become stages, records become rows, and rows become summaries."""

from collections.abc import Sequence
from typing import Any

import pytest

from perfdag.steps.scale.generate import Submission
from perfdag.steps.scale.objects import (
    EXTRACTORS,
    SET,
    VMI,
    Record,
    chain,
    kinds_of,
    unix_ns,
)
from perfdag.steps.scale.rows import (
    Row,
    on_simulated,
    rank,
    rows_of,
    summaries,
    throughput,
    with_deletion,
)

from .builders import BASE, SECOND, record, rows_for

VM = "VirtualMachine"


def condition(name: str, status: str = "True", **more: str) -> dict[str, str]:
    return {"type": name, "status": status, "lastTransitionTime": "2026-01-01T00:00:09Z", **more}


def stages_of(kind: str, status: Any, **metadata: Any) -> dict[str, tuple[int, bool]]:
    """Second and freshness by stage of an object that was created at second 0."""
    metadata = {"creationTimestamp": "2026-01-01T00:00:00Z", **metadata}
    seen = EXTRACTORS[kind]({"metadata": metadata, "spec": {}, "status": status})
    zero = unix_ns("2026-01-01T00:00:00Z")
    return {stage: ((at - zero) // 10**6 if at else -1, fresh) for stage, at, fresh in seen}


PHASES = [
    {"phase": phase, "phaseTransitionTimestamp": f"2026-01-01T00:00:0{at}Z"}
    for phase, at in (("Pending", "1"), ("Scheduled", "3.25"), ("Running", "4"))
]
WRITES = [
    {"time": "2026-01-01T00:00:09Z", "fieldsV1": {"f:metadata": {}}},
    {"time": "2026-01-01T00:00:05Z", "fieldsV1": {"f:status": {"f:phase": {}}}},
]


@pytest.mark.parametrize(
    ("kind", "status", "metadata", "want"),
    [
        (
            VMI,
            {"phase": "Running", "phaseTransitionTimestamps": PHASES},
            {},
            {"pending": (1000, False), "scheduled": (3250, False)},
        ),
        ("PersistentVolumeClaim", {"phase": "Bound"}, {"managedFields": WRITES}, {"bound": 5000}),
        (
            VMI,
            {},
            {"deletionTimestamp": "2026-01-01T00:01:00Z", "deletionGracePeriodSeconds": 30},
            {"deleting": 30_000},
        ),
        ("Pod", {"conditions": [condition("PodScheduled")]}, {}, {"scheduled": 9000}),
        (
            "Pod",
            {"conditions": [condition("PodScheduled", "False", reason="Unschedulable")]},
            {},
            {"scheduled": None},
        ),
        ("Job", {"conditions": [condition("Complete")]}, {}, {"succeeded": 9000}),
        (SET, {"readyReplicas": 1}, {}, {"ready": -1}),
        ("RayCluster", {"phase": "Ready", "conditions": ["x"]}, {}, {"ready": -1}),
    ],
)
def test_the_state_of_an_object_shows_its_stages(
    kind: str, status: Any, metadata: Any, want: dict[str, Any]
) -> None:
    seen = stages_of(kind, status, **metadata)
    assert seen["created"] == (0, True)
    for stage, expected in want.items():
        at = seen.get(stage)
        assert (at if isinstance(expected, tuple) else at and at[0]) == expected, stage


def test_a_restart_does_not_move_a_stage() -> None:
    pod = Record("Pod", "u", "n", "ns", "")
    assert pod.put("ready", 5 * SECOND, 7)
    assert not pod.put("ready", 50 * SECOND, 70)
    assert pod.stages == {"ready": (5 * SECOND, 7)}
    pod.put("ready", 5 * SECOND + 300)
    assert pod.stages["ready"] == (5 * SECOND + 300, 7), "an Event has the microseconds"


@pytest.mark.parametrize(
    ("kind", "between"),
    [
        ("Deployment", {"ReplicaSet"}),
        ("StatefulSet", set()),
        ("RayCluster", {"Deployment", "StatefulSet", "ReplicaSet", "Job"}),
    ],
)
def test_pods_of_any_kind_are_followed_by_their_owners(kind: str, between: set[str]) -> None:
    watched = {name for _, name in kinds_of("x.example.com/v1", kind)}
    assert watched == {kind, "Pod", "PersistentVolumeClaim", *between}
    assert {"scheduled", "ready", "submission_to_scheduled"} <= {s.name for s in chain(kind)}


FAILED_VMI = record(VMI, "v1", "a", created=0.02, pending=0.03, scheduling=0.04, failed=0.06)
NEXT_VMI = record(VMI, "v2", "a", created=0.08, scheduled=0.11, running=0.12)
GONE_POD = record("Pod", "p", "a", created=0.01, gone=0.05)
FAILED_POD = record("Pod", "p", "a", created=0.01, scheduled=0.02, failed=0.05)
NEXT_POD = record("Pod", "q", "a", created=0.06, scheduled=0.07, ready=0.09)
REPLACED = {
    "scheduled": ("ok", 0.01),
    "ready": ("ok", 0.02),
    "submission_to_scheduled": ("ok", 0.07),
}


@pytest.mark.parametrize(
    ("kind", "pods", "own", "others", "want"),
    [
        pytest.param(
            VMI,
            None,
            {"created": 0.01, "pending": 0.02, "scheduled": 0.09, "running": 0.1},
            [],
            {
                "scheduling": ("unobserved", None),
                "scheduled": ("unobserved", None),
                "creation_to_running": ("ok", 0.09),
            },
            id="an unseen stage before one that was seen, and what counts from it",
        ),
        pytest.param(
            VM,
            None,
            {"created": 0.01},
            [FAILED_VMI, NEXT_VMI],
            {"creation_to_running": ("ok", 0.11), "running": ("ok", 0.01)},
            id="a VM whose first VMI failed and was replaced runs",
        ),
        pytest.param(
            VM,
            None,
            {"created": 0.01},
            [FAILED_VMI],
            {"creation_to_running": ("censored", 59.99)},
            id="nothing stands in for a VMI that failed",
        ),
        *(
            pytest.param(kind, pods, {"created": 0.005}, others, want, id=f"{kind}: {name}")
            for kind, pods in (("Job", 1), ("Ours", None))
            for name, others, want in (
                ("a pod replaced before it was scheduled", [GONE_POD, NEXT_POD], REPLACED),
                ("a pod that is gone", [GONE_POD], {"scheduled": ("censored", 59.99)}),
            )
        ),
        pytest.param(
            "Job",
            1,
            {"created": 0.005},
            [FAILED_POD, NEXT_POD],
            {"ready": ("ok", 0.02)},
            id="a pod that failed before it was ready, and its successor",
        ),
        pytest.param(
            "Job",
            2,
            {"created": 0.005},
            [FAILED_POD, NEXT_POD],
            {"ready": ("censored", 59.93)},
            id="two pods were to be there",
        ),
        pytest.param(
            "Pod",
            1,
            {"created": 0.01, "scheduled": 0.02},
            [],
            {"ready": ("censored", 59.98)},
            id="a pod of its own that was scheduled and never ready",
        ),
        pytest.param(
            "Job",
            1,
            {"created": 0.005, "succeeded": 0.04},
            [record("Pod", "p", "a", created=0.01, scheduled=0.02, succeeded=0.03)],
            {"ready": ("unobserved", None), "submission_to_succeeded": ("ok", 0.04)},
            id="a Job that succeeded too fast for ready",
        ),
        pytest.param(
            "Job",
            1,
            {"created": 0.005, "failed": 0.04},
            [record("Pod", "p", "a", created=0.01, scheduled=0.02, failed=0.03)],
            {"ready": ("censored", 59.98), "submission_to_succeeded": ("unobserved", None)},
            id="a Job that failed before it was ready",
        ),
        pytest.param(
            "Job",
            1,
            {"created": 0.001},
            [record("Pod", "a-0", "another", created=0.001, scheduled=0.002)],
            {"first_pod_created": ("censored", 59.999)},
            id="names do not join, only owners do",
        ),
        *(
            pytest.param(VMI, None, {"created": 1, **own}, [], {stage: ("ok", seconds)}, id=stage)
            for own, stage, seconds in (
                ({"failed": 6, "deleting": 9, "gone": 10}, "creation_to_failed", 5),
                ({"running": 6, "deleting": 9, "failed": 11}, "deletion_to_failed", 2),
                ({"running": 6, "deleting": 9, "succeeded": 10}, "deletion_to_succeeded", 1),
            )
        ),
    ],
)
def test_what_was_seen_decides_status_and_seconds_of_a_row(
    kind: str,
    pods: int | None,
    own: dict[str, float],
    others: list[Record],
    want: dict[str, tuple[str, float | None]],
) -> None:
    """A stage that may still come has the time that it was waited for."""
    rows = {
        row.stage: row for row in rows_for(kind, record(kind, "a", **own), *others, members=pods)
    }
    for stage, (status, seconds) in want.items():
        assert rows[stage].status == status
        assert rows[stage].seconds == pytest.approx(seconds)
    if "deleting" in own:
        ends = [row.stage for row in rows.values() if row.stage.endswith(("_failed", "_succeeded"))]
        assert [stage for stage in ends if rows[stage].status == "ok"] == list(want)


def gang() -> list[Record]:
    """A distributed workload of 8 pods with a claim each."""
    own = (
        record("DistributedWorkload", "a", created=0.1),
        record("PyTorchJob", "j", "a", created=0.25),
    )
    records = [*own, record("PodGroup", "pg", "j", created=0.42)]
    for i in range(8):
        at = {"created": 0.3 + i / 100, "scheduled": 0.7 + i / 1000, "ready": 0.8 + i / 1000}
        claim = {"created": 0.31, "requested": 0.4 + i / 1000, "bound": 0.46 + i / 1000}
        records.append(record("Pod", f"p{i}", "j", **at))
        records.append(record("PersistentVolumeClaim", f"c{i}", f"p{i}", **claim))
    return records


def gang_rows(records: Sequence[Record]) -> dict[str, Row]:
    rows = rows_for("DistributedWorkload", *records, members=8)
    return {row.stage: row for row in rows}


def test_the_chain_of_a_distributed_workload_has_exact_deltas() -> None:
    rows = gang_rows(gang())
    want = {
        "workload_created": 0.1,
        "job_created": 0.15,
        "first_pod_created": 0.05,
        "last_pod_created": 0.12,
        "pod_group_created": 0.12,
        "scheduled": 0.287,
        "pvc_requested": -0.02,
        "first_pvc_bound": 0.06,
        "pvc_bound": 0.067,
        "ready": 0.1,
        "submission_to_scheduled": 0.707,
    }
    seen = {name: row.seconds for name, row in rows.items() if row.status == "ok"}
    assert seen == pytest.approx(want)
    assert (rows["evicted"].status, rows["evicted"].seconds) == ("unobserved", None)
    assert {row.source for row in rows.values() if row.status == "ok"} == {"watch"}


def test_a_late_pod_of_a_gang_counts_a_missing_one_censors_and_an_eviction_has_its_pair() -> None:
    records = gang()
    late = next(item for item in records if item.uid == "p3")
    late.stages["scheduled"] = 0, BASE + 9 * SECOND
    records[3].put("evicted", received_ns=BASE + 1_420_000_000)
    rows = gang_rows(records)
    assert rows["submission_to_scheduled"].seconds == pytest.approx(9.0)
    assert rows["evicted"].seconds == pytest.approx(1.0)
    row = gang_rows([item for item in gang() if item.uid != "p7"])["submission_to_scheduled"]
    assert row.status == "censored"
    assert row.seconds == pytest.approx(60.0), "how long it had waited"


def test_an_open_loop_counts_from_the_time_an_object_was_due() -> None:
    item = Submission(0, "a", "ns", BASE - SECOND, BASE, BASE + 1_000_000, "a")
    pod = record("Pod", "a", created=0.05, scheduled=0.1)
    rows = rows_of([item], {"a": pod}, run="r", kind="Pod", until_ns=BASE + SECOND)
    seconds = {row.stage: row.seconds for row in rows}
    assert seconds["created"] == pytest.approx(1.05)
    assert seconds["submission_to_ready"] == pytest.approx(2.0), "how long it had waited, too"


def test_a_set_of_vmis_has_a_row_for_each_of_them() -> None:
    vmis = [record(VMI, f"v{i}", "a", created=0.02 + i / 1000, running=1.02 + i) for i in range(2)]
    rows = rows_for(SET, record(SET, "a", created=0.01), *vmis, members=3, until=9)
    ran = [row for row in rows if row.stage == "creation_to_running"]
    assert [(row.index, row.name, row.uid, row.status) for row in ran] == [
        (0, "a-0", "v0", "ok"),
        (1, "a-1", "v1", "ok"),
        (2, "a-2", "a", "censored"),
    ]
    assert [row.seconds for row in ran] == pytest.approx([1.01, 2.01, 8.99])


@pytest.mark.parametrize("ahead", [-0.5, -0.2, 0.0, 0.02, 0.5])
@pytest.mark.parametrize("fine", [0, 1])
def test_whole_seconds_of_a_server_with_another_clock_are_unbiased(ahead: float, fine: int) -> None:
    """One end is of our clock, the other of the server's, which shows whole seconds: each is a
    second off, the mean is not.
    """
    took, results = round(0.3 * SECOND), list[dict[str, Row]]()
    for part in range(200):  # all parts of a second alike
        sent = BASE + part * SECOND // 200
        pod, done = Record("Pod", "a", "a", "ns", ""), sent + took + round(ahead * SECOND)
        pod.put("created", api_ns=done // SECOND * SECOND)
        api = (done + took) // SECOND * SECOND
        pod.put("scheduled", api_ns=api, received_ns=(sent + 2 * took) * fine)
        item = Submission(0, "a", "ns", sent, sent, sent, "a")
        until = BASE + 9 * SECOND
        rows = rows_of([item], {"a": pod}, run="r", kind="Pod", until_ns=until, ahead_s=ahead)
        results.append({row.stage: row for row in rows})
    for stage in ("created", "scheduled"):
        mean = sum(rows[stage].seconds or 0.0 for rows in results) / len(results)
        assert mean == pytest.approx(0.3, abs=0.01), stage
    assert {rows["created"].source for rows in results} == {"api"}
    assert {rows["created"].resolution_s for rows in results} == {1.0}


def test_rows_of_pods_have_their_deletion_and_nothing_that_came_by_it_or_ended_before() -> None:
    records = [record("Pod", name, created=1) for name in "abc"]
    records[0].put("scheduled", received_ns=BASE + 2 * SECOND)
    before = rows_for("Pod", *records, submitted="abc", until=5)
    for pod, gone in zip(records, (7, 7, 3), strict=True):
        pod.put("deleting", received_ns=BASE + 5 * SECOND)
        pod.put("gone", received_ns=BASE + gone * SECOND)
    records[1].put("scheduled", received_ns=BASE + 6 * SECOND)  # in the place of the first
    after = rows_for("Pod", *records, submitted="abc", until=5)
    merged = {(row.name, row.stage): row for row in with_deletion(before, after)}
    assert [merged[name, "deletion"].seconds for name in "abc"] == [2.0, 2.0, None]
    assert [merged[name, "scheduled"].status for name in "ab"] == ["ok", "censored"]


def test_rows_of_a_set_have_the_deletion_of_their_own_vmi() -> None:
    """Of 3 one never ran, and is not counted any more once it is gone; one was never made."""
    own = record(SET, "a", created=1)
    stuck, ran = record(VMI, "s", "a", created=1), record(VMI, "r", "a", created=2, running=3)
    before = rows_for(SET, own, stuck, ran, members=3, until=5)
    for item, stages in (
        (own, {"deleting": 5, "gone": 8}),
        (stuck, {"gone": 6}),
        (ran, {"deleting": 6, "succeeded": 7}),
    ):
        for stage, at in stages.items():
            item.put(stage, received_ns=BASE + at * SECOND)
    after = rows_for(SET, own, stuck, ran, members=3, until=5)
    merged = {(row.name, row.stage): row for row in with_deletion(before, after)}
    for stage, seconds in (
        ("deletion_to_succeeded", [None, 2.0, None]),
        ("vmi_deletion_to_succeeded", [None, 1.0, None]),
        ("deletion", [None, 3.0, 3.0]),
    ):
        rows = [merged[f"a-{i}", stage] for i in range(3)]
        assert [row.seconds for row in rows] == seconds, stage
        assert [(row.index, row.uid) for row in rows] == [(0, "s"), (1, "r"), (2, "a")]


@pytest.mark.parametrize(
    ("own", "text"),
    [
        ("", "FailedMount: no volume"),
        ("Unschedulable: no node", "Unschedulable: no node; FailedMount: no volume"),
        ("NotMounted: no volume", "NotMounted: no volume"),
    ],
)
def test_the_error_of_a_row_is_what_object_and_events_say(own: str, text: str) -> None:
    pod = record("Pod", "p", "root", created=1)
    pod.error, pod.warning = own, "FailedMount: no volume"
    assert pod.message == text
    pod.error = "Unschedulable: " + 400 * "x"
    assert "no volume" in pod.message[:300]


@pytest.mark.parametrize("fake", [None, {"n"}, set()])
def test_rows_say_whether_their_nodes_were_simulated(fake: set[str] | None) -> None:
    pod, want = record("Pod", "a", scheduled=1), None if fake is None else bool(fake)
    pod.node = "n"
    rows = rows_for("Pod", pod, simulated=fake)
    assert {row.simulated for row in rows} == {want}
    assert on_simulated(rows) is want
    assert on_simulated([]) is False, "what never had a node is on none"


def test_percentiles_count_the_censored_and_refuse_few_samples() -> None:
    def rows(ok: int, never: int) -> list[Row]:
        own = "r", 0, "x", "ns", "Pod", "", "ready", "created"
        seen = [Row(*own, "ok", float(i + 1)) for i in range(ok)]
        return seen + [Row(*own, "censored", 60.0)] * never

    (full,), (some,) = summaries(rows(100, 0)), summaries(rows(94, 6))
    stats = ("p50", "p95", "p99", "min", "max")
    assert [full.seconds[stat] for stat in stats] == [50.0, 95.0, None, 1.0, 100.0]
    assert [some.seconds[stat] for stat in ("p50", "p95")] == [50.0, None], "among the censored"
    assert some.count == {"ok": 94, "censored": 6}
    assert summaries(rows(89, 0))[0].seconds["p95"] is None
    assert rank([1.0] * 459, 0.99) == 1.0


def test_throughput_of_ten_a_second() -> None:
    assert throughput([i / 10 for i in range(200)]) == pytest.approx((10.0, 10.0))
    assert throughput([1.0]) == (None, None)

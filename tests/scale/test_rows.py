"""Records become rows, and results of runs become measurements."""

from dataclasses import asdict
from typing import Any

import orjson
import pytest

from perfdag.benchmark.contract import Output
from perfdag.benchmark.registry import get
from perfdag.outcome import VERDICT, Invalid, Measurement
from perfdag.steps.scale.figures import gates
from perfdag.steps.scale.figures.rows import (
    Clocks,
    Row,
    error_text,
    rank,
    rows_of,
    summaries,
    throughput,
)
from perfdag.steps.scale.measure.generator import Submission
from perfdag.steps.scale.measure.observer import settled
from perfdag.steps.scale.model.stages import (
    VMI,
    Record,
    extractor,
    failure,
    unix_ns,
)
from perfdag.steps.scale.scenarios.session import Result

SECOND = 1_000_000_000
BASE = 1_700_000_000 * SECOND


def vmi(*phases: tuple[str, str], **more: Any) -> dict[str, Any]:
    metadata = {"name": "v", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z", **more}
    stamps = [
        {"phase": phase, "phaseTransitionTimestamp": f"2026-01-01T00:00:{at}Z"}
        for phase, at in phases
    ]
    return {
        "metadata": metadata,
        "status": {"phase": phases[-1][0], "phaseTransitionTimestamps": stamps},
    }


class TestStages:
    @pytest.mark.parametrize(
        ("text", "time"),
        [
            ("2026-01-01T00:00:01Z", 1767225601_000000000),
            ("2026-01-01T00:00:01.123456789Z", 1767225601_123456789),
            ("2026-01-01T01:00:01.5+01:00", 1767225601_500000000),
            (None, 0),
        ],
    )
    def test_time(self, text: str | None, time: int) -> None:
        assert unix_ns(text) == time

    def test_all_phases_of_a_vmi_only_the_present_one_is_fresh(self) -> None:
        body = vmi(
            ("Pending", "01"), ("Scheduling", "02"), ("Scheduled", "03.25"), ("Running", "04")
        )
        seen = {
            stage: (at, fresh)
            for stage, at, fresh in extractor("", "VirtualMachineInstance")(body)
            if at
        }
        assert list(seen) == ["created", "pending", "scheduling", "scheduled", "running"]
        assert seen["scheduled"] == (unix_ns("2026-01-01T00:00:03.25Z"), False)
        assert seen["running"][1] is True

    def test_a_claim_is_bound_when_its_phase_was_written(self) -> None:
        """The object itself has no time for it: without a watch the API server's note of who
        wrote the status is all there is.
        """
        wrote = [
            {"time": "2026-01-01T00:00:09Z", "fieldsV1": {"f:metadata": {}}},
            {
                "time": "2026-01-01T00:00:05Z",
                "subresource": "status",
                "fieldsV1": {"f:status": {"f:phase": {}}},
            },
        ]
        body = {
            "metadata": {"name": "c", "uid": "u", "managedFields": wrote},
            "status": {"phase": "Bound"},
        }
        result = {stage: at for stage, at, _ in extractor("", "PersistentVolumeClaim")(body)}
        assert result["bound"] == unix_ns("2026-01-01T00:00:05Z")

    def test_failed_and_what_it_says(self) -> None:
        body = vmi(("Pending", "01"), ("Failed", "02"))
        body["status"]["message"] = "no\n room"
        assert "failed" in {stage for stage, _, _ in extractor("", "VirtualMachineInstance")(body)}
        assert failure(body)[0] == "Failed: no room"

    def test_deletion_is_the_moment_of_the_request_not_the_end_of_the_grace(self) -> None:
        body = vmi(
            ("Running", "01"),
            deletionTimestamp="2026-01-01T00:01:00Z",
            deletionGracePeriodSeconds=30,
        )
        result = {stage: at for stage, at, _ in extractor("", "VirtualMachineInstance")(body)}
        assert result["deleting"] == unix_ns("2026-01-01T00:00:30Z")

    def test_unschedulable_and_gated_are_not_scheduled(self) -> None:
        def stages(reason: str) -> set[str]:
            condition = {
                "type": "PodScheduled",
                "status": "False",
                "reason": reason,
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }
            return {
                stage
                for stage, _, _ in extractor("", "Pod")(
                    {"metadata": {}, "spec": {}, "status": {"conditions": [condition]}}
                )
            }

        assert stages("Unschedulable") == {"created", "unschedulable"}
        assert stages("SchedulingGated") == {"created", "gated"}

    def test_a_restart_does_not_move_a_stage(self) -> None:
        record = Record("Pod", "u", "n", "ns", "")
        assert record.put("ready", 5, 0, 7)
        assert not record.put("ready", 50, 0, 70)
        assert record.times("ready") == (5, 0, 7)
        assert record.times("gone") is None


def record(kind: str, uid: str, owner: str, /, **stages: int) -> Record:
    """Stages in ms of receive time after BASE."""
    created = Record(kind, uid, uid, "ns", owner)
    for stage, ms in stages.items():
        created.put(stage, received_ns=BASE + ms * 1_000_000)
    return created


def rows_for(
    records: list[Record], kind: str, expected: int | None = None, until: int = 60_000
) -> dict[str, Row]:
    item = Submission(0, "root", "ns", BASE, BASE, BASE + 1_000_000, "root")
    result = rows_of(
        [item],
        {entry.uid: entry for entry in records},
        Clocks(0),
        run="r",
        kind=kind,
        until_ns=BASE + until * 1_000_000,
        expected_pods=expected,
    )
    return {row.stage: row for row in result}


VM = "VirtualMachine"
FAILED_VMI = record(VMI, "v1", "root", created=20, pending=30, scheduling=40, failed=60)
NEXT_VMI = record(
    VMI, "v2", "root", created=80, pending=90, scheduling=100, scheduled=110, running=120
)
GONE_POD = record("Pod", "a", "root", created=10, gone=50)
FAILED_POD = record("Pod", "a", "root", created=10, scheduled=20, failed=50)
NEXT_POD = record("Pod", "b", "root", created=60, scheduled=70, ready=90)
NEVER_READY = {"ready": ("censored", 59.98)}
REPLACED = {
    "scheduled": ("ok", 0.01),
    "ready": ("ok", 0.02),
    "submission_to_scheduled": ("ok", 0.07),
}


def root(kind: str, **stages: int) -> Record:
    return record(kind, "root", "", **stages)


@pytest.mark.parametrize(
    ("kind", "pods", "records", "rows"),
    [
        pytest.param(
            VMI,
            None,
            [root(VMI, created=10, pending=20, scheduled=90, running=100)],
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
            [root(VM, created=10), FAILED_VMI, NEXT_VMI],
            {"creation_to_running": ("ok", 0.11), "running": ("ok", 0.01)},
            id="a VM whose first VMI failed and was replaced runs",
        ),
        pytest.param(
            VM,
            None,
            [root(VM, created=10), FAILED_VMI],
            {"creation_to_running": ("censored", 59.99)},
            id="nothing stands in for a VMI that failed",
        ),
        *(
            pytest.param(
                kind,
                pods,
                [root(kind, created=5), GONE_POD, NEXT_POD],
                REPLACED,
                id=f"a pod of a {kind} that was replaced before it was scheduled",
            )
            for kind, pods in (("Job", 1), ("Ours", None))
        ),
        *(
            pytest.param(
                kind,
                pods,
                [root(kind, created=5), GONE_POD],
                {"scheduled": ("censored", 59.99)},
                id=f"nothing stands in for a pod of a {kind} that is gone",
            )
            for kind, pods in (("Job", 1), ("Ours", None))
        ),
        pytest.param(
            "Job",
            1,
            [root("Job", created=5), FAILED_POD, NEXT_POD],
            {"ready": ("ok", 0.02)},
            id="a pod that failed before it was ready, and its successor",
        ),
        pytest.param(
            "Job",
            2,
            [root("Job", created=5), FAILED_POD, NEXT_POD],
            {"ready": ("censored", 59.93)},
            id="two pods were to be there",
        ),
        *(
            pytest.param(
                kind,
                1,
                [record("Pod", "p", "root", created=10, scheduled=20), root(kind, created=5)],
                NEVER_READY,
                id=f"a pod of a {kind} that was scheduled and never ready",
            )
            for kind in ("Job", "DistributedWorkload")
        ),
        pytest.param(
            "Pod",
            1,
            [root("Pod", created=10, scheduled=20)],
            NEVER_READY,
            id="a pod of its own that was scheduled and never ready",
        ),
        pytest.param(
            "Job",
            1,
            [
                root("Job", created=5, succeeded=40),
                record("Pod", "p", "root", created=10, scheduled=20, succeeded=30),
            ],
            {"ready": ("unobserved", None), "submission_to_succeeded": ("ok", 0.04)},
            id="a Job that succeeded too fast for ready",
        ),
        pytest.param(
            "Job",
            1,
            [
                root("Job", created=5, failed=40),
                record("Pod", "p", "root", created=10, scheduled=20, failed=30),
            ],
            {"ready": ("censored", 59.98), "submission_to_succeeded": ("unobserved", None)},
            id="a Job that failed before it was ready",
        ),
        pytest.param(
            "Job",
            1,
            [root("Job", created=1), record("Pod", "root-0", "another", created=1, scheduled=2)],
            {"first_pod_created": ("censored", 59.999)},
            id="names do not join, only owners do",
        ),
    ],
)
def test_what_was_seen_decides_the_status_and_seconds_of_a_row(
    kind: str,
    pods: int | None,
    records: list[Record],
    rows: dict[str, tuple[str, float | None]],
) -> None:
    """A stage that may still come has the time that it was waited for."""
    result = rows_for(records, kind, pods)
    assert {stage: result[stage].status for stage in rows} == {
        stage: status for stage, (status, _) in rows.items()
    }
    assert {stage: result[stage].seconds for stage in rows} == pytest.approx(
        {stage: seconds for stage, (_, seconds) in rows.items()}
    )


class TestRows:
    def runai_records(self) -> list[Record]:
        pods = [
            record("Pod", f"p{i}", "job", created=300 + 10 * i, scheduled=700 + i, ready=800 + i)
            for i in range(8)
        ]
        claims = [
            record(
                "PersistentVolumeClaim",
                f"c{i}",
                f"p{i}",
                created=310,
                requested=400 + i,
                bound=460 + i,
            )
            for i in range(8)
        ]
        return [
            record("DistributedWorkload", "root", "", created=100),
            record("PyTorchJob", "job", "root", created=250),
            record("PodGroup", "pg", "job", created=420),
            *pods,
            *claims,
        ]

    def test_the_chain_of_a_distributed_workload_has_exact_deltas(self) -> None:
        rows = rows_for(self.runai_records(), "DistributedWorkload", 8)
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
        assert {
            name: row.seconds for name, row in rows.items() if row.status == "ok"
        } == pytest.approx(want)
        assert rows["evicted"].status == "unobserved"
        assert rows["evicted"].seconds is None
        assert all(row.source == "receive" for row in rows.values() if row.status == "ok")

    def test_a_late_pod_of_a_gang_counts_a_missing_one_censors_and_an_eviction_has_its_pair(
        self,
    ) -> None:
        records = self.runai_records()
        late = next(item for item in records if item.uid == "p3")
        late.times_ns[3 * late.stages.index("scheduled") + 2] = BASE + 9_000_000_000
        records[3].put("evicted", received_ns=BASE + 1_420_000_000)
        rows = rows_for(records, "DistributedWorkload", 8)
        assert rows["submission_to_scheduled"].seconds == pytest.approx(9.0)
        assert rows["evicted"].seconds == pytest.approx(1.0)
        partly = [item for item in self.runai_records() if item.uid not in ("p7", "c7")]
        row = rows_for(partly, "DistributedWorkload", 8)["submission_to_scheduled"]
        assert row.status == "censored"
        assert row.seconds == pytest.approx(60.0), "how long it had waited"

    def test_an_open_loop_counts_from_the_time_an_object_was_due(self) -> None:
        item = Submission(0, "root", "ns", BASE - SECOND, BASE, BASE + 1_000_000, "root")
        created = record("Pod", "root", "", created=50, scheduled=100)
        rows = {
            row.stage: row
            for row in rows_of(
                [item], {"root": created}, Clocks(0), run="r", kind="Pod", until_ns=BASE + SECOND
            )
        }
        assert rows["created"].seconds == pytest.approx(1.05)
        assert rows["submission_to_scheduled"].seconds == pytest.approx(1.1)
        assert rows["submission_to_ready"].seconds == pytest.approx(2.0), (
            "how long it had waited, too"
        )
        assert (rows["created"].intended, rows["created"].submitted) == pytest.approx(
            ((BASE - SECOND) / 1e9, BASE / 1e9)
        )

    def test_a_set_of_vmis_has_a_row_for_each_of_them(self) -> None:
        own, kind = "VirtualMachineInstance", "VirtualMachineInstanceReplicaSet"
        created = [
            record(own, f"v{i}", "root", created=20 + i, running=1020 + 1000 * i) for i in range(2)
        ]
        pods = [record("Pod", f"p{i}", f"v{i}", created=30, scheduled=40 + i) for i in range(2)]
        item = Submission(3, "root", "ns", BASE, BASE, BASE + 1_000_000, "root")
        records = {
            entry.uid: entry for entry in [record(kind, "root", "", created=10), *created, *pods]
        }
        rows = list(
            rows_of(
                [item],
                records,
                Clocks(0),
                run="r",
                kind=kind,
                until_ns=BASE + 9 * SECOND,
                expected_pods=3,
            )
        )
        ran = [entry for entry in rows if entry.stage == "creation_to_running"]
        assert [(entry.index, entry.name, entry.uid, entry.status) for entry in ran] == [
            (9, "root-0", "v0", "ok"),
            (10, "root-1", "v1", "ok"),
            (11, "root-2", "root", "censored"),
        ]
        assert [entry.seconds for entry in ran] == pytest.approx([1.01, 2.01, 8.99])

    @pytest.mark.parametrize(
        ("vmis", "replicas", "want"),
        [
            ([("a", "running")], 1, 1),
            ([("a", "running", "failed")], 1, 1),
            ([("a", "failed")], 1, 1),
            ([("a", "failed"), ("a", "pending")], 1, 0),
            ([("a", "failed"), ("a", "running")], 1, 1),
            ([("a", "failed"), ("a", "running"), ("b", "pending")], 1, 1),
            ([("a", "running"), ("a", "failed"), ("a", "running")], 3, 3),
            ([("a", "running"), ("a", "failed"), ("a", "pending")], 2, 1),
            ([("", "gone")], 1, 1),
            ([("a", "gone")], 1, 0),
            (
                [("a", "running"), ("a", "running"), ("a", "running", "gone"), ("a", "pending")],
                3,
                2,
            ),
            (
                [("a", "running"), ("a", "running"), ("a", "running", "gone"), ("a", "running")],
                3,
                3,
            ),
        ],
    )
    def test_a_vmi_is_settled_once(
        self, vmis: list[tuple[str, ...]], replicas: int, want: int
    ) -> None:
        """One that went away is settled only where no owner puts another in its place."""
        created = [
            record("VirtualMachineInstance", f"v{i}", owner, **dict.fromkeys(stages, 1))
            for i, (owner, *stages) in enumerate(vmis)
        ]
        assert settled(created, replicas) == want

    def test_whole_seconds_of_the_api_say_so(self) -> None:
        own = "VirtualMachineInstance"
        created = Record(own, "root", "root", "ns", "")
        created.put("created", api_ns=BASE)
        created.put("running", api_ns=BASE + 3 * SECOND)
        row = rows_for([created], own)["creation_to_running"]
        assert (row.seconds, row.resolution_s, row.source) == (3.0, 1.0, "api")

    @pytest.mark.parametrize("ahead", [-0.5, -0.2, 0.0, 0.003, 0.02, 0.5])
    @pytest.mark.parametrize("fine", [0, 1])
    def test_whole_seconds_of_a_server_with_another_clock_are_unbiased(
        self, ahead: float, fine: int
    ) -> None:
        """One end is of our clock, the other of the server's, which shows whole seconds: each is
        a second off, the mean is not.
        """
        took, result = round(0.3 * SECOND), []
        for part in range(200):  # all parts of a second alike
            sent = BASE + part * SECOND // 200
            created = Record("Pod", "root", "root", "ns", "")
            done = sent + took + round(ahead * SECOND)
            created.put("created", api_ns=done // SECOND * SECOND, received_ns=0)
            created.put(
                "scheduled",
                api_ns=(done + took) // SECOND * SECOND,
                received_ns=(sent + 2 * took) * fine,
            )
            item = Submission(0, "root", "ns", sent, sent, sent, "root")
            rows = rows_of(
                [item],
                {"root": created},
                Clocks(0, ahead),
                run="r",
                kind="Pod",
                until_ns=BASE + 9 * SECOND,
            )
            result.append({row.stage: row for row in rows})
        for stage in ("created", "scheduled"):
            assert {entry[stage].status for entry in result} == {"ok"}
            assert sum(entry[stage].seconds or 0.0 for entry in result) / len(
                result
            ) == pytest.approx(0.3, abs=0.01), stage
        assert {entry["created"].source for entry in result} == {"mixed"}
        assert all((entry["created"].api_time or 0.5) % 1 == 0 for entry in result), (
            "the API's own second"
        )
        apart = [
            (entry["created"].reached or 0.0) - (entry["created"].api_time or 0.0)
            for entry in result
        ]
        assert apart == pytest.approx([-ahead] * len(apart), abs=1e-6), "by our clock"

    @pytest.mark.parametrize(
        ("own", "newer", "text"),
        [
            ("", False, "FailedMount: no such volume"),
            (
                "Unschedulable: no node",
                False,
                "Unschedulable: no node; FailedMount: no such volume",
            ),
            ("Unschedulable: no node", True, "FailedMount: no such volume; Unschedulable: no node"),
            ("NotMounted: no such volume", True, "NotMounted: no such volume"),
        ],
        ids=["an event", "the event is newer", "the object is newer", "both say the same"],
    )
    def test_the_error_of_a_row_is_what_the_object_and_events_say_the_newest_last(
        self, own: str, newer: bool, text: str
    ) -> None:
        pod = record("Pod", "p", "root", created=1)
        pod.error, pod.error_newer = own, newer
        warned = {"p": "FailedMount: no such volume", "another": "not ours"}
        assert error_text(pod, warned) == text

    def test_a_long_error_of_an_object_leaves_room_for_what_events_say(self) -> None:
        pod = record("Pod", "p", "root", created=1)
        pod.error = "Unschedulable: " + 400 * "x"
        assert error_text(pod, {"p": "FailedMount: no"})[:300].endswith("; FailedMount: no")

    def test_percentiles_count_the_censored_and_refuse_few_samples(self) -> None:
        def rows(ok: int, never: int) -> list[Row]:
            created = [
                Row("r", i, f"n{i}", "ns", "Pod", "", "ready", "created", "ok", float(i + 1))
                for i in range(ok)
            ]
            return (
                created
                + [Row("r", 0, "x", "ns", "Pod", "", "ready", "created", "censored", 60.0)] * never
            )

        (full,) = summaries(rows(100, 0))
        assert (full.p50, full.p95, full.p99) == (50.0, 95.0, None)
        (some,) = summaries(rows(94, 6))
        assert (some.p50, some.p95) == (50.0, None), "p95 falls among those that never came"
        assert (some.ok, some.censored) == (94, 6)
        assert summaries(rows(89, 0))[0].p95 is None
        assert rank([1.0] * 459, 0.99) == 1.0

    def test_throughput_of_ten_a_second(self) -> None:
        mean, best = throughput([i / 10 for i in range(200)])
        assert mean == pytest.approx(10.0)
        assert best == pytest.approx(10.0)
        assert throughput([1.0]) == (None, None)


CALLS = [
    {
        "phase": "creation",
        "call": "POST pods resource",
        "count": 600,
        "p99_s": 0.02,
        "low_s": 0.01,
        "high_s": 0.025,
    }
]


def result(kind: str, count: int, stuck: int = 0, **figures: float | None) -> dict[str, Any]:
    """A result of objects of which each takes 1 s a stage, the first `stuck` get no further than
    their creation, and i is i ms later.
    """
    way = (
        ("pending", "scheduling", "scheduled", "running") if kind == VMI else ("scheduled", "ready")
    )
    records, items = {}, []
    for i in range(count):
        record = Record(kind, f"u{i}", f"r-{i}", "ns", "")
        for second, stage in enumerate(("created", *(way if i >= stuck else ())), 1):
            record.put(stage, received_ns=BASE + second * SECOND + i * 1_000_000)
        record.put("deleting", received_ns=BASE + 20 * SECOND)
        record.put("gone", received_ns=BASE + 21 * SECOND)
        records[record.uid] = record
        items.append(Submission(i, record.name, "ns", BASE, BASE, BASE + 1, record.uid))
    rows = list(
        rows_of(
            items,
            records,
            Clocks(0),
            run="r",
            kind=kind,
            until_ns=BASE + 30 * SECOND,
            expected_pods=1,
        )
    )
    seen = {
        "success_ratio": (count - stuck) / count,
        "create_ratio": 1.0,
        "left_behind": 0.0,
        "api_p99": 0.02,
        "watch_lag_p99": 0.004,
    }
    facts = {"notes": [], "generator": [{"held": None}], "simulated": True}
    held = gates.evaluate(
        [gates.parse_gate("api_p99 < 1"), gates.parse_gate("creation_to_running_p50 < 2")],
        {"api_p99": 0.02},
    )
    whole = Result(
        "x",
        count,
        "r",
        rows,
        summaries(rows),
        {**seen, **figures},
        facts,
        held,
        [(0.0, 0), (3.0, count)],
        CALLS,
        1.0,
        2.0,
    )
    return asdict(whole)


def parse_result(benchmark: str, raw: dict[str, Any]) -> tuple[list[Measurement], Output]:
    benchmark_class: Any = get(benchmark)
    texts = {"result": raw} if benchmark == "scale" else {"results": {"results": [raw]}}
    output = Output({key: orjson.dumps(text).decode() for key, text in texts.items()})
    values: list[Measurement] = benchmark_class.parse(
        output, benchmark_class.Params.model_validate({})
    )
    assert {name for value in values for name in value.coords} <= set(benchmark_class.coords)
    return values, output


def values(measurements: list[Measurement], metric: str) -> dict[str, float]:
    return {
        measurement.stat: measurement.value
        for measurement in measurements
        if measurement.metric == metric
    }


@pytest.mark.parametrize(
    ("benchmark", "kind", "headline", "median"),
    [
        ("vmi-burst", VMI, "creation_to_running", 4.0),
        ("vmi-steady", VMI, "creation_to_running", 4.0),
        ("scale", "Pod", "submission_to_scheduled", 2.049),
    ],
)
def test_the_headline_the_objects_and_the_gates(
    benchmark: str, kind: str, headline: str, median: float
) -> None:
    measurements, output = parse_result(benchmark, result(kind, 100, churn_cycles=3.0))
    assert values(measurements, headline)["p50"] == pytest.approx(median)
    assert set(values(measurements, headline)) == {"p50", "p95"}, "100 are too few for a p99"
    known = {item.name for item in get(benchmark).metrics}
    assert {item.metric for item in measurements} - known == {VERDICT}
    stages = {str(item.coords["stage"]) for item in measurements if item.metric == "object_latency"}
    assert {
        "vmi-burst": "creation_to_running",
        "vmi-steady": "running",
        "scale": "submission_to_scheduled",
    }[benchmark] in stages
    assert {"created", "deletion"} <= stages
    verdicts = [
        (item.value, item.subject, item.note) for item in measurements if item.metric == VERDICT
    ]
    assert [verdict[0] for verdict in verdicts] == [1.0, 0.0], "no data is a breach"
    assert verdicts[0] == (1.0, "api_p99 < 1", "0.02 against 1")
    assert str(verdicts[1][2]).startswith("no data for ")
    assert values(measurements, "api_latency") == {"p99": 0.02}
    whole = orjson.loads(next(iter(output.texts.values())))
    rows = (whole if benchmark == "scale" else whole["results"][0])["rows"]
    assert len(rows) == 100 * len({item["stage"] for item in rows}), (
        "every stage of every object stays in the part"
    )
    assert stages == {item["stage"] for item in rows if item["status"] == "ok"}, (
        "the charts have every stage that was seen"
    )
    assert {"api_time", "event_time", "receive_time", "source", "resolution_s"} <= set(rows[0])


def test_a_steady_state_has_its_cycles_and_the_trace() -> None:
    measurements, _ = parse_result("vmi-steady", result(VMI, 9, churn_cycles=3.0))
    assert values(measurements, "churn_cycles") == {"value": 3.0}
    assert [
        (measurement.coords["seconds"], measurement.value)
        for measurement in measurements
        if measurement.metric == "running"
    ] == [
        (0.0, 0.0),
        (3.0, 9.0),
    ]


@pytest.mark.parametrize(
    ("benchmark", "stuck", "changes", "message"),
    [
        pytest.param("vmi-steady", 5, {}, "5.0% of 100 never ran", id="VMIs that never ran"),
        pytest.param("scale", 5, {}, "5.0% did not reach the goal", id="pods that missed"),
        *(
            pytest.param(benchmark, 0, changes, message, id=f"{benchmark}: {message}")
            for benchmark in ("vmi-burst", "vmi-steady", "scale")
            for changes, message in (
                ({"disturbed": "performance run x took it over"}, "run x took it over"),
                ({"left_behind": 2.0}, "left behind: 2 objects"),
            )
        ),
    ],
)
def test_an_invalid_result_keeps_its_rows(
    benchmark: str, stuck: int, changes: dict[str, Any], message: str
) -> None:
    raw = result("Pod" if benchmark == "scale" else VMI, 100, stuck, churn_cycles=1.0)
    raw["figures"] |= {key: value for key, value in changes.items() if key in raw["figures"]}
    with pytest.raises(Invalid, match=message) as caught:
        parse_result(benchmark, raw | changes)
    assert caught.value.measurements
    missing = [item for item in caught.value.measurements if item.metric == "object_missing"]
    assert {item.subject for item in missing} == {f"r-{i}" for i in range(stuck)}

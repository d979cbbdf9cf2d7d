"""When all is there: pods by owners of any kind, VMIs of sets; what a sample refuses before it
writes.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson
import pytest

from perfdag.commands import scale
from perfdag.kube.client import KubeError
from perfdag.steps.scale.figures.rows import Clocks, Row, rows_of, with_deletion
from perfdag.steps.scale.measure.generator import GeneratorResult, Schedule, Submission
from perfdag.steps.scale.measure.observer import Observer, expected_count, reached
from perfdag.steps.scale.model.stages import VMI, Record, chain, kinds_of
from perfdag.steps.scale.model.templates import TemplateError, load
from perfdag.steps.scale.runai import sample, submit, times_csv
from perfdag.steps.scale.runai import settings as runai
from perfdag.steps.scale.runai.run_file import RunFile, write_run
from perfdag.steps.scale.scenarios import vmi
from tests.conftest import CommandLine
from tests.fakes.api_server import ApiServer

from .sessions import session_of
from .test_lock import FUTURE, held_by

SECOND = 1_000_000_000
BASE = 1_700_000_000 * SECOND
SET = "VirtualMachineInstanceReplicaSet"


def record(kind: str, uid: str, owner: str = "", /, **stages: float) -> Record:
    new = Record(kind, uid, uid, "ns", owner)
    for stage, seconds in stages.items():
        new.put(stage, received_ns=BASE + round(seconds * SECOND))
    return new


def observer_of(*records: Record) -> Observer:
    observer = Observer(None, "r", [], ["ns"])  # type: ignore[arg-type]
    for item in records:
        observer.adopt(item)
    return observer


def submissions_of(*names: str) -> list[Submission]:
    return [Submission(i, name, "ns", BASE, BASE, BASE + 1, name) for i, name in enumerate(names)]


class TestAnyKind:
    @pytest.mark.parametrize(
        ("kind", "between"),
        [
            ("Deployment", {"ReplicaSet"}),
            ("StatefulSet", set()),
            ("RayCluster", {"Deployment", "StatefulSet", "ReplicaSet", "Job"}),
        ],
    )
    def test_pods_of_a_kind_without_a_chain_of_its_own_are_followed_by_their_owners(
        self, kind: str, between: set[str]
    ) -> None:
        assert {name for _, name in kinds_of("x.example.com/v1", kind)} == {
            kind,
            "Pod",
            "PersistentVolumeClaim",
            *between,
        }
        assert {"scheduled", "ready", "submission_to_scheduled"} <= {
            step.name for step in chain("x.example.com/v1", kind)
        }

    def test_where_the_number_of_pods_is_not_known_each_workload_has_some_and_all_are_ready(
        self,
    ) -> None:
        own = [record("RayCluster", name, created=1) for name in "abc"]
        pods = [
            record("Pod", "a1", "a", ready=2),
            record("Pod", "a2", "a", ready=2),
            record("Pod", "b1", "b", ready=2),
            record("Pod", "b2", "b"),
        ]
        observer, items = observer_of(*own, *pods), submissions_of(*"abc")
        enough = expected_count(items, None)
        assert (reached(observer, "ray.io/v1", "RayCluster", None, enough), enough) == (1, 3)
        observer.note(observer.records["b2"], "ready", 0, 0, 1)
        observer.adopt(record("Pod", "c1", "c", failed=3))
        observer.adopt(record("Pod", "c2", "c", gone=3))
        assert reached(observer, "ray.io/v1", "RayCluster", None, enough) == 3, (
            "one that was replaced does not count"
        )

    @pytest.mark.parametrize(
        ("kind", "pods", "members", "want"),
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
        ],
        ids=str,
    )
    def test_of_a_workload_that_lost_pods_those_that_stand_in_count(
        self, kind: str, pods: Any, members: int, want: int
    ) -> None:
        """A Job tries again until it says that it failed; of others a failed pod is the end
        where none took its place.
        """
        created = [
            record("Pod", f"p{i}", "a", created=2, **dict.fromkeys(stages, 3))
            for i, stages in enumerate(pods)
        ]
        observer = observer_of(record(kind, "a", created=1), *created)
        assert (
            reached(observer, "batch/v1" if kind == "Job" else "apps/v1", kind, members, 0) == want
        )

    @pytest.mark.parametrize(
        "stages", [("failed",), ("gone",), ("ready",), ("ready", "gone"), ("succeeded",)]
    )
    def test_a_pod_of_its_own_has_nobody_to_stand_in_for_it(self, stages: tuple[str, ...]) -> None:
        observer = observer_of(
            record("Pod", "a", created=1, **dict.fromkeys(stages, 2)), record("Pod", "b", created=1)
        )
        assert reached(observer, "v1", "Pod", 1, 1) == 1

    async def test_a_gate_is_waited_for_on_a_pod_of_each_workload(self) -> None:
        """Of 2 Jobs one has a pod in the place of another that was deleted; the other has none
        yet.
        """
        gone, run = (
            record("Pod", "a0", "a", created=2, gated=2, gone=3),
            record("Pod", "a1", "a", created=3, gated=3),
        )
        observer = observer_of(
            record("Job", "a", created=1), record("Job", "b", created=1), gone, run
        )
        template = load("job", "r", gated=True)
        session = session_of(
            None, observer, template, expected_pods=1, submissions=submissions_of("a", "b")
        )
        assert session.progress("gated") == (1, 2)
        assert not await session.all_reached(0.05, "gated")
        observer.adopt(record("Pod", "b0", "b", created=3, gated=3))
        assert await session.all_reached(0.05, "gated")

    def test_what_has_no_pods_is_there_once_it_is_created_and_no_workload(self) -> None:
        observer = observer_of(record("ConfigMap", "a", created=1))
        assert (
            reached(observer, "v1", "ConfigMap", None, 1),
            expected_count(submissions_of("a"), None),
        ) == (
            1,
            1,
        )
        assert [step.name for step in chain("v1", "ConfigMap")] == ["created", "deletion"]

    @pytest.mark.parametrize(
        ("api_version", "kind", "pods"),
        [
            ("v1", "Service", False),
            ("networking.k8s.io/v1", "Ingress", False),
            ("policy/v1", "PodDisruptionBudget", False),
            ("serving.knative.dev/v1", "Service", True),
            ("cluster.x-k8s.io/v1", "Service", True),
        ],
    )
    def test_a_kind_of_another_group_is_not_that_of_kubernetes_with_its_name(
        self, api_version: str, kind: str, pods: bool
    ) -> None:
        assert (("v1", "Pod") in kinds_of(api_version, kind)) == pods
        assert ("ready" in {step.name for step in chain(api_version, kind)}) == pods
        assert reached(observer_of(record(kind, "a", created=1)), api_version, kind, None, 1) == (
            0 if pods else 1
        )
        until = BASE + 9 * SECOND
        rows = rows_of(
            submissions_of("a"),
            {},
            Clocks(0),
            run="r",
            kind=kind,
            api_version=api_version,
            until_ns=until,
        )
        assert ("submission_to_scheduled" in {row.stage for row in rows}) == pods

    @pytest.mark.parametrize(
        ("text", "members"),
        [
            (
                "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: '${name}'}\n"
                "spec: {replicas: 3}",
                3,
            ),
            ("apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: '${name}'}\nspec: {}", 1),
            (
                "apiVersion: batch/v1\nkind: Job\nmetadata: {name: '${name}'}\n"
                "spec: {parallelism: 2, completions: 6}",
                6,
            ),
            (
                "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\n"
                "metadata: {name: '${name}'}\nspec: {tasks: []}",
                None,
            ),
            (
                "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: '${name}'}\n"
                "spec: {}",
                None,
            ),
            ("apiVersion: ray.io/v1\nkind: RayCluster\nmetadata: {name: '${name}'}", None),
        ],
    )
    def test_how_many_pods_there_shall_be_is_read_from_the_template(
        self, text: str, members: int | None
    ) -> None:
        assert load(f"{text}\n", "r").members == members
        assert (
            load("vmirs", "r", {"workers": 4}).members
            == load("distributed", "r", {"workers": 3}).members
            == 4
        )
        assert load("pytorchjob", "r", {"workers": 3}).members == 4


class TestVmis:
    def test_a_sample_of_sets_is_complete_when_all_vmis_of_all_sets_run(self) -> None:
        """3 sets of 4; launcher pods that are ready are no VMIs that run."""
        sets = [record(SET, name, created=1) for name in "abc"]
        vmis = [
            record(VMI, f"{name}{i}", name, created=1, running=2)
            for name in "abc"
            for i in range(4)
        ]
        pods = [record("Pod", f"p{item.uid}", item.uid, ready=2) for item in vmis]
        file = RunFile(
            "r", "kubevirt.io/v1", SET, ["ns"], "p", 1, 4, True, submissions_of(*"abc"), {}
        )
        observer = observer_of(*sets, *pods, *vmis[:3])
        assert not sample.is_complete(observer, file)
        for item in vmis[3:]:
            observer.adopt(item)
        assert sample.is_complete(observer, file)
        assert sample.progress(observer, file) == (12, 12)

    async def test_what_was_churned_away_is_waited_for_no_more(self) -> None:
        """Of 4 VMIs one never ran and was deleted in a cycle: the next wait is for the other 3
        alone.
        """
        records = [
            record(VMI, f"v{i}", created=1, **({"running": 2.0} if i else {})) for i in range(4)
        ]
        items = submissions_of(*(item.uid for item in records))
        session = session_of(None, observer_of(*records), load("vmi", "r"), submissions=items)
        spec = vmi.Spec(timeout=0.05)
        assert not await vmi.all_settled(session, spec)
        session.deleted.add("v0")
        assert await vmi.all_settled(session, spec)
        records[1].put("gone")
        assert await vmi.all_settled(session, spec), "one that ran, ran"

    def test_failure_by_itself_and_by_deletion_are_two_latencies(self) -> None:
        def latencies(**stages: float) -> dict[str, float | None]:
            created = record(VMI, "a", created=1, scheduling=2, scheduled=4, **stages)
            rows = list(
                rows_of(
                    submissions_of("a"),
                    {"a": created},
                    Clocks(0),
                    run="r",
                    kind=VMI,
                    until_ns=BASE + 99 * SECOND,
                )
            )
            assert {
                row.stage: row.seconds
                for row in rows
                if row.stage in ("creation_to_scheduling", "creation_to_scheduled")
            } == {"creation_to_scheduling": 1.0, "creation_to_scheduled": 3.0}
            return {
                row.stage: row.seconds
                for row in rows
                if row.stage.endswith(("_to_failed", "_to_succeeded")) and row.status == "ok"
            }

        assert latencies(failed=6, deleting=9, gone=10) == {"creation_to_failed": 5.0}
        assert latencies(running=6, deleting=9, failed=11) == {"deletion_to_failed": 2.0}
        assert latencies(running=6, deleting=9, succeeded=10) == {"deletion_to_succeeded": 1.0}


def test_rows_of_pods_have_their_deletion_and_nothing_that_came_by_it_or_ended_before() -> None:
    records = {name: record("Pod", name, created=1) for name in "abc"}
    records["a"].put("scheduled", received_ns=BASE + 2 * SECOND)

    def rows() -> Iterator[Row]:
        items, until = submissions_of(*records), BASE + 5 * SECOND
        return rows_of(items, records, Clocks(0), run="r", kind="Pod", until_ns=until)

    before = list(rows())
    for name, gone in (("a", 7), ("b", 7), ("c", 3)):
        records[name].put("deleting", received_ns=BASE + 5 * SECOND)
        records[name].put("gone", received_ns=BASE + gone * SECOND)
    records["b"].put("scheduled", received_ns=BASE + 6 * SECOND)  # in the place of the first
    merged = {(row.name, row.stage): row for row in with_deletion(before, rows())}
    assert [merged[name, "deletion"].seconds for name in "abc"] == [2.0, 2.0, None]
    assert [merged[name, "scheduled"].status for name in "ab"] == ["ok", "censored"]


def test_rows_of_a_set_have_the_deletion_of_their_own_vmi() -> None:
    """Of 3 one never ran, and is not counted any more once it is gone; one was never made."""
    own = record(SET, "a", created=1)
    stuck, ran = (
        record(VMI, "stuck", "a", created=1),
        record(VMI, "ran", "a", created=2, running=3),
    )
    records = {value.uid: value for value in (own, stuck, ran)}

    def rows() -> list[Any]:
        until = BASE + 5 * SECOND
        return list(
            rows_of(
                submissions_of("a"),
                records,
                Clocks(0),
                run="r",
                kind=SET,
                until_ns=until,
                expected_pods=3,
            )
        )

    before = rows()
    own.put("deleting", received_ns=BASE + 5 * SECOND)
    stuck.put("gone", received_ns=BASE + 6 * SECOND)
    ran.put("deleting", received_ns=BASE + 6 * SECOND)
    ran.put("succeeded", received_ns=BASE + 7 * SECOND)
    own.put("gone", received_ns=BASE + 8 * SECOND)
    merged = {(row.name, row.stage): row for row in with_deletion(before, rows())}
    assert len(merged) == len(before)
    for stage, seconds in (
        ("deletion_to_succeeded", [None, 2.0, None]),
        ("vmi_deletion_to_succeeded", [None, 1.0, None]),
        ("deletion", [None, 3.0, 3.0]),
    ):
        result = [merged[f"a-{i}", stage] for i in range(3)]
        assert [row.seconds for row in result] == seconds, stage
        assert [(row.index, row.uid) for row in result] == [(0, "stuck"), (1, "ran"), (2, "a")]


class TestSampled:
    def sampled(
        self, kind: str, *records: Record, members: int = 1, submitted: int = 1
    ) -> tuple[list[dict[str, Any]], list[str]]:
        until = BASE + 99 * SECOND
        records_by_uid = {record.uid: record for record in records}
        rows = rows_of(
            submissions_of(*"abc"[:submitted]),
            records_by_uid,
            Clocks(0),
            run="r",
            kind=kind,
            until_ns=until,
            expected_pods=members,
        )
        return runai.sampled_json(list(rows), "p")

    def seconds(self, item: dict[str, Any], key: str) -> float:
        return datetime.fromisoformat(item[f"{key}Timestamp"]).timestamp() - BASE / 1e9

    def test_a_pod_is_its_own_first_and_last_pod(self) -> None:
        (item,), waiting = self.sampled(
            "Pod",
            record("Pod", "a", created=1, scheduled=3),
            record("Pod", "b", created=1),
            submitted=2,
        )
        assert waiting == ["b"]
        assert [
            self.seconds(item, key)
            for key in ("firstPodCreated", "lastPodCreated", "podSchedulingDecision")
        ] == [1, 1, 3]

    def test_a_vm_is_scheduled_when_its_launcher_pod_is_and_not_in_the_phase_of_that_name(
        self,
    ) -> None:
        own = (
            record("VirtualMachine", "a", created=1),
            record(VMI, "v", "a", created=2, scheduling=3, scheduled=9, running=10),
        )
        (item,), _ = self.sampled(
            "VirtualMachine", *own, record("Pod", "p", "v", created=4, scheduled=5)
        )
        keys = ("workloadCreated", "jobCreated", "firstPodCreated", "podSchedulingDecision")
        assert [self.seconds(item, key) for key in keys] == [1, 2, 4, 5]

    def test_a_set_of_vmis_is_one_workload_of_which_the_last_pod_counts(
        self, tmp_path: Path
    ) -> None:
        vmis = [record(VMI, f"v{i}", "a", created=2 + i) for i in range(2)]
        pods = [record("Pod", f"p{i}", f"v{i}", created=4 + i, scheduled=6 + i) for i in range(2)]
        own = record(SET, "a", created=1)
        (item,), waiting = self.sampled(SET, own, *vmis, *pods, members=2)
        assert (item["jobName"], waiting) == ("a", [])
        keys = ("jobCreated", "firstPodCreated", "lastPodCreated", "podSchedulingDecision")
        assert [self.seconds(item, key) for key in keys] == [2, 4, 5, 7]
        (tmp_path / "sampled.json").write_bytes(orjson.dumps([item]))
        (tmp_path / "submitted.json").write_bytes(
            orjson.dumps(
                runai.submitted_json(
                    GeneratorResult("r", submissions_of("a"), BASE / 1e9, BASE), "p"
                )
            )
        )
        (result,) = times_csv.read_times(tmp_path)
        assert result.deltas["Total Pod Scheduling Decision"] == 7.0
        assert self.sampled(SET, own, *vmis, pods[0], members=2) == ([], ["a"]), (
            "not all of it is scheduled"
        )


def test_another_type_or_project_than_was_submitted_is_told_before_a_file_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    write_run(
        tmp_path / "run.json",
        RunFile("q", "v1", "Pod", ["ns"], "p", 1, 1, True, [], {}),
        GeneratorResult("q", [], 0.0, 0),
    )
    (tmp_path / "sampled.json").write_text("as it was")
    monkeypatch.setattr(scale, "on_cluster", lambda args, work, _: asyncio.run(work(None)))
    for words, message in (
        (["-t", "training"], "is of Pod, not training"),
        (["-p", "x"], "was submitted to project p, not x"),
    ):
        assert message in cli(["scale", "sample", "-o", str(tmp_path), *words], 2).err
    assert (tmp_path / "sampled.json").read_text() == "as it was"


@pytest.mark.parametrize("name", ["vmi", "vm", "vmirs"])
def test_a_claim_that_nothing_could_take_is_refused(name: str) -> None:
    with pytest.raises(TemplateError, match="has no pod spec to add a claim to"):
        load(name, "r", {"workers": 1}, pvc=True)
    assert load("training", "r", pvc=True).documents


def test_gates_go_to_the_pods_of_any_kind_that_holds_them() -> None:
    (document,) = load("job", "r", gated=True).documents
    body = orjson.loads(document.body)
    assert body["spec"]["template"]["spec"]["schedulingGates"] == [{"name": "perfdag/hold"}]
    assert "suspend" not in body["spec"]
    text = (
        "apiVersion: v1\nkind: Pod\nmetadata: {name: '${name}'}\n"
        "spec: {schedulingGates: [{name: theirs}], containers: []}\n"
    )
    (document,) = load(text, "r", gated=True).documents
    assert orjson.loads(document.body)["spec"]["schedulingGates"] == [
        {"name": "theirs"},
        {"name": "perfdag/hold"},
    ]


THING = "apiVersion: {}\nkind: {}\nmetadata: {{name: '${{name}}'}}\n"


def request_of(folder: Path, **fields: Any) -> submit.SubmitRequest:
    settings = runai.Settings()
    return submit.SubmitRequest(
        "pod", 2, 1, Schedule(), folder, settings, gpus="0", namespaces=["ns"], **fields
    )


@pytest.fixture
def granting(server: ApiServer) -> ApiServer:
    """A server with the namespace ns, where we may create pods."""
    server.add({"kind": "Namespace", "metadata": {"name": "ns"}})
    server.on("selfsubjectaccessreviews", lambda _: {"status": {"allowed": True}})
    return server


async def test_who_may_neither_lock_nor_list_nodes_submits_all_the_same_and_a_folder_holds_one_run(
    granting: ApiServer, tmp_path: Path
) -> None:
    granting.fail("/leases", 403, "no right to leases")
    granting.fail("/nodes", 403)
    messages: list[str] = []
    async with granting.client() as kube:
        await submit.submit(kube, request_of(tmp_path, log=messages.append))
        assert len(granting.of("Pod")) == 2
        assert messages[0].startswith("other performance runs are not kept out: no right to leases")
        before = (tmp_path / "run.json").read_bytes()
        with pytest.raises(runai.SettingsError, match=r"holds run .*; still there: 2 objects; "):
            await submit.submit(kube, request_of(tmp_path))
        assert (tmp_path / "run.json").read_bytes() == before
        granting.remove("Pod")
        (tmp_path / "summary.json").write_text("{}")
        await submit.submit(kube, request_of(tmp_path))
        assert not (tmp_path / "summary.json").exists()


@pytest.mark.parametrize(
    ("template", "namespace", "message"),
    [
        ("pod", "nowhere", "no namespace 'nowhere'"),
        (THING.format("v1", "Podd"), "ns", "no kind 'Podd' in v1; it has: .*Pod"),
        (
            THING.format("a.example/v1", "Thing"),
            "ns",
            "does not serve a.example/v1 .*install its CustomResourceDefinition",
        ),
    ],
)
async def test_what_the_cluster_has_not_is_said_and_nothing_is_created(
    template: str, namespace: str, message: str, granting: ApiServer, tmp_path: Path
) -> None:
    request = replace(request_of(tmp_path / "out"), template=template, namespaces=[namespace])
    with pytest.raises(KubeError, match=message):
        await submit.submit(granting.client(), request)
    assert granting.of("Pod") == []
    assert not (tmp_path / "out").exists()


async def test_a_submission_waits_for_other_performance_runs(
    granting: ApiServer, tmp_path: Path
) -> None:
    granting.add(held_by("other", FUTURE))
    with pytest.raises(KubeError, match="performance run other still holds the cluster"):
        await submit.submit(granting.client(), request_of(tmp_path, lock_timeout=0.0))
    assert granting.of("Pod") == []

"""Simulated nodes and systems: what `perfdag scale nodes` and `simulate` create."""

import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import orjson
import pytest
import yaml

from perfdag.kube.client import Kube, KubeError
from perfdag.steps.scale.cluster import kwok_nodes, simulation
from perfdag.steps.scale.figures.moments import Clocks
from perfdag.steps.scale.figures.rows import Row, on_simulated, rows_of
from perfdag.steps.scale.measure.generator import GeneratorResult, Submission
from perfdag.steps.scale.measure.observer import Observer
from perfdag.steps.scale.model import nodes
from perfdag.steps.scale.model.records import Record
from perfdag.steps.scale.model.schedule import Schedule
from perfdag.steps.scale.model.templates import Template, load
from perfdag.steps.scale.scenarios import free_gpus, gangs, gpus
from perfdag.steps.scale.scenarios.base import ScenarioUnavailableError, Spec
from perfdag.steps.scale.scenarios.session import Session
from tests.conftest import CommandLine
from tests.fakes.api_server import ApiServer

from .test_completion import submissions_of


class TestSimulate:
    def test_delays_and_failures_reach_the_stages(self) -> None:
        result = {
            item["metadata"]["name"]: item
            for item in simulation.objects("kubevirt", {"vmi-running": (800, 3300)}, 5)
        }
        assert result["vmi-running"]["spec"]["delay"] == {
            "durationMilliseconds": 800,
            "jitterDurationMilliseconds": 3300,
        }
        assert (
            result["vmi-running"]["spec"]["weight"],
            result["vmi-failed"]["spec"]["weight"],
        ) == (
            95,
            5,
        )
        assert "vmi-failed" not in {
            item["metadata"]["name"] for item in simulation.objects("kubevirt")
        }
        with pytest.raises(ValueError, match="no stage 'vmi-runing' in kubevirt; there are"):
            simulation.objects("kubevirt", {"vmi-runing": (1, 1)})

    def test_of_a_vmi_that_is_deleted_one_stage_at_a_time_has_its_turn(self) -> None:
        """One that ran succeeds first; of two stages that match KWOK would play either."""
        result = {
            item["metadata"]["name"]: item["spec"]
            for item in simulation.objects("kubevirt", {"vmi-succeeded": (50, 90)})
        }
        assert result["vmi-succeeded"]["delay"]["durationMilliseconds"] == 50
        phase = {
            name: result[name]["selector"]["matchExpressions"][1]
            for name in ("vmi-succeeded", "vmi-deleted")
        }
        assert [item["key"] for item in phase.values()] == [".status.phase"] * 2
        assert {name: (item["operator"], item["values"]) for name, item in phase.items()} == {
            "vmi-succeeded": ("In", ["Running"]),
            "vmi-deleted": ("NotIn", ["Running"]),
        }

    def test_a_vmi_that_kwok_made_anew_is_deleted_by_no_other_stage_moved_on(self) -> None:
        """What `apply` makes of a VMI that is gone has no spec; stages of a VMI that is
        scheduled leave it alone.
        """
        result = {
            item["metadata"]["name"]: item["spec"]
            for item in simulation.objects("kubevirt", failures=5)
        }
        spec = {
            name: [
                key for key in result[name]["selector"]["matchExpressions"] if key["key"] == ".spec"
            ]
            for name in result
            if "vmi-" in name
        }
        assert {name: item[0]["operator"] for name, item in spec.items() if item} == {
            "vmi-revived": "DoesNotExist",
            "vmi-running": "Exists",
            "vmi-failed": "Exists",
        }
        assert result["vmi-revived"]["steps"] == [{"delete": True}]

    def test_a_launcher_pod_carries_the_labels_of_its_vmi(self) -> None:
        """As KubeVirt's do: those of the run, too."""
        (created,) = (
            item
            for item in simulation.objects("kubevirt")
            if item["metadata"]["name"] == "vmi-scheduling"
        )
        (pod,) = (step["apply"]["template"] for step in created["spec"]["steps"] if "apply" in step)
        (labels,) = (line for line in pod.splitlines() if line.strip().startswith("labels:"))
        assert ".metadata.labels" in labels

    @pytest.mark.parametrize("system", ["runai", "storage"])
    def test_failures_of_what_does_not_fail_are_refused(
        self, system: str, cli: CommandLine
    ) -> None:
        with pytest.raises(ValueError, match=f"{system} simulates no failures"):
            simulation.objects(system, failures=50)
        for words in (
            [system, "--failures", "50"],
            ["kubevirt", "--remove", "--failures", "5"],
            ["kubevirt", "--remove", "--delay", "a=1"],
        ):
            assert cli(["scale", "simulate", *words], 2).err.count("\n") == 1

    @pytest.mark.parametrize(
        "text", ["vmi-running", "vmi-running=", "=5", "vmi-running=9-5", "vmi-running=a"]
    )
    def test_a_bad_delay_is_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match="not a delay"):
            simulation.parse_delay(text)


class TestSuites:
    @pytest.mark.parametrize(
        ("name", "cron"), [("vmi-daily", "41 4 * * *"), ("vmi-daily-scale", "41 15 * * *")]
    )
    def test_the_daily_suites_render_as_cron_workflows(
        self, name: str, cron: str, cli: CommandLine
    ) -> None:
        pytest.importorskip("hera")
        suite = Path(__file__).parents[2] / "suites" / f"{name}.yaml"
        assert f'--schedule "{cron}"' in suite.read_text(), "the file says how it is rendered"
        result = {
            item["kind"]: item
            for item in yaml.safe_load_all(cli(["render", str(suite), "--schedule", cron]).out)
        }
        assert result["CronWorkflow"]["spec"]["schedules"] == [cron]
        assert result["CronWorkflow"]["spec"]["timezone"] == "Etc/UTC"


class TestGangs:
    def jobs(self) -> Template:
        return load("job", "r1", {"workers": 4, "gpus": 2})

    def test_volcano_gets_a_pod_group_that_its_pods_name(self) -> None:
        group, own = (
            orjson.loads(document.render("g-1", "ns", 1))
            for document in gangs.gang_of(gangs.VOLCANO, self.jobs(), 4, "q").documents
        )
        assert (group["apiVersion"], group["kind"]) == ("scheduling.volcano.sh/v1beta1", "PodGroup")
        assert group["spec"] == {"minMember": 4, "queue": "q"}
        assert group["metadata"]["name"] == own["metadata"]["name"] == "g-1"
        assert (own["kind"], own["spec"]["replicas"]) == ("ReplicaSet", 4)
        pods = own["spec"]["template"]
        assert own["spec"]["selector"]["matchLabels"].items() <= pods["metadata"]["labels"].items()
        assert pods["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == "g-1"
        assert pods["spec"]["schedulerName"] == "volcano"
        assert pods["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "2"

    def test_kai_gets_a_job_that_says_how_many_start_together(self) -> None:
        (document,) = gangs.gang_of(gangs.KAI, self.jobs(), 4, "q").documents
        job = orjson.loads(document.render("g-1", "ns", 1))
        pods = job["spec"]["template"]
        assert job["metadata"]["annotations"]["kai.scheduler/batch-min-member"] == "4"
        for body in (job, pods):
            assert body["metadata"]["labels"]["kai.scheduler/queue"] == "q"
        assert pods["spec"]["schedulerName"] == "kai-scheduler"

    def test_two_queues_share_alike_and_may_borrow(self) -> None:
        first, second = gangs.queues(gangs.VOLCANO, "r", 12)
        assert (
            first["spec"]
            == second["spec"]
            == {"weight": 1, "reclaimable": True, "deserved": {"nvidia.com/gpu": "12"}}
        )
        parent, first, second = gangs.queues(gangs.KAI, "r", 12)
        assert parent["spec"]["resources"]["gpu"]["quota"] == 24
        assert first["spec"] == second["spec"]
        assert first["spec"]["parentQueue"] == parent["metadata"]["name"]
        assert first["spec"]["resources"]["gpu"] == {"quota": 12, "limit": -1, "overQuotaWeight": 1}

    def test_a_gang_of_which_a_part_is_placed_is_split(self) -> None:
        observer = Observer(None, "r", [], [])  # type: ignore[arg-type]
        for gang, count in (("whole", 3), ("part", 2), ("none", 0)):
            for i in range(3):
                pod = Record("Pod", f"{gang}-{i}", f"{gang}-{i}", "ns", gang)
                pod.put("created")
                if i < count:
                    pod.put("scheduled")
                observer.records[pod.uid] = pod
        assert gangs.placed(observer, 3) == (1, 1)
        observer.records["whole-0"].put("gone")
        assert gangs.placed(observer, 3) == (0, 2), "a pod that was evicted is no longer placed"

    def test_room_is_counted_in_whole_pods_of_nodes(self) -> None:
        assert gangs.room_for([8, 8, 7], 4, 2) == 2, "five pods of 4 GPUs fit"


class Reclaiming(Session):
    """A cluster of `room` pods: of those of the second queue `reclaimable` get a node, and as many
    of the first are evicted for them. The pod of a ReplicaSet is replaced and waits, that of a Job
    is not.
    """

    room, reclaimable = 10, 5

    def _pod(self, owner: str, name: str, *stages: str) -> None:
        pod = Record("Pod", f"{owner}-{name}", f"{owner}-{name}", "ns", owner)
        for stage in stages:
            pod.put(stage, received_ns=time.monotonic_ns())
        self.observer.records[pod.uid] = pod

    async def create(self, count: int, schedule: Schedule, parallel: int) -> GeneratorResult:
        first, now = len(self.submissions), time.monotonic_ns()
        names = [f"{self.run}-{first + i}" for i in range(count)]
        submitted = GeneratorResult(
            self.run,
            [Submission(first + i, n, "ns", now, now, now, n) for i, n in enumerate(names)],
            time.time(),
            now,
        )
        for i, name in enumerate(names):
            owner = Record(self.template.kind, name, name, "ns", "")
            owner.put("created", received_ns=now)
            self.observer.records[name] = owner
            self._pod(
                name,
                "0",
                *(("created", "scheduled") if not first or i < self.reclaimable else ("created",)),
            )
            if first and i < self.reclaimable:
                victim = self.submissions[i].uid
                self.observer.records[f"{victim}-0"].put("gone", received_ns=now)
                if self.template.kind == "ReplicaSet":
                    self._pod(victim, "1", "created")
        self.submissions += submitted.submissions
        self.batches.append((submitted, schedule))
        return submitted

    async def wait(self, *_: Any) -> bool:
        return True

    async def until(self, done: Callable[[], bool], timeout: float) -> bool:
        return done()

    async def rows(self) -> list[Row]:
        kind, end = self.template.kind, time.monotonic_ns()
        return list(
            rows_of(
                self.submissions,
                self.observer.records,
                self.clocks(),
                run="r",
                kind=kind,
                until_ns=end,
                expected_pods=1,
            )
        )

    async def delete(self, *_: Any, **__: Any) -> bool:
        return True

    async def check_clocks(self) -> None:
        """Nothing here has a clock."""

    def facts(self) -> dict[str, Any]:
        return {"notes": self.notes}


@contextlib.asynccontextmanager
async def reclaiming(kube: Any, spec: Any, run: str, template: Template) -> AsyncIterator[Session]:
    lags: Any = SimpleNamespace(lags={}, p99=None)
    clock: Any = SimpleNamespace(seconds=0.0)
    yield Reclaiming(
        kube, run, template, ["ns"], Observer(kube, run, [], []), lags, kube, clock, [], 1
    )


class TestReclaim:
    @pytest.mark.parametrize("scheduler", [gangs.VOLCANO, gangs.KAI], ids=lambda item: item.name)
    @pytest.mark.parametrize(("parameters", "failed"), [(5, False), (3, True)])
    async def test_what_had_to_go_is_no_miss_whether_or_not_another_waits_in_its_place(
        self,
        scheduler: gangs.GangScheduler,
        parameters: int,
        failed: bool,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:

        @contextlib.asynccontextmanager
        async def queues(*_: Any) -> AsyncIterator[tuple[str, str]]:
            yield "a", "b"

        for name, value in (
            ("find_scheduler", AsyncMock(return_value=scheduler)),
            ("free_gpus", AsyncMock(return_value={"n": Reclaiming.room})),
            ("own_queues", queues),
            ("session_of", reclaiming),
        ):
            monkeypatch.setattr(gangs, name, value)
        monkeypatch.setattr(Reclaiming, "reclaimable", parameters)
        result = await gangs.reclaim(None, Spec(gpus=1))  # type: ignore[arg-type]
        assert (result.figures["evicted"], result.figures["reclaimed"]) == (parameters, parameters)
        assert result.failed == failed, result.figures["success_ratio"]


async def test_whole_nodes_are_asked_for_whatever_the_variables_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:

    monkeypatch.setattr(gpus, "free_gpus", AsyncMock(return_value={"a": 8, "b": 8}))
    monkeypatch.setattr(gpus, "session_of", reclaiming)
    result = await gpus.fragmentation(None, Spec(variables={"gpus": 3}))  # type: ignore[arg-type]
    assert (result.count, result.figures["whole_nodes_ideal"]) == (9, 1.0)
    assert result.disturbed == ""


async def test_a_scenario_whose_pods_another_scheduler_placed_is_invalid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:

    @contextlib.asynccontextmanager
    async def answered(*args: Any) -> AsyncIterator[Session]:
        async with reclaiming(*args) as session:
            session.observer.schedulers |= {"kai-scheduler": 1, "default-scheduler": 8}
            yield session

    monkeypatch.setattr(gpus, "free_gpus", AsyncMock(return_value={"a": 8, "b": 8}))
    monkeypatch.setattr(gpus, "session_of", answered)
    spec = Spec(scheduler="kai-scheduler", queue="team")
    result = await gpus.fragmentation(None, spec)  # type: ignore[arg-type]
    assert result.disturbed == "default-scheduler scheduled 8 pods, not kai-scheduler"
    assert result.failed
    pod = orjson.loads(gpus.pods_of(spec, "r", 2).documents[0].body)
    assert pod["spec"]["schedulerName"] == "kai-scheduler"
    assert pod["metadata"]["labels"]["kai.scheduler/queue"] == "team"
    assert pod["metadata"]["annotations"]["scheduling.volcano.sh/queue-name"] == "team"


GPU = "nvidia.com/gpu"


def node(
    name: str, count: int, *taints: tuple[str, str], simulated: bool = False
) -> dict[str, Any]:
    status = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {GPU: str(count)}}
    spec = {"taints": [{"key": key, "effect": effect} for key, effect in taints]}
    labels = {kwok_nodes.LABEL: "true"} if simulated else {}
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": spec,
        "status": status,
    }


@pytest.fixture
def cluster() -> ApiServer:
    return ApiServer()


@pytest.fixture
def kube(cluster: ApiServer) -> Kube:
    return cluster.client()


async def test_nodes_that_are_there_get_the_gpus_that_are_asked_for(
    cluster: ApiServer, kube: Kube
) -> None:
    assert await kwok_nodes.make_nodes(kube, 2, 4) == (2, 0)
    assert await kwok_nodes.make_nodes(kube, 3, 8) == (1, 2)
    assert await kwok_nodes.make_nodes(kube, 3, 8) == (0, 0)
    assert [
        (item["status"]["allocatable"][GPU], item["status"]["capacity"][GPU])
        for item in cluster.of("Node")
    ] == [("8", "8")] * 3
    assert await kwok_nodes.make_nodes(kube, 1, 0) == (0, 1)
    none, other, _ = cluster.of("Node")
    assert GPU not in none["status"]["allocatable"] | none["status"]["capacity"]
    assert "nvidia.com/gpu.present" not in none["metadata"]["labels"]
    assert other["metadata"]["labels"]["nvidia.com/gpu.present"] == "true"


@pytest.mark.parametrize("ours", [False, True], ids=["without our label", "with our label"])
async def test_a_real_node_of_that_name_is_neither_changed_nor_deleted(
    ours: bool, cluster: ApiServer, kube: Kube
) -> None:
    cluster.add(node("perfdag-sim-0", 2, simulated=ours))
    with pytest.raises(KubeError, match="perfdag-sim-0 was not created by perfdag"):
        await kwok_nodes.make_nodes(kube, 1, 8)
    await kwok_nodes.make_nodes(kube, 2, 8, prefix="other-")
    assert await kwok_nodes.remove_nodes(kube) == 2
    (kept,) = cluster.of("Node")
    assert kept["status"]["allocatable"] == {GPU: "2"}


async def test_those_that_were_asked_for_are_waited_for_and_no_others(
    cluster: ApiServer, kube: Kube
) -> None:
    for name in ("perfdag-sim-0", "perfdag-sim-7", "other-0"):
        cluster.add(node(name, 8, simulated=True))
    assert await kwok_nodes.nodes_ready(kube, 1, 0.1)
    assert not await kwok_nodes.nodes_ready(kube, 2, 0.1)
    assert await kwok_nodes.nodes_ready(kube, 1, 0.1, prefix="other-")


async def test_gpus_behind_taints_that_our_pods_do_not_tolerate_are_not_free(
    cluster: ApiServer, kube: Kube
) -> None:
    cluster.add(node("usual", 4, (GPU, "NoSchedule"), ("soft", "PreferNoSchedule")))
    cluster.add(node("played", 8, (nodes.NODE_ANNOTATION, "NoSchedule")))
    cluster.add(node("others", 8, (GPU, "NoSchedule"), ("team", "NoExecute")))
    assert await free_gpus.free_gpus(kube) == {"usual": 4, "played": 8}
    for name in ("usual", "played"):
        del cluster.objects[f"/api/v1/nodes/{name}"]
    with pytest.raises(
        ScenarioUnavailableError,
        match="1 nodes with GPUs have taints that our pods do not tolerate: team",
    ):
        await free_gpus.free_gpus(kube)


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_gpus_that_are_shared_or_claimed_are_not_free(
    version: str, cluster: ApiServer, kube: Kube
) -> None:
    """Of two that share a GPU, KAI's reservation pod holds it too."""

    def pod(name: str, namespace: str, on: str, gpus: int = 0, fraction: str = "") -> None:
        metadata: dict[str, Any] = {"name": name, "namespace": namespace}
        metadata["annotations"] = {"gpu-fraction": fraction} if fraction else {}
        containers = [{"resources": {"limits": {GPU: str(gpus)} if gpus else {}}}]
        spec = {"nodeName": on, "containers": containers}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        cluster.add(body | {"status": {"phase": "Running"}})

    for name in ("kai", "early", "dra"):
        cluster.add(node(name, 8))
    pod("reservation", "kai-resource-reservation", "kai", gpus=1)
    pod("half", "ns", "kai", fraction="0.5")
    pod("third", "ns", "kai", fraction="0.3")
    pod("whole", "ns", "kai", gpus=2)
    pod("not-reserved-yet", "ns", "early", fraction="0.5")
    results: list[dict[str, Any]] = [
        {"driver": driver, "pool": "dra", "device": f"gpu-{i}"}
        for i, driver in enumerate(("gpu.nvidia.com", "gpu.nvidia.com", "net.example"))
    ]
    results.append({**results[0], "adminAccess": True})
    claim: dict[str, Any] = {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "ResourceClaim",
    }
    claim["metadata"] = {"name": "c", "namespace": "ns"}
    cluster.add(claim | {"status": {"allocation": {"devices": {"results": results}}}})
    cluster.add({**claim, "metadata": {"name": "waits", "namespace": "ns"}})
    assert await free_gpus.free_gpus(kube) == {"kai": 5, "early": 7, "dra": 6}


@pytest.mark.parametrize("name", ["pod", "job", "pytorchjob"])
def test_pods_of_our_templates_tolerate_what_is_said_of_them(name: str) -> None:
    body = load(name, "r").documents[-1].body.decode()
    specs = body.count('"containers"')
    tolerations = [{"key": key, "operator": "Exists"} for key in nodes.TOLERATED]
    assert body.count('"tolerations":' + orjson.dumps(tolerations).decode()) == specs > 0


async def test_where_nodes_may_not_be_listed_it_is_not_known_which_are_simulated(
    cluster: ApiServer, kube: Kube
) -> None:
    cluster.fail("/nodes", 403)
    assert await kwok_nodes.simulated_nodes(kube) == (
        None,
        "whether nodes are simulated is unknown: no permission to list nodes",
    )
    cluster.fail("/nodes", 409)
    nodes, why = await kwok_nodes.simulated_nodes(kube)
    assert nodes is None
    assert why.startswith("whether nodes are simulated is unknown: ")
    assert "may not" not in why


@pytest.mark.parametrize(("fake", "message"), [(None, None), ({"n"}, True), (set(), False)])
def test_rows_say_whether_their_nodes_were_simulated(
    fake: set[str] | None, message: bool | None
) -> None:
    pod, now = Record("Pod", "a", "a", "ns", ""), time.monotonic_ns()
    pod.put("scheduled", received_ns=now)
    pod.node = "n"
    rows: list[Row] = list(
        rows_of(
            submissions_of("a"),
            {"a": pod},
            Clocks(0),
            run="r",
            kind="Pod",
            until_ns=now,
            simulated=fake,
        )
    )
    assert {row.simulated for row in rows} == {message}
    assert on_simulated(rows) is message
    assert on_simulated([]) is False, "what never had a node is on none"

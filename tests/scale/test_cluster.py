"""Scale on a real API server with KWOK: what is measured is what happened, and nothing is left behind."""

import asyncio
import contextlib
import os
import shutil
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
import pyarrow.parquet as pq
import pytest

from perfdag.cli import main
from perfdag.kube import Kube, KubeError
from perfdag.kubeconfig import load as load_config
from perfdag.steps.scale import gangs, simulate, vmi, workloads
from perfdag.steps.scale.gpus import free_gpus
from perfdag.steps.scale.lock import ExclusiveRun, LockTimeoutError
from perfdag.steps.scale.observer import Observer
from perfdag.steps.scale.schedule import Schedule
from perfdag.steps.scale.session import ensure_namespace
from perfdag.steps.scale.stages import unix_ns
from perfdag.steps.scale.summary import rank
from perfdag.steps.scale.templates import INDEX_LABEL, RUN_LABEL, built_in, load

pytestmark = pytest.mark.cluster


@pytest.fixture
async def kube() -> AsyncIterator[Kube]:
    """A client of the cluster that KUBECONFIG names, which must have KWOK with Stages."""
    if "KUBECONFIG" not in os.environ:
        pytest.skip("KUBECONFIG is not set: no cluster to test against")
    async with Kube() as client:
        try:
            await client.resource("kwok.x-k8s.io/v1alpha1", "Stage")
        except KubeError as error:
            pytest.skip(f"no KWOK with Stages on this cluster: {error}")
        yield client


@pytest.fixture
async def nodes(kube: Kube) -> None:
    """Simulated nodes: 8 GPUs each; those of an earlier test are used again."""
    await simulate.make_nodes(kube, 20, 8)
    assert await simulate.nodes_ready(kube, 20)


@pytest.fixture
async def namespace(kube: Kube) -> AsyncIterator[str]:
    name = f"perfdag-test-{uuid.uuid4().hex[:8]}"
    await kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    for _ in range(100):
        with contextlib.suppress(KubeError):
            await kube.get(await kube.resource("v1", "ServiceAccount"), "default", name)
            break
        await asyncio.sleep(0.05)
    yield name
    await kube.delete(await kube.resource("v1", "Namespace"), name)


async def left(kube: Kube, api_version: str, kind: str, namespace: str) -> int:
    return len(await kube.list(await kube.resource(api_version, kind), namespace))


@pytest.mark.slow
async def test_vms_are_measured_as_their_stages_played_them_and_nothing_is_left(kube: Kube, nodes: None, namespace: str) -> None:
    """The simulated KubeVirt stamps each phase with nanoseconds, just before it writes it: that is the truth.

    The watch must agree within 20 ms, or within the error bar that the run itself states where the machine is busy.
    """
    await simulate.install(kube, "kubevirt", {"vmi-scheduling": (800, 3300)})
    truth: dict[str, float] = {}
    spec = vmi.Spec(template="vm", namespaces=[namespace], primer=False, timeout=120)
    vmis = await kube.resource("kubevirt.io/v1", vmi.VMI)

    async def read_truth() -> None:
        async for event in kube.watch(vmis, namespace):
            phases = event.object.get("status", {}).get("phaseTransitionTimestamps", [])
            at = {each["phase"]: unix_ns(each["phaseTransitionTimestamp"]) / 1e9 for each in phases}
            assert len(at) == len(phases), f"a stage was played twice: {phases}"
            if "Scheduling" in at:
                truth[event.object["metadata"]["name"]] = at["Scheduling"] - at["Pending"]

    reader = asyncio.create_task(read_truth())
    result = await vmi.burst(kube, spec, 40)
    reader.cancel()
    measured = {row.name: row.seconds for row in result.rows if row.stage == "scheduling" and row.status == "ok"}
    assert len(measured) == len(truth) == 40
    told, real = sorted(value for value in measured.values() if value is not None), sorted(truth.values())
    for p in (0.5, 0.95):
        assert rank(told, p, 1) == pytest.approx(rank(real, p, 1), abs=max(0.02, result.figures["watch_lag_p99"] or 0))
    assert real[0] >= 0.8
    assert all(row.simulated for row in result.rows)
    assert result.figures["left_behind"] == 0
    assert result.figures["success_ratio"] == 1.0
    for kind in ("VirtualMachine", vmi.VMI):
        assert await left(kube, "kubevirt.io/v1", kind, namespace) == 0
    assert await left(kube, "v1", "Pod", namespace) == 0


@pytest.mark.slow
async def test_jobs_give_a_row_for_each_stage_of_each(kube: Kube, nodes: None, namespace: str) -> None:
    spec = workloads.Spec(template="job", count=60, namespaces=[namespace], goal="succeeded", timeout=120)
    result = await workloads.submit(kube, spec)
    stages = {row.stage for row in result.rows}
    assert len(result.rows) == 60 * len(stages)
    for name in ("created", "first_pod_created", "scheduled", "succeeded", "submission_to_scheduled"):
        assert [row.status for row in result.rows if row.stage == name] == ["ok"] * 60, name
    assert await left(kube, "batch/v1", "Job", namespace) == 0


async def test_a_quota_that_refuses_5_percent_shows_as_5_percent(kube: Kube, nodes: None, namespace: str) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {"pods": "95"}}}
    await kube.create(quota, namespace)
    quotas = await kube.resource("v1", "ResourceQuota")
    for _ in range(100):
        if (await kube.get(quotas, "q", namespace)).get("status", {}).get("hard"):
            break
        await asyncio.sleep(0.1)
    spec = workloads.Spec(template="pod", count=100, namespaces=[namespace], gpus=1, goal="scheduled", timeout=60)
    result = await workloads.submit(kube, spec)
    assert result.figures["create_ratio"] == pytest.approx(0.95)
    assert result.figures["success_ratio"] == pytest.approx(0.95)
    failed = [row for row in result.rows if row.stage == "scheduled" and row.status == "failed"]
    assert len(failed) == 5
    assert all("exceeded quota" in (row.error or "") for row in failed)
    assert await left(kube, "v1", "Pod", namespace) == 0


@contextlib.asynccontextmanager
async def refusing(kube: Kube, namespace: str, resource: str, allowed: str) -> AsyncIterator[None]:
    """An admission policy that refuses creations of a resource in the namespace unless the CEL expression `allowed` holds."""
    name, group, _, plural = f"perfdag-test-{uuid.uuid4().hex[:8]}", *resource.rpartition("/")
    api = "admissionregistration.k8s.io/v1"
    rule = {"apiGroups": [group], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": [plural]}
    # KWOK's `apply` tries a creation without labels first, which is none of the run's
    ours = {"name": "ours", "expression": f"has(object.metadata.labels) && '{INDEX_LABEL}' in object.metadata.labels"}
    here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}, "resourceRules": [rule]}
    said = {"expression": allowed, "message": "no more today"}
    spec = {"failurePolicy": "Fail", "matchConstraints": here, "matchConditions": [ours], "validations": [said]}
    await kube.create({"apiVersion": api, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name}, "spec": spec})
    binding = {"policyName": name, "validationActions": ["Deny"]}
    await kube.create({"apiVersion": api, "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": name}, "spec": binding})
    try:
        kind = {"pods": ("v1", "Pod"), "virtualmachineinstances": ("kubevirt.io/v1", vmi.VMI)}[plural]
        probe = {"apiVersion": kind[0], "kind": kind[1], "metadata": {"name": "probe", "labels": {INDEX_LABEL: "999980"}}}
        probe["spec"] = {"containers": [{"name": "c", "image": "none"}]} if plural == "pods" else {}
        path = (await kube.resource(*kind)).path(namespace)
        for _ in range(150):  # the API server takes up a policy within seconds
            try:
                await kube.request("POST", path, json=probe, params={"dryRun": "All"})
            except KubeError as error:
                if "no more today" in str(error):
                    break
                raise
            await asyncio.sleep(0.2)
        else:
            pytest.fail("the policy is not in force after 30 s")
        yield
    finally:
        for kind_name in ("ValidatingAdmissionPolicyBinding", "ValidatingAdmissionPolicy"):
            await kube.delete(await kube.resource(api, kind_name), name)


EACH_TWENTIETH = f"int(object.metadata.labels['{INDEX_LABEL}']) % 20 != 0"


@pytest.mark.slow
async def test_admission_that_refuses_5_percent_shows_as_5_percent(kube: Kube, nodes: None, namespace: str) -> None:
    await simulate.install(kube, "kubevirt")
    async with refusing(kube, namespace, "kubevirt.io/virtualmachineinstances", EACH_TWENTIETH):
        result = await vmi.burst(kube, vmi.Spec(namespaces=[namespace], primer=False, timeout=60), 100)
    assert result.figures["create_ratio"] == pytest.approx(0.95)
    assert result.figures["success_ratio"] == pytest.approx(0.95)
    failed = [row for row in result.rows if row.stage == "creation_to_running" and row.status == "failed"]
    assert [row.index for row in failed] == [0, 20, 40, 60, 80]
    assert all("no more today" in (row.error or "") for row in failed)
    assert result.figures["left_behind"] == 0
    assert await left(kube, "kubevirt.io/v1", vmi.VMI, namespace) == 0


@pytest.mark.slow
async def test_capacity_grows_until_the_first_size_that_fails(kube: Kube, nodes: None, namespace: str) -> None:
    await simulate.install(kube, "kubevirt")
    spec = vmi.Spec(namespaces=[namespace], primer=False, timeout=60)
    async with refusing(kube, namespace, "kubevirt.io/virtualmachineinstances", f"int(object.metadata.labels['{INDEX_LABEL}']) < 25"):
        passed, results = await vmi.capacity(kube, spec, 10, 100)
    assert passed == 20
    assert [each.count for each in results] == [10, 20, 30]
    assert [each.figures["success_ratio"] for each in results] == [1.0, 1.0, pytest.approx(25 / 30)]
    assert await left(kube, "kubevirt.io/v1", vmi.VMI, namespace) == 0


@pytest.mark.slow
async def test_claims_are_asked_for_bound_and_gone(kube: Kube, nodes: None, namespace: str) -> None:
    """Distributed workloads with a claim a pod: request and bind each from its own pair, on a storage class that KWOK plays."""
    await simulate.install(kube, "runai")
    await simulate.install(kube, "storage", {"pvc-provisioned": (300, 300)})
    try:
        names = {"template": "distributed", "workers": 2, "gpus": 1, "pvc": True, "storage_class": "perfdag-simulated"}
        result = await workloads.submit(kube, workloads.Spec(count=4, namespaces=[namespace], timeout=60, **names))  # type: ignore[arg-type]
        bound = [row for row in result.rows if row.stage == "pvc_bound"]
        assert [row.status for row in bound] == ["ok"] * 4
        assert all(0.3 <= (row.seconds or 0) < 10 for row in bound), [row.seconds for row in bound]
        assert [row.status for row in result.rows if row.stage == "pvc_requested"] == ["ok"] * 4
        assert all(row.objects == 3 for row in bound), "a claim of each of the three pods"
        assert await left(kube, "v1", "PersistentVolumeClaim", namespace) == 0
    finally:
        await simulate.remove(kube, "storage")


async def test_fill_takes_every_gpu_and_no_more(kube: Kube, nodes: None, namespace: str) -> None:
    free = sum((await free_gpus(kube)).values())
    result = await workloads.fill(kube, workloads.Spec(template="pod", namespaces=[namespace], gpus=8, timeout=60))
    assert result.figures["nodes_overcommitted"] == 0
    assert result.figures["unschedulable_verdict"] is not None
    allocated = result.figures["gpus_allocated"]
    assert allocated is not None
    assert allocated <= free
    assert result.figures["success_ratio"] == 1.0


async def test_the_scheduler_alone_is_released_at_once(kube: Kube, nodes: None, namespace: str) -> None:
    spec = workloads.Spec(template="pod", count=40, namespaces=[namespace], gpus=0, schedule=Schedule("constant", 8), timeout=60)
    result = await workloads.gated(kube, spec)
    assert (result.figures["schedule_rate"] or 0) > 12, "the pace of creation is not the pace of scheduling"
    waits = [row.seconds for row in result.rows if row.stage == "release_to_scheduled"]
    assert len([each for each in waits if each is not None]) == 40


async def test_gangs_without_their_scheduler_are_skipped_with_the_reason(kube: Kube, namespace: str) -> None:
    with pytest.raises(workloads.NotHereError, match="needs Volcano or KAI"):
        await workloads.measure(kube, workloads.Spec(namespaces=[namespace]), "gang")


@pytest.fixture
async def volcano(kube: Kube, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Volcano's kinds without Volcano: the pods go to the default scheduler, which knows neither gangs nor queues."""
    definitions = await kube.resource("apiextensions.k8s.io/v1", "CustomResourceDefinition")
    monkeypatch.setattr(gangs, "VOLCANO", replace(gangs.VOLCANO, scheduler="default-scheduler"))
    names = []
    for kind, plural, scope in (("Queue", "queues", "Cluster"), ("PodGroup", "podgroups", "Namespaced")):
        schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
        spec = {"group": "scheduling.volcano.sh", "scope": scope, "names": {"kind": kind, "plural": plural, "singular": kind.lower()}}
        spec["versions"] = [{"name": "v1beta1", "served": True, "storage": True, "schema": schema}]
        metadata = {"name": f"{plural}.scheduling.volcano.sh"}
        await kube.apply({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": metadata, "spec": spec})
        names.append(metadata["name"])
    for _ in range(100):
        with contextlib.suppress(KubeError):
            for kind in ("Queue", "PodGroup"):
                await kube.list(await kube.resource("scheduling.volcano.sh/v1beta1", kind))
            break
        await asyncio.sleep(0.1)
    yield
    for name in names:
        await kube.delete(definitions, name)


@pytest.mark.slow
async def test_gangs_and_queues_are_made_measured_and_gone_again(kube: Kube, nodes: None, volcano: None, namespace: str) -> None:
    """What the default scheduler does with gangs is told as it is; the second queue of a reclaim gets nothing back from it."""
    spec = workloads.Spec(count=1, namespaces=[namespace], workers=3, gpus=8, timeout=15)
    result = await workloads.measure(kube, spec, "gang")
    fitting, placed, split = (result.figures[f"gangs_{name}"] or 0 for name in ("fitting", "placed", "split"))
    assert fitting > 0
    assert placed <= fitting
    assert (placed == fitting and not split) or any("placed whole" in note for note in result.facts["notes"])
    assert result.figures["left_behind"] == 0
    result = await workloads.measure(kube, workloads.Spec(namespaces=[namespace], gpus=8, timeout=5), "reclaim")
    assert result.figures["reclaimed"] == 0
    assert any("does Volcano reclaim?" in note for note in result.facts["notes"])
    assert result.figures["left_behind"] == 0
    assert await left(kube, "scheduling.volcano.sh/v1beta1", "PodGroup", namespace) == 0
    assert await kube.list(await kube.resource("scheduling.volcano.sh/v1beta1", "Queue")) == []


class Cutter:
    """A TCP proxy on loopback before the API server that cuts all its connections on demand."""

    def __init__(self, host: str, port: int) -> None:
        self._target, self._writers = (host, port), set[asyncio.StreamWriter]()

    async def __aenter__(self) -> "Cutter":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()

    def cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(*self._target)
        self._writers |= {writer, up_writer}

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                while data := await source.read(65536):
                    sink.write(data)
                    await sink.drain()
            sink.close()

        await asyncio.gather(pump(reader, up_writer), pump(up_reader, writer))


@pytest.mark.slow
async def test_a_killed_watch_loses_no_stage(kube: Kube, nodes: None, namespace: str) -> None:
    """300 pods while all connections of the observer are cut several times: every pod has every stage."""
    parts = urlsplit(kube.cluster.server)
    async with Cutter(parts.hostname or "", parts.port or 443) as cutter:
        cluster = load_config()
        cluster.server, cluster.server_name = f"https://127.0.0.1:{cutter.port}", parts.hostname
        template = load("pod", "cut", {"gpus": 0})
        paths = [(await kube.resource("v1", "Pod")).path(namespace)]
        async with Kube(cluster) as through, Observer(through, "cut", [("v1", "Pod")], [namespace], primary=["Pod"]) as observer:

            async def cutting() -> None:
                for _ in range(6):
                    await asyncio.sleep(0.25)
                    cutter.cut()

            cuts = asyncio.create_task(cutting())
            for start in range(0, 300, 30):
                bodies = [template.documents[0].render(f"p-{i}", namespace, i) for i in range(start, start + 30)]
                await asyncio.gather(*(kube.raw("POST", paths[0], body=body) for body in bodies))
                await asyncio.sleep(0.1)
            await cuts
            assert await observer.until(lambda: observer.counts["Pod", "ready"] >= 300, 60)
            for each in observer.of("Pod"):
                assert {"created", "scheduled", "ready"} <= set(each.stages)
            assert len(list(observer.of("Pod"))) == 300
            assert through.counts["watch reconnects"] >= 5


@pytest.mark.slow
async def test_an_observer_stopped_and_resumed_sees_what_one_that_stayed_saw(
    kube: Kube, nodes: None, namespace: str, tmp_path: Path
) -> None:
    template = load("pod", "resume", {"gpus": 0})
    path = (await kube.resource("v1", "Pod")).path(namespace)

    async def create(first: int, last: int) -> None:
        bodies = [template.documents[0].render(f"p-{i}", namespace, i) for i in range(first, last)]
        await asyncio.gather(*(kube.raw("POST", path, body=body) for body in bodies))

    def observer() -> Observer:
        return Observer(kube, "resume", [("v1", "Pod")], [namespace], primary=["Pod"], events=False)

    async with observer() as stayed:
        async with observer() as left_early:
            await create(0, 50)
            await left_early.until(lambda: left_early.counts["Pod", "ready"] >= 20, 30)
            left_early.save(tmp_path / "state")
        await create(50, 80)
        pods = await kube.resource("v1", "Pod")
        await stayed.until(lambda: stayed.counts["Pod", "ready"] >= 80, 60)
        for i in range(10):  # gone while nobody of the second looks
            await kube.delete(pods, f"p-{i}", namespace)
        await stayed.until(lambda: stayed.counts["Pod", "gone"] >= 10, 30)
        resumed = observer()
        resumed.restore(tmp_path / "state")
        async with resumed:
            await resumed.until(lambda: resumed.counts["Pod", "gone"] >= 10 and resumed.counts["Pod", "ready"] >= 80, 30)

    def seen(each: Observer) -> dict[str, dict[str, int]]:
        return {record.name: {stage: (record.times(stage) or (0,))[0] for stage in record.stages} for record in each.of("Pod")}

    first, second = seen(stayed), seen(resumed)
    assert {name: set(stages) for name, stages in first.items()} == {name: set(stages) for name, stages in second.items()}
    assert first == second, "the API times are the same too"


async def test_a_namespace_that_is_being_deleted_is_waited_for(kube: Kube) -> None:
    name = f"perfdag-test-{uuid.uuid4().hex[:8]}"
    assert await ensure_namespace(kube, name, "r")
    assert not await ensure_namespace(kube, name, "r"), "it is there, and not ours to delete"
    held = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "held", "finalizers": ["perfdag.example/hold"]}}
    await kube.create(held, name)
    maps, namespaces = await kube.resource("v1", "ConfigMap"), await kube.resource("v1", "Namespace")
    await kube.delete(namespaces, name)
    with pytest.raises(KubeError, match=rf"namespace {name} is still being deleted after 1 s.*take another namespace"):
        await ensure_namespace(kube, name, "r", patience=1.0)

    async def let_go() -> None:
        await asyncio.sleep(0.5)
        await kube.patch(maps, "held", {"metadata": {"finalizers": None}}, name)

    made, _ = await asyncio.gather(ensure_namespace(kube, name, "again", patience=60.0), let_go())
    assert made
    assert (await kube.get(namespaces, name))["metadata"]["labels"][RUN_LABEL] == "again"
    await kube.delete(namespaces, name)


async def test_the_second_performance_run_waits_its_turn(kube: Kube, namespace: str) -> None:
    order: list[str] = []
    told: list[str] = []

    async def one(name: str, hold: float) -> None:
        async with ExclusiveRun(kube, name, 20, told.append, namespace=namespace):
            order.append(f"{name} in")
            await asyncio.sleep(hold)
            order.append(f"{name} out")

    first = asyncio.create_task(one("a", 1.0))
    await asyncio.sleep(0.4)
    with pytest.raises(LockTimeoutError, match="performance run a still holds"):
        async with ExclusiveRun(kube, "c", 0.1, namespace=namespace):
            pass
    await asyncio.gather(first, one("b", 0.0))
    assert order == ["a in", "a out", "b in", "b out"]
    assert told == ["waiting for performance run a to end"]


async def test_too_many_vmis_a_node_are_refused_before_anything_is_made(kube: Kube, nodes: None) -> None:
    with pytest.raises(vmi.TooDenseError, match=r"over 200 a node; .* nodes are needed"):
        await vmi.burst(kube, vmi.Spec(namespaces=["perfdag-never"]), 1_000_000)
    with pytest.raises(KubeError, match="not found"):
        await kube.get(await kube.resource("v1", "Namespace"), "perfdag-never")


class TestCommands:
    """The commands as a user runs them; synchronous, so each has an event loop of its own."""

    def cli(self, *words: str) -> int:
        if "KUBECONFIG" not in os.environ:
            pytest.skip("KUBECONFIG is not set: no cluster to test against")
        return main(["scale", *words])

    def test_bad_input_is_a_clear_line_and_leaves_nothing(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "t.yaml").write_text("apiVersion: nobody.example.com/v1\nkind: Thing\nmetadata: {name: '${name}'}\n")
        (tmp_path / "k.yaml").write_text("apiVersion: v1\nkind: Podd\nmetadata: {name: '${name}'}\n")
        (tmp_path / "n.yaml").write_text("apiVersion: v1\nkind: Pod\nmetadata: {name: x}\n")
        out = str(tmp_path / "out")
        for words, told in (
            (["--template", str(tmp_path / "t.yaml")], "install its CustomResourceDefinition"),
            (["--template", str(tmp_path / "k.yaml")], "no kind 'Podd' in v1"),
            (["--template", str(tmp_path / "n.yaml")], "needs metadata.name"),
            (["--template", "pod", "--namespace", "perfdag-nowhere"], "no namespace 'perfdag-nowhere'"),
            (["--template", "pod", "--arrival", "poisson"], "needs a rate"),
        ):
            assert self.cli("submit", "-n", "3", "-o", out, *words) == 2
            said = capsys.readouterr().err
            assert told in said
            assert said.count("\n") == 1
        assert not (tmp_path / "out").exists()

    @pytest.mark.slow
    def test_submit_sample_plot_delete(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        out, name = str(tmp_path / "out"), f"perfdag-test-{uuid.uuid4().hex[:8]}"
        assert self.cli("nodes", "--count", "20", "--gpus", "8") == 0
        words = ["--template", "job", "-n", "12", "-p", "5", "--delay", "0.2", "--namespace", name, "--create-namespace"]
        assert self.cli("submit", "-o", out, *words) == 0
        submitted = orjson.loads((tmp_path / "out" / "submitted.json").read_bytes())
        assert len(submitted) == 12, "the remainder of 12 by 5 is not dropped"
        assert set(submitted[0]) == {"jobName", "projectName", "jobNamespace", "submitTimestamp"}
        assert self.cli("sample", "-o", out) == 0
        assert self.cli("sample", "-o", out, "--watch", "30") == 0
        sampled = orjson.loads((tmp_path / "out" / "sampled.json").read_bytes())
        assert len(sampled) == 12
        rows = pq.read_table(tmp_path / "out" / "stages.parquet").to_pylist()
        assert len(rows) == 12 * len({row["stage"] for row in rows})
        for plot in ("general", "detailed", "timeline", "scurves", "ecdf", "order"):
            assert self.cli("plot", "-o", out, "--plot", plot) == 0
            assert (tmp_path / "out" / f"{plot}.png").stat().st_size > 5000
        assert self.cli("delete", "-o", out) == 0
        assert "all deleted" in capsys.readouterr().out

        async def clean() -> int:
            async with Kube() as kube:
                jobs = await kube.list(await kube.resource("batch/v1", "Job"), name)
                await kube.delete(await kube.resource("v1", "Namespace"), name)
                return len(jobs)

        assert asyncio.run(clean()) == 0

    @pytest.mark.slow
    @pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
    def test_kubectl_submits_too(self, tmp_path: Path) -> None:
        """Two documents a workload, so that both are made, and both deleted."""
        name, out = f"perfdag-test-{uuid.uuid4().hex[:8]}", str(tmp_path / "out")
        claim = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: 'm-${name}'}\n---\n"
        (tmp_path / "t.yaml").write_text(claim + built_in()["pod"].read_text())
        words = ["--template", str(tmp_path / "t.yaml"), "-n", "4", "-p", "2", "-g", "0", "--namespace", name, "--create-namespace"]
        assert self.cli("submit", "-o", out, "--submitter", "kubectl", *words) == 0
        assert self.cli("sample", "-o", out, "--watch", "30") == 0
        rows = pq.read_table(tmp_path / "out" / "stages.parquet").to_pylist()
        assert [row["status"] for row in rows if row["stage"] == "scheduled"] == ["ok"] * 4
        assert all(row["uid"] for row in rows), "found by name: kubectl tells no UID"
        assert self.cli("delete", "-o", out) == 0

        async def clean() -> list[str]:
            async with Kube() as kube:
                maps = await kube.list(await kube.resource("v1", "ConfigMap"), name, labels=RUN_LABEL)
                await kube.delete(await kube.resource("v1", "Namespace"), name)
                return [each["metadata"]["name"] for each in maps]

        assert asyncio.run(clean()) == []

    @pytest.mark.slow
    def test_failure_messages_can_be_searched_over_runs(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Half of the VMIs fail, with KubeVirt's words; the run says so, and the history finds the words."""
        assert self.cli("nodes", "--count", "20") == 0
        assert self.cli("simulate", "kubevirt", "--failures", "50") == 0
        params = f"{{counts: [20], primer: false, namespace: perfdag-test-{uuid.uuid4().hex[:8]}, timeout: 60s}}"
        (tmp_path / "s.yaml").write_text(f"name: failing\nentries:\n  - {{benchmark: vmi-burst, params: {params}, timeout: 120s}}\n")
        store = ["--store", str(tmp_path / "store")]
        try:
            assert main(["run", str(tmp_path / "s.yaml"), "--no-report", *store]) == 1, "a VMI that failed makes the sample invalid"
            capsys.readouterr()
            assert main(["history", "failing", *store, "--failures", "domain could not be started"]) == 0
            assert "x Simulated: the domain could not be started" in capsys.readouterr().out
            assert main(["history", "failing", *store, "--failures", "no such words"]) == 0
            assert "0 points" in capsys.readouterr().out
        finally:
            self.cli("simulate", "kubevirt")

    @pytest.mark.slow
    def test_a_breached_gate_is_exit_3_and_named(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.cli("nodes", "--count", "20") == 0
        assert self.cli("simulate", "kubevirt") == 0
        gate = ["--gate", "creation_to_running_p50 < 0.000001", "--gate", "virt_api_cpu_cores_avg < 9"]
        assert self.cli("vmi", "burst", "--count", "5", "--no-primer", "-o", str(tmp_path), *gate) == 3
        said = capsys.readouterr().out
        assert "gate creation_to_running_p50 < 1e-06" in said
        assert "BREACHED" in said
        assert "no data for virt_api_cpu_cores_avg" in said
        values: dict[str, Any] = orjson.loads((tmp_path / "perf-audit-results.json").read_bytes())["Values"]
        assert values["creation_to_running_p50"]["thresholdResult"]["thresholdExceeded"] is True
        assert values["vmiCreationToRunningSecondsP50"]["value"] > 0


async def test_the_heartbeat_leaves_nothing(kube: Kube, namespace: str) -> None:
    from perfdag.steps.scale.clock import Heartbeat, server_offset

    offset = await server_offset(kube)
    assert offset.bound < 0.2
    async with Heartbeat(kube, "r", namespace, 0.02) as heart:
        await asyncio.sleep(1.0)
    assert len(heart.lags) > 10
    assert min(heart.lags) > 0
    maps = await kube.list(await kube.resource("v1", "ConfigMap"), namespace, labels=f"{RUN_LABEL}=r")
    assert maps == []

"""Runs on a real API server with nodes that KWOK simulates, also interrupted ones: rows for all,
figures that add up, nothing left behind.
"""

import asyncio
import re
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import orjson
import pyarrow.parquet as pq
import pytest

from perfdag.kube.client import Kube
from perfdag.results.schema import load_rows
from perfdag.steps.scale import vmi, workloads
from perfdag.steps.scale.objects import RUN_LABEL, VMI, built_in, unix_ns
from perfdag.steps.scale.scenario import Context
from perfdag.store.s3 import open_store
from tests import simulation
from tests.fakes.files import write_programs

from .conftest import left

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
KUBEVIRT = "kubevirt.io/v1"
PERFDAG = [sys.executable, "-P", "-m", "perfdag"]


async def run_cli(*words: str) -> str:
    """Run `perfdag` and return its output."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *PERFDAG, *words, stdout=pipe, stderr=asyncio.subprocess.STDOUT
    )
    try:
        output = (await asyncio.wait_for(process.communicate(), 150))[0].decode()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, output
    return output


def middle(values: list[float], p: float) -> float:
    return sorted(values)[int(p * len(values))]


async def test_vms_are_measured_as_their_stages_played_them_and_nothing_is_left(
    kube: Kube, nodes: None, namespace: str
) -> None:
    """The simulated KubeVirt stamps each phase with nanoseconds, just before it writes it: that is
    the truth. The watch must agree within 50 ms at the median, and 100 ms at the 95th percentile.
    """
    await simulation.install(kube, "kubevirt", {"vmi-scheduling": (800, 3300)})
    truth: dict[str, float] = {}
    params = vmi.VmiBurstParams(template="vm", namespace=namespace, primer=False, timeout=120)
    vmis = f"{KUBEVIRT}/{VMI}"

    async def read_truth() -> None:
        async for _, body, _ in kube.watch(vmis, namespace):
            phases = body.get("status", {}).get("phaseTransitionTimestamps", [])
            at = {each["phase"]: unix_ns(each["phaseTransitionTimestamp"]) / 1e9 for each in phases}
            if "Scheduling" in at:
                truth[body["metadata"]["name"]] = at["Scheduling"] - at["Pending"]

    reader = asyncio.create_task(read_truth())
    result = await vmi.burst(kube, params, Context(), 40)
    reader.cancel()
    seconds = {
        row.name: row.seconds or 0.0
        for row in result.rows
        if row.stage == "scheduling" and row.status == "ok"
    }
    assert len(seconds) == 40
    real = [truth[name] for name in seconds]
    for p, bar in ((0.5, 0.05), (0.95, 0.1)):
        assert middle([*seconds.values()], p) == pytest.approx(middle(real, p), abs=bar)
    assert min(real) >= 0.8
    assert all(row.simulated for row in result.rows)
    assert (result.figures["left_behind"], result.figures["success_ratio"]) == (0, 1.0)
    for stage in ("creation_to_scheduled", "deletion_to_succeeded", "deletion", "pod_deletion"):
        assert [row.status for row in result.rows if row.stage == stage] == ["ok"] * 40, stage
    assert (result.figures["deletion/DELETE-virtualmachines-count"] or 0) >= 40
    assert (result.figures.get("DELETE-virtualmachines-count") or 0) < 40, "none of the creation"
    for kind in ("VirtualMachine", VMI):
        assert await left(kube, KUBEVIRT, kind, namespace) == 0
    assert await left(kube, "v1", "Pod", namespace) == 0


async def test_the_recipe_of_the_page_starts_vmis_whose_kinds_are_new_to_the_cluster(
    kube: Kube, nodes: None, namespace: str, tmp_path: Path
) -> None:
    """Its files with a group of their own, because any cluster may have that of KubeVirt. KWOK
    never looks again for the kind of a Stage that was not served.
    """
    group = f"{namespace[-8:]}.example"
    files = tmp_path / "deploy" / "kwok"
    files.mkdir(parents=True)
    for file in simulation.FOLDER.glob("kubevirt*.yaml"):
        text = file.read_text().replace("kubevirt.io", group)
        stages = re.sub(r"(kind: Stage\nmetadata: {name: )", rf"\g<1>{namespace[-8:]}-", text)
        (files / file.name).write_text(stages)
    template = tmp_path / "vmi.yaml"
    template.write_text(built_in()["vmi"].read_text().replace("kubevirt.io", group))
    page = (simulation.FOLDER.parents[1] / "docs" / "scale.md").read_text()
    recipe = re.findall(r"^    ((?:until )?kubectl .*kubevirt.*)$", page, re.M)
    assert len(recipe) == 3
    try:
        for command in recipe:
            command = command.replace("kubevirt.io", group)
            subprocess.run(command, shell=True, cwd=tmp_path, check=True, timeout=60)
        words = ["--template", str(template), "--namespace", namespace, "-o", str(tmp_path / "out")]
        output = await run_cli("scale", "vmi", "burst", "--count", "3", "--timeout", "60", *words)
        assert re.search(r"creation_to_running +created +3 +0 ", output), output
    finally:
        subprocess.run(["kubectl", "delete", "--wait=false", "-f", files], check=True)


def hears_sigint() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it


@pytest.mark.parametrize(("way", "number"), [("scale", signal.SIGINT), ("suite", signal.SIGTERM)])
async def test_an_interrupted_burst_leaves_nothing_in_a_namespace_that_was_there(
    kube: Kube, nodes: None, namespace: str, number: signal.Signals, way: str, tmp_path: Path
) -> None:
    """Stopped in the midst of its creations, of which the answers of some never came."""
    await simulation.install(kube, "kubevirt")
    words = ["scale", "vmi", "burst", "--count", "300", "--no-primer", "--parallel", "8"]
    words += ["--namespace", namespace, "-o", str(tmp_path)]
    if way == "suite":
        params = f"{{counts: [300], primer: false, parallel: 8, namespace: {namespace}}}"
        suite = f"name: cut\nentries:\n  - {{benchmark: vmi-burst, params: {params}}}\n"
        (tmp_path / "s.yaml").write_text(suite)
        store = str(tmp_path / "store")
        words = ["run", str(tmp_path / "s.yaml"), "--no-report", "--store", store]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *PERFDAG, *words, stdout=pipe, stderr=asyncio.subprocess.STDOUT, preexec_fn=hears_sigint
    )
    try:
        for _ in range(600):
            if await left(kube, KUBEVIRT, VMI, namespace) > 20:
                break
            await asyncio.sleep(0.05)
        process.send_signal(number)
        if number == signal.SIGTERM:  # `timeout`, a kubelet and Argo send it twice
            await asyncio.sleep(0.3)
            process.send_signal(number)
        output = (await asyncio.wait_for(process.communicate(), 60))[0].decode()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 130, output
    assert "Traceback" not in output
    for _ in range(50):  # KWOK may just be taking away a VMI that it revived itself
        there = [await left(kube, *kind, namespace) for kind in ((KUBEVIRT, VMI), ("v1", "Pod"))]
        if there == [0, 0]:
            break
        await asyncio.sleep(0.1)
    assert there == [0, 0], "VMIs and pods"
    assert await kube.list("v1/ConfigMap", namespace, labels=RUN_LABEL) == []


FAKE_RUNAI = """
# a fake of Run:ai's command line: it makes an unlabelled TrainingWorkload, as the real one does
exec "{python}" -P - "$2" "$4" <<'END'
import asyncio, sys
from perfdag.kube.client import Kube
async def make():
    async with Kube() as kube:
        spec = {{"name": {{"value": sys.argv[1]}}, "gpu": {{"value": "0"}}}}
        body = {{"apiVersion": "run.ai/v2alpha1", "kind": "TrainingWorkload", "metadata": {{"name": sys.argv[1]}}, "spec": spec}}
        await kube.create(body, "{namespace}")
asyncio.run(make())
END
"""  # noqa: E501


async def test_workloads_of_the_runai_cli_are_found_by_name_and_deleted(
    kube: Kube, nodes: None, namespace: str, tmp_path: Path
) -> None:
    await simulation.install(kube, "runai")
    fake, settings = tmp_path / "fake-runai", tmp_path / "settings.yaml"
    script = FAKE_RUNAI.format(python=sys.executable, namespace=namespace)
    write_programs(tmp_path, {fake.name: script})
    settings.write_text(f"submitter: runai-cli\nrunai_cli_path: {fake}\n")
    out = ["-o", str(tmp_path / "out"), "--settings", str(settings)]
    stray = {
        "apiVersion": "run.ai/v2alpha1",
        "kind": "TrainingWorkload",
        "metadata": {"name": "theirs"},
    }
    await kube.create(
        {**stray, "spec": {"name": {"value": "theirs"}, "gpu": {"value": "0"}}}, namespace
    )
    await run_cli(
        "scale",
        "submit",
        "-t",
        "training",
        "-n",
        "2",
        "-p",
        "2",
        "-g",
        "0",
        "--namespace",
        namespace,
        *out,
    )
    await run_cli("scale", "sample", "--watch", "60", *out)
    rows = pq.read_table(tmp_path / "out" / "stages.parquet").to_pylist()
    assert [row["status"] for row in rows if row["stage"] == "submission_to_scheduled"] == [
        "ok"
    ] * 2
    await run_cli("scale", "delete", *out)
    there = await kube.list("run.ai/v2alpha1/TrainingWorkload", namespace)
    assert [item["metadata"]["name"] for item in there] == ["theirs"]


async def test_kubectl_submits_and_every_plot_is_drawn(
    kube: Kube, nodes: None, namespace: str, tmp_path: Path
) -> None:
    """Two documents a workload, so that both are made, and both deleted."""
    own = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: 'm-${name}'}\n---\n"
    (tmp_path / "t.yaml").write_text(own + built_in()["pod"].read_text())
    folder, out = tmp_path / "out", ["-o", str(tmp_path / "out")]
    words = ["--template", str(tmp_path / "t.yaml"), "-n", "7", "-p", "2", "--delay", "0.2"]
    words += ["-g", "0", "--namespace", namespace, "--submitter", "kubectl"]
    await run_cli("scale", "submit", *out, *words)
    submitted = orjson.loads((folder / "submitted.json").read_bytes())
    assert len(submitted) == 7, "the remainder of 7 by 2 is not dropped"
    assert set(submitted[0]) == {"jobName", "projectName", "jobNamespace", "submitTimestamp"}
    await run_cli("scale", "sample", *out)
    await run_cli("scale", "sample", *out, "--watch", "30")
    sampled = orjson.loads((folder / "sampled.json").read_bytes())
    assert (len(sampled), all(all(item.values()) for item in sampled)) == (7, True)
    rows = pq.read_table(folder / "stages.parquet").to_pylist()
    assert [row["status"] for row in rows if row["stage"] == "scheduled"] == ["ok"] * 7
    assert all(row["uid"] for row in rows), "found by name: kubectl tells no UID"
    for plot in ("general", "detailed"):
        await run_cli("scale", "plot", *out, "--plot", plot)
        assert (folder / f"{plot}.png").stat().st_size > 5000
    assert "all deleted" in await run_cli("scale", "delete", *out)
    for kind in ("Pod", "ConfigMap"):
        assert await kube.list(f"v1/{kind}", namespace, labels=RUN_LABEL) == []


async def test_claims_are_asked_for_bound_and_gone(kube: Kube, nodes: None, namespace: str) -> None:
    """Run:ai's workloads with half a GPU and a claim a pod: request and bind each from its own
    pair, on a storage class that KWOK plays.
    """
    await simulation.install(kube, "runai")
    await simulation.install(kube, "storage", {"pvc-provisioned": (300, 300)})
    try:
        params = workloads.ScaleParams(
            template="distributed",
            count=3,
            workers=2,
            gpus=0.5,
            pvc=True,
            storage_class="perfdag-simulated",
            namespace=namespace,
            timeout=60,
        )
        (result,) = await workloads.Scale().measure(kube, params, Context())
        assert result.figures["success_ratio"] == 1.0
        assert {row.status for row in result.rows} <= {"ok", "unobserved"}
        seen = {row.stage for row in result.rows if row.status == "ok"}
        assert {"workload_created", "last_pod_created", "pvc_requested", "ready"} <= seen
        bound = [row for row in result.rows if row.stage == "pvc_bound"]
        assert [(row.status, row.objects) for row in bound] == [("ok", 3)] * 3, "a claim a pod"
        took = sorted(row.seconds or 0 for row in bound)
        assert 0.28 <= took[1] <= took[2] < 10, took
        assert await left(kube, "v1", "PersistentVolumeClaim", namespace) == 0
    finally:
        for body in simulation.objects("storage"):
            await kube.delete(f"{body['apiVersion']}/{body['kind']}", body["metadata"]["name"])


SUITE = """name: control-plane
entries:
  - benchmark: scale
    params: {{template: job, count: 20, workers: 2, parallel: 4, goal: succeeded, namespace: perfdag-test-{id}-jobs, timeout: 60s}}
    timeout: 180s
  - benchmark: vmi-steady
    params: {{count: 6, churn: 2, pause: 1s, duration: 4s, api_gates: false, namespace: perfdag-test-{id}-vmis, timeout: 60s}}
    timeout: 180s
"""  # noqa: E501


async def test_the_benchmarks_run_and_their_rows_add_up(
    kube: Kube, nodes: None, tmp_path: Path
) -> None:
    await simulation.install(kube, "kubevirt")
    (tmp_path / "s.yaml").write_text(SUITE.format(id=uuid.uuid4().hex[:6]))
    await run_cli("run", str(tmp_path / "s.yaml"), "--store", str(tmp_path / "store"))
    rows = load_rows(open_store(str(tmp_path / "store")), suites=["control-plane"]).to_pylist()
    value = {
        (row["entry"], row["metric"], row["stat"]): row["value"]
        for row in rows
        if row["subject"] is None and row["status"] == "ok"
    }
    assert {value[entry, "success_ratio", "value"] for entry in ("scale", "vmi-steady")} == {1.0}
    assert value["scale", "submission_to_scheduled", "p50"] > 0
    assert value["vmi-steady", "churn_cycles", "value"] >= 1
    assert (
        len(
            {
                row["subject"]
                for row in rows
                if row["entry"] == "scale" and row["metric"] == "object_latency"
            }
        )
        == 20
    )
    assert all("simulated" in row["tool"] for row in rows if row["benchmark"] != "canary")
    assert list((tmp_path / "store" / "runs").glob("*/report.html"))

"""A run on a real API server that is interrupted, runs out of time, or is not alone: nothing is left behind and nothing is lost."""

import asyncio
import os
import signal
import sys
import time
import uuid
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from perfdag.cli import main
from perfdag.kube.client import Kube
from perfdag.steps.scale.cluster import simulation
from perfdag.steps.scale.cluster.removal import belongs, remove_run
from perfdag.steps.scale.model.stages import VMI
from perfdag.steps.scale.model.templates import RUN_LABEL, load
from perfdag.steps.scale.scenarios import vmi

from .cluster import left

pytestmark = pytest.mark.cluster
CLI = [sys.executable, "-P", "-m", "perfdag", "scale"]


def hears_sigint() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it


async def cli(*words: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *CLI, *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        output = (await asyncio.wait_for(process.communicate(), 120))[0].decode()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, output
    return output


@pytest.mark.slow
@pytest.mark.parametrize("way", ["scale", "suite"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_an_interrupted_burst_leaves_nothing_in_a_namespace_that_was_there(
    kube: Kube, nodes: None, namespace: str, number: signal.Signals, way: str, tmp_path: Path
) -> None:
    """Stopped in the midst of its creations, of which the answers of some never came."""
    await simulation.install(kube, "kubevirt")
    params = f"{{counts: [300], primer: false, parallel: 8, namespace: {namespace}}}"
    (tmp_path / "s.yaml").write_text(
        f"name: cut\nentries:\n  - {{benchmark: vmi-burst, params: {params}}}\n"
    )
    suite = [
        *CLI[:-1],
        "run",
        str(tmp_path / "s.yaml"),
        "--no-report",
        "--store",
        str(tmp_path / "store"),
    ]
    own = [
        *CLI,
        "vmi",
        "burst",
        "--count",
        "300",
        "--no-primer",
        "--parallel",
        "8",
        "--namespace",
        namespace,
        "-o",
        str(tmp_path),
    ]
    argv = suite if way == "suite" else own
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        preexec_fn=hears_sigint,
    )
    try:
        for _ in range(600):
            if await left(kube, "kubevirt.io/v1", VMI, namespace) > 20:
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
    run = output.partition("run ")[2].partition(":")[0]
    if way == "scale":
        assert (
            await kube.list(
                await kube.resource("kubevirt.io/v1", VMI), namespace, labels=f"{RUN_LABEL}={run}"
            )
            == []
        )
    for _ in range(50):  # KWOK may just be taking away a VMI that it revived itself
        kinds = [("kubevirt.io/v1", VMI), ("v1", "Pod")]
        if (there := [await left(kube, *kind, namespace) for kind in kinds]) == [0, 0]:
            break
        await asyncio.sleep(0.1)
    assert there == [0, 0], "VMIs and pods"
    assert (
        await kube.list(await kube.resource("v1", "ConfigMap"), namespace, labels=RUN_LABEL) == []
    )


@pytest.mark.slow
@pytest.mark.parametrize("at", ["primer", "burst", "ladder", "preemption"])
async def test_a_killed_run_is_deleted_by_the_id_that_it_said(
    kube: Kube, nodes: None, at: str, tmp_path: Path
) -> None:
    """SIGKILL leaves all as it is: VMIs that never run, pods and PriorityClasses, the heartbeat, a namespace of the run's own."""
    await simulation.install(kube, "kubevirt", {"vmi-running": (600_000, 600_000)})
    name = f"perfdag-test-{uuid.uuid4().hex[:8]}"
    words = {
        "primer": ["vmi", "burst", "--count", "9"],
        "burst": ["vmi", "burst", "--count", "9", "--no-primer"],
        "ladder": ["vmi", "ladder", "--count", "9", "12", "--no-primer"],
        "preemption": ["preemption", "--count", "2", "-g", "8"],
    }[at]
    kind, wanted = (
        (("v1", "Pod"), 1)
        if at == "preemption"
        else (("kubevirt.io/v1", VMI), 1 if at == "primer" else 9)
    )
    process = await asyncio.create_subprocess_exec(
        *CLI,
        *words,
        "--namespace",
        name,
        "-o",
        str(tmp_path),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        for _ in range(1200):
            if await left(kube, *kind, name) >= wanted:
                break
            await asyncio.sleep(0.05)
    finally:
        process.kill()
        output = (await process.communicate())[0].decode()
    run = output.partition("\nrun " if "waiting" in output else "run ")[2].partition(":")[0]
    classes = await kube.resource("scheduling.k8s.io/v1", "PriorityClass")

    async def there() -> set[str]:
        result = [
            (kind, await kube.list(await kube.resource(*kind), name)),
            (("", "namespace"), await named(kube, name)),
        ]
        result.append(
            (
                ("", "class"),
                [
                    class_
                    for class_ in await kube.list(classes)
                    if run in class_["metadata"]["name"]
                ],
            )
        )
        return {key[1] for key, items in result if items}

    try:
        assert await there() == {
            kind[1],
            "namespace",
            *(["class"] if at == "preemption" else []),
        }, output
        assert "all deleted" in await cli("delete", "--run", run)
        assert await there() == set()
    finally:  # not before: who plays KubeVirt misses what is deleted while its stages change
        await simulation.install(kube, "kubevirt")


async def named(kube: Kube, name: str) -> list[str]:
    """The namespace of that name, if it is there."""
    return [
        name
        for item in await kube.list(await kube.resource("v1", "Namespace"))
        if item["metadata"]["name"] == name
    ]


def test_parts_of_a_run_belong_to_it_and_other_runs_do_not() -> None:
    run = "r1121120501-a1b2c3"
    for label, ours in (
        ("", True),
        ("-primer", True),
        ("-sample", True),
        ("-2", True),
        ("-2-primer", True),
        ("-other", False),
        ("9", False),
    ):
        assert belongs(run, {"labels": {RUN_LABEL: run + label}}) is ours, label
    assert not belongs("r1121120501", {"labels": {RUN_LABEL: run}}), "half an id is no run's"
    assert not belongs(run, {})


@pytest.mark.slow
async def test_all_of_a_run_can_be_deleted_by_its_id(kube: Kube, namespace: str) -> None:
    pods = await kube.resource("v1", "Pod")
    for run, name in (("r-1", "a"), ("r-1", "b"), ("q-2", "c")):
        body = load("pod", run, {"gpus": 0}).documents[0].render(name, namespace, 0)
        await kube.raw("POST", pods.path(namespace), body=body)
    await kube.create(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "m", "labels": {RUN_LABEL: "r-1"}},
        },
        namespace,
    )
    assert await remove_run(kube, "r-1", namespace, 5, 60) == 0
    assert [pod["metadata"]["name"] for pod in await kube.list(pods, namespace)] == ["c"]
    assert (
        await kube.list(await kube.resource("v1", "ConfigMap"), namespace, labels=RUN_LABEL) == []
    )


@pytest.mark.slow
async def test_vmis_that_never_run_are_censored_rows_when_the_time_is_over(
    kube: Kube, nodes: None, namespace: str
) -> None:
    await simulation.install(kube, "kubevirt", {"vmi-running": (600_000, 600_000)})
    try:
        spec = vmi.Spec(
            namespaces=[namespace], primer=False, timeout=600, deadline=time.monotonic() + 8
        )
        result = await vmi.burst(kube, spec, 5)
    finally:
        await simulation.install(kube, "kubevirt")
    ran = [row for row in result.rows if row.stage == "creation_to_running"]
    assert [row.status for row in ran] == ["censored"] * 5
    assert all(1 < (row.seconds or 0) < 60 for row in ran)
    assert any(
        "5 of 5 VMIs not Running at the time limit of the sample" in note
        for note in result.facts["notes"]
    )
    assert result.figures["left_behind"] == 0
    assert await left(kube, "kubevirt.io/v1", VMI, namespace) == 0


@pytest.mark.slow
def test_a_sample_of_vmis_that_never_run_keeps_their_rows(tmp_path: Path) -> None:
    """As a suite runs it, with a limit that the entry sets."""
    if "KUBECONFIG" not in os.environ:
        pytest.skip("KUBECONFIG is not set: no cluster to test against")
    from perfdag.results.schema import load_rows
    from perfdag.store.open import open_store

    assert main(["scale", "nodes", "--count", "20"]) == 0
    assert main(["scale", "simulate", "kubevirt", "--delay", "vmi-running=600000-600000"]) == 0
    try:
        params = f"{{counts: [4], primer: false, api_gates: false, namespace: perfdag-test-{uuid.uuid4().hex[:8]}}}"
        (tmp_path / "s.yaml").write_text(
            f"name: stuck\nentries:\n  - {{benchmark: vmi-burst, params: {params}, timeout: 20s}}\n"
        )
        assert (
            main(
                ["run", str(tmp_path / "s.yaml"), "--no-report", "--store", str(tmp_path / "store")]
            )
            == 1
        )
    finally:
        main(["scale", "simulate", "kubevirt"])
    rows = load_rows(open_store(str(tmp_path / "store")), suites=["stuck"]).to_pylist()
    never = [
        row
        for row in rows
        if row["metric"] == "object_missing" and "creation_to_running" in row["coords"]
    ]
    assert len(never) == 4
    assert {row["status"] for row in never} == {"invalid"}
    assert "no VMI ran" in never[0]["error"]


@pytest.mark.slow
async def test_a_second_submission_into_a_namespace_counts_its_own_pods(
    kube: Kube, nodes: None, namespace: str, tmp_path: Path
) -> None:
    """The pods of the first are all ready: the sample of the second must not be content with them."""
    words = ["--template", "pod", "-p", "4", "-g", "0", "--namespace", namespace]
    await cli("submit", "-n", "8", "-o", str(tmp_path / "one"), *words)
    await cli("sample", "-o", str(tmp_path / "one"), "--watch", "60")
    await cli("submit", "-n", "5", "-o", str(tmp_path / "two"), *words)
    assert "8 of 5" not in await cli("sample", "-o", str(tmp_path / "two"), "--watch", "60")
    rows = pq.read_table(tmp_path / "two" / "stages.parquet").to_pylist()
    assert [row["status"] for row in rows if row["stage"] == "ready"] == ["ok"] * 5
    await cli("delete", "-o", str(tmp_path / "two"))
    assert await left(kube, "v1", "Pod", namespace) == 8, "the first is not the second's to delete"


FAKE_RUNAI = """#!/bin/sh
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
"""


@pytest.mark.slow
async def test_workloads_of_the_runai_cli_are_found_by_name_and_deleted(
    kube: Kube, nodes: None, namespace: str, tmp_path: Path
) -> None:
    await simulation.install(kube, "runai")
    fake, settings = tmp_path / "fake-runai", tmp_path / "settings.yaml"
    fake.write_text(FAKE_RUNAI.format(python=sys.executable, namespace=namespace))
    fake.chmod(0o755)
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
    await cli(
        "submit", "-t", "training", "-n", "2", "-p", "2", "-g", "0", "--namespace", namespace, *out
    )
    await cli("sample", "--watch", "60", *out)
    rows = pq.read_table(tmp_path / "out" / "stages.parquet").to_pylist()
    assert [row["status"] for row in rows if row["stage"] == "submission_to_scheduled"] == [
        "ok"
    ] * 2
    await cli("delete", *out)
    there = await kube.list(await kube.resource("run.ai/v2alpha1", "TrainingWorkload"), namespace)
    assert [item["metadata"]["name"] for item in there] == ["theirs"]

"""Real KubeVirt and real KAI against an independent watch: `kubectl get --watch` in a process of
its own.

The programs are not part of perfdag. Put virt-controller or the binder of KAI on PATH, start them,
and name their cluster with KUBECONFIG. The nodes may be simulated by KWOK. Without the programs
these tests are skipped.
"""

import asyncio
import os
import re
import shutil
import socket
import subprocess
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import yaml

from perfdag.kube.client import Kube, KubeError
from perfdag.kube.prometheus import Prometheus
from perfdag.steps.scale.figures.percentiles import rank
from perfdag.steps.scale.figures.rows import Row
from perfdag.steps.scale.figures.transition_times import transition_times
from perfdag.steps.scale.model.schedule import Schedule
from perfdag.steps.scale.model.stages import VMI
from perfdag.steps.scale.model.templates import FOLDER
from perfdag.steps.scale.scenarios import gangs, gpus, submit, vmi, vmi_spec
from perfdag.steps.scale.scenarios.base import Result, Spec
from perfdag.steps.scale.scenarios.free_gpus import free_gpus
from tests.fakes.proxy import Proxy

from .kubectl_watch import Watch, watching

pytestmark = pytest.mark.cluster
CLOSE = 0.05
"""Seconds between perfdag and the independent watch at the median."""
COUNT = int(os.environ.get("PERFDAG_TEST_VMIS", "40"))
RUN = "creation_to_running"
SUITE = Path(__file__).parents[2] / "suites/kubevirt-density.yaml"


def need(*programs: str) -> None:
    """Skip unless all programs are on PATH."""
    if missing := [name for name in programs if not shutil.which(name)]:
        pytest.skip(f"THE REAL PROGRAMS ARE NOT HERE: {', '.join(missing)} not on PATH")


def distances(rows: list[Row], stage: str, watch: Watch, start: str, end: str) -> list[float]:
    """Seconds between perfdag's and the watch's duration of a stage, of the rows by receive
    time.
    """
    return [
        abs((row.seconds or 0) - watch.between(row.uid, start, end))
        for row in rows
        if row.stage == stage and row.source == "receive"
    ]


@pytest.fixture
async def kubevirt(kube: Kube) -> None:
    need("virt-controller", "virt-api", "kubectl")
    try:
        found = await kube.list(await kube.resource("kubevirt.io/v1", "KubeVirt"))
    except KubeError:
        found = []
    if not any((body.get("status") or {}).get("phase") == "Deployed" for body in found):
        pytest.skip("THE REAL PROGRAMS ARE NOT HERE: KUBECONFIG names a cluster without KubeVirt")


def density(namespace: str, **more: object) -> vmi_spec.Spec:
    entry = yaml.safe_load(SUITE.read_text())["entries"][0]["params"]
    return vmi_spec.Spec(
        template=entry["template"],
        namespaces=[namespace],
        schedule=Schedule("constant", 10.0),
        timeout=400,
        **more,  # type: ignore[arg-type]
    )


def tell(text: str) -> None:
    """Print a figure; `pytest -s` shows it."""
    print(text)  # noqa: T201


def show(what: str, apart: list[float]) -> None:
    tell(
        f"{what}: p50 {median(apart):.4f} s, p95 {rank(sorted(apart), 0.95, 1):.4f} s, n "
        f"{len(apart)}"
    )


@pytest.mark.kubevirt
@pytest.mark.slow
async def test_vmis_of_real_kubevirt_are_timed_as_an_independent_watch_sees_them(
    kube: Kube, kubevirt: None, namespace: str
) -> None:
    with watching("vmi", namespace) as watch:
        messages: list[str] = []
        result = await vmi.burst(kube, density(namespace, log=messages.append), COUNT)
    assert (result.figures["success_ratio"], result.figures["left_behind"]) == (1.0, 0)
    for stage, start, end in (
        ("creation_to_scheduled", "created", "scheduled"),
        ("creation_to_running", "created", "running"),
    ):
        apart = distances(result.rows, stage, watch, start, end)
        show(stage, apart)
        assert len(apart) > 0.9 * COUNT
        assert median(apart) < CLOSE
    assert_api_times_agree(result, 5 * COUNT)
    assert any("VMIs fit on" in text and "memory" in text for text in messages)
    assert result.facts["vmis_per_node_max"] >= 1
    lags = {item["kind"]: item for item in result.facts["watch_lag"]}
    tell(
        f"median lag of VMIs {lags[VMI]['median_s']:.4f} s, of pods {lags['Pod']['median_s']:.4f} s"
    )
    assert min(item["beats"] for item in lags.values()) >= 10
    assert (result.figures["PATCH-virtualmachineinstances-count"] or 0) <= 2 * COUNT


def assert_api_times_agree(result: Result, at_least: int) -> None:
    """A duration is within a second and its error bar of the difference of the API's times.

    `at_least` so many durations have both times. Of 5 % of the rows it may be off by more:
    controllers stamp a change before they write it, and a busy server delays the write.
    """
    by_stage = {(row.uid, row.stage): row for row in result.rows}
    apart = []
    for row in result.rows:
        start = by_stage.get((row.uid, row.since))
        if row.status == "ok" and row.api_time and start and start.api_time:
            lag = max(row.resolution_s or 0, row.late_s or 0, start.late_s or 0)
            apart.append(abs((row.seconds or 0) - (row.api_time - start.api_time)) - lag)
    show("beyond the error bar, by the API's times", apart)
    assert len(apart) >= at_least
    assert (rank(sorted(apart), 0.95, 1) or 0) <= 1.0


@pytest.mark.kubevirt
@pytest.mark.slow
async def test_a_watch_that_is_cut_for_6_seconds_invents_no_time(
    kubevirt: None, namespace: str, through_proxy: Proxy
) -> None:
    """Rows by receive time agree with a watch that was not cut; the others have the API's time."""

    async def cut() -> None:
        await asyncio.sleep(max(8.0, COUNT / 20))  # ten a second: in the middle
        through_proxy.leave()
        await asyncio.sleep(6.0)
        through_proxy.away = False

    with watching("vmi", namespace) as watch:
        async with Kube() as kube:
            cutting = asyncio.create_task(cut())
            result = await vmi.burst(kube, density(namespace, primer=False), COUNT)
            await cutting
    ok = [row for row in result.rows if row.stage == "creation_to_running" and row.status == "ok"]
    received = [row for row in ok if row.source == "receive"]
    tell(f"{len(ok)} of {COUNT} ran; {len(received)} have receive times; {result.facts['notes']}")
    apart = []
    for row in received:
        apart.append(abs((row.seconds or 0) - watch.between(row.uid, "created", "running")))
        assert apart[-1] <= 0.5 + max(row.resolution_s or 0, row.late_s or 0), row
    show(RUN, apart)
    assert median(apart) < CLOSE
    assert len(received) < len(ok)
    assert any("watches were away" in note for note in result.facts["notes"])
    assert_api_times_agree(result, 5 * COUNT)


@pytest.fixture
async def prometheus(tmp_path: Path) -> AsyncIterator[Prometheus]:
    """A Prometheus that scrapes virt-controller (PERFDAG_TEST_VIRT_CONTROLLER=HOST:PORT)."""
    need("prometheus")
    target = os.environ.get("PERFDAG_TEST_VIRT_CONTROLLER")
    if not target:
        pytest.skip("THE REAL PROGRAMS ARE NOT HERE: PERFDAG_TEST_VIRT_CONTROLLER is not set")
    labels = {"pod": "virt-controller-1", "container": "virt-controller"}
    job = {
        "job_name": "virt-controller",
        "scheme": "https",
        "tls_config": {"insecure_skip_verify": True},
        "static_configs": [{"targets": [target], "labels": labels}],
    }
    config = {"global": {"scrape_interval": "2s"}, "scrape_configs": [job]}
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"127.0.0.1:{free.getsockname()[1]}"
    argv = ["prometheus", f"--config.file={tmp_path}/prometheus.yml"]
    argv += [f"--storage.tsdb.path={tmp_path}/data", f"--web.listen-address={url}"]
    process = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
    await asyncio.sleep(12.0)  # some scrapes before the run
    yield Prometheus(f"http://{url}")
    process.terminate()
    process.wait()


@pytest.mark.kubevirt
@pytest.mark.slow
async def test_the_histogram_of_real_kubevirt_agrees_and_a_disagreement_is_named(
    kube: Kube, kubevirt: None, namespace: str, prometheus: Prometheus
) -> None:
    spec = density(namespace, primer=False, prometheus=prometheus)
    result = await vmi.burst(kube, spec, COUNT)
    ours, theirs = (result.figures[name] for name in (f"{RUN}_p50", f"virt_{RUN}_p50_s"))
    tell(f"perfdag {ours} s, KubeVirt's histogram {theirs} s; {result.facts['notes']}")
    assert ours is not None
    assert theirs is not None
    assert not any("KubeVirt's own histogram" in note for note in result.facts["notes"])
    wrong = [
        replace(stage, p50=ours + 100) if stage.stage == RUN else stage for stage in result.stages
    ]
    times = await transition_times(prometheus, result.started, result.ended, 2.0, wrong)
    (note,) = [text for text in times.notes if RUN.replace("_", " ") in text]
    tell(note)
    assert note.startswith("KubeVirt's own histogram has the p50 of creation to running in ")


LAST = {
    "start": "submission_to_running",
    "stop": "submission_to_gone",
    "restart": "submission_to_running",
    "snapshot": "submission_to_ready",
    "migrate": "preparingtarget",
}
"""The last stage of an operation that can be reached without virt-handler."""


@pytest.mark.kubevirt
@pytest.mark.slow
@pytest.mark.parametrize("operation", [*LAST, "pause"])
async def test_operations_on_vms_of_real_kubevirt(
    kube: Kube, kubevirt: None, namespace: str, operation: Any
) -> None:
    spec = density(namespace, primer=False, operation=operation, gates=[])
    spec.template, spec.timeout = "vm", 30
    if operation == "migrate":  # a container disk needs a digest, which a simulated pod has not
        disk = re.compile(r"containerDisk: .*")
        spec.template = disk.sub("emptyDisk: {capacity: 1Mi}", (FOLDER / "vm.yaml").read_text())
    result = await vmi.burst(kube, spec, 2)
    assert (result.figures["success_ratio"], result.figures["left_behind"]) == (1.0, 0)
    rows = {row.stage: row for row in result.rows if row.stage.startswith(f"{operation}_")}
    if operation == "pause":  # virt-api asks virt-handler, which is not here
        assert result.figures["operation_ratio"] == 0.0
        assert any("2 VMs refused pause: No virt-handler" in it for it in result.facts["notes"])
        return
    last = rows[f"{operation}_{LAST[operation]}"]
    tell(f"{last.stage} {last.seconds} s +- {last.resolution_s} s")
    assert (last.status, last.source) == ("ok", "receive")
    assert result.figures["operation_ratio"] == (0.0 if operation == "migrate" else 1.0)
    assert all((row.seconds or 0) >= -(row.resolution_s or 0) for row in result.rows)
    stages = {row.stage: row.status for row in result.rows}
    assert stages["vm_ready"] == stages["pod_initialized"] == stages["pod_containers_ready"] == "ok"


@pytest.fixture
async def queue(kube: Kube) -> AsyncIterator[str]:
    """A queue of real KAI that may use all GPUs."""
    need("podgrouper", "binder", "kubectl")
    try:
        await kube.resource("scheduling.run.ai/v2", "Queue")
    except KubeError:
        pytest.skip("THE REAL PROGRAMS ARE NOT HERE: KUBECONFIG names a cluster without KAI")
    share = sum((await free_gpus(kube)).values())
    async with gangs.own_queues(kube, gangs.KAI, uuid.uuid4().hex[:6], share, [], print) as names:
        yield names[0]


@pytest.mark.kai
@pytest.mark.slow
async def test_preemption_by_real_kai_is_timed_and_counted(
    kube: Kube, queue: str, namespace: str
) -> None:
    room = sum((await free_gpus(kube)).values())
    wanted = room // 3
    spec = Spec(
        template="job",
        count=wanted,
        namespaces=[namespace],
        scheduler="kai-scheduler",
        queue=queue,
        timeout=300,
    )
    with watching("pods", namespace) as watch:
        result = await gpus.preemption(kube, spec)
    assert (result.disturbed, result.figures["left_behind"]) == ("", 0)
    assert result.figures["preemptors"] == result.figures["evicted"] == wanted
    apart = distances(result.rows, "scheduled", watch, "created", "scheduled")
    show("scheduled", apart)
    assert len(apart) > 0.9 * (room + wanted)
    assert median(apart) < CLOSE
    assert_api_times_agree(result, room + wanted)
    told = [row for row in result.rows if row.stage == "evicted" and row.status == "ok"]
    tell(f"{len(told)} of {wanted} evictions have an Event")
    assert len(told) >= wanted / 2, "KAI drops some Events of many"


@pytest.mark.kai
@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "members"),
    [
        ("reclaim", 1),
        ("reclaim", 0),
        ("gang", 8),
        ("failed-reclaim", 1),
        ("consolidation", 1),
        ("topology", 8),
    ],
)
async def test_queues_and_gangs_of_real_kai(
    kube: Kube, queue: str, namespace: str, scenario: submit.Scenario, members: int
) -> None:
    """Members 0 is one gang of half the cluster, the largest that a reclaim allows."""
    room = sum((await free_gpus(kube)).values())
    members = members or room // 2
    count = room // members if scenario == "topology" else 2
    spec = Spec(count=count, workers=members, namespaces=[namespace], timeout=300)
    spec.rack_label = os.environ.get("PERFDAG_TEST_RACK_LABEL", spec.rack_label)
    with watching("pods", namespace) as watch:
        result = await submit.measure(kube, spec, scenario)
    figures = result.figures
    assert (result.disturbed, figures["left_behind"]) == ("", 0), result.facts["notes"]
    assert figures["success_ratio"] == 1.0, result.facts["notes"]
    wait = submit.WAITS.get(scenario, "submission_to_scheduled")
    tell(f"{scenario} of {room} pods: {wait}_p50 {figures[f'{wait}_p50']} s")
    if scenario == "gang":
        assert figures["gangs_placed"] == figures["gangs_fitting"] == room // 8
        assert figures["gangs_split"] == 0
    elif scenario == "reclaim":
        assert figures["reclaimed"] == figures["evicted"] == room // 2
    elif scenario == "failed-reclaim":
        assert (figures["gangs_refused"], figures["evicted"]) == (5, 0)
    elif scenario == "topology":
        assert figures["gangs_in_one_rack"] == figures["gangs_placed"] == count
    else:
        assert figures["consolidated"] == count
        assert (figures["evicted"] or 0) >= count
    rows = [
        row
        for row in result.rows
        if (row.stage, row.status, row.source) == ("scheduled", "ok", "receive")
        and len(watch.pods[row.uid]) == row.objects
    ]
    seen = [watch.last(row.uid, "scheduled") - watch.last(row.uid, "created") for row in rows]
    apart = [abs((row.seconds or 0) - at) for row, at in zip(rows, seen, strict=True)]
    bar = median(row.resolution_s or 0 for row in rows)
    show(f"last pod created to last pod scheduled, error bar {bar:.3f} s", apart)
    assert median(apart) < CLOSE
    assert_api_times_agree(result, len(rows))

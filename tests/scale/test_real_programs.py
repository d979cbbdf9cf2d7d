"""Real KubeVirt and real KAI against an independent watch: `kubectl get --watch` in a process of
its own.

The programs are not part of perfdag. Put virt-controller or the binder of KAI on PATH, start them,
and name their cluster with KUBECONFIG. The nodes may be simulated by KWOK. Without the programs
these tests are skipped.
"""

import os
import shutil
from pathlib import Path
from statistics import median

import pytest
import yaml

from perfdag.kube.client import Kube, KubeError
from perfdag.steps.scale.figures.rows import Row, rank
from perfdag.steps.scale.measure.generator import Schedule
from perfdag.steps.scale.model.stages import VMI
from perfdag.steps.scale.scenarios import vmi
from perfdag.steps.scale.scenarios.session import Result

from .kubectl_watch import Watch, watching

pytestmark = pytest.mark.cluster
CLOSE = 0.05
"""Seconds between perfdag and the independent watch at the median."""
COUNT = int(os.environ.get("PERFDAG_TEST_VMIS", "40"))
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


def density(namespace: str, **more: object) -> vmi.Spec:
    entry = yaml.safe_load(SUITE.read_text())["entries"][0]["params"]
    return vmi.Spec(
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
            lag = max(row.resolution_s or 0, result.figures["watch_lag_p99"] or 0)
            apart.append(abs((row.seconds or 0) - (row.api_time - start.api_time)) - lag)
    show("beyond the error bar, by the API's times", apart)
    assert len(apart) >= at_least
    assert (rank(sorted(apart), 0.95, 1) or 0) <= 1.0

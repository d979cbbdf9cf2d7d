"""Where hosts of a cluster are placed, what their nodes pull, and the Jobs of a suite."""

from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from perfdag.app.cluster.job_manifest import job_manifests
from perfdag.app.doctor.requirements import check_requirements
from perfdag.app.errors import CommandError
from perfdag.app.local_run import PROVIDED, needs_cluster
from perfdag.app.plan_text import plan_text
from perfdag.cli import main
from perfdag.kube.node_images import MAX_PULLS, missing_images
from perfdag.kube.pod_patch import Context, patch
from perfdag.plan.ab import on_cluster, prepare_duet
from perfdag.plan.placement import place_hosts
from perfdag.plan.plan import Plan, make_plan
from perfdag.shape import Shape
from perfdag.steps.runner.feasibility import unmet
from perfdag.suite.load import parse_suite
from perfdag.workflows.containers import Installation
from tests.conftest import CommandLine
from tests.steps.test_feasibility import cluster

RDMA = {"network": {"host": True}}


def plan_of(*entries: dict[str, Any]) -> Plan:
    return make_plan(parse_suite(orjson.dumps({"name": "s", "entries": entries}).decode()))


@pytest.mark.parametrize(
    ("entry", "placement"),
    [
        ({"benchmark": "iperf"}, "spread"),
        ({"benchmark": "iperf", "hosts": {"count": 3, "pairs": "all"}}, "spread"),
        ({"benchmark": "imb", "hosts": {"count": 2}}, "spread"),
        ({"benchmark": "imb", "hosts": {"count": 1}}, None),
        ({"benchmark": "openfoam", "params": {"nodes": 2, "procs": 4}}, "spread"),
        ({"benchmark": "rdma-latency", **RDMA}, "spread"),
        ({"benchmark": "rdma-bandwidth", **RDMA}, "spread"),
        ({"benchmark": "fio", "hosts": {"count": 2}}, "any"),
        ({"benchmark": "iperf", "hosts": {"placement": "any"}}, "any"),
        ({"benchmark": "iperf", "hosts": {"placement": "packed"}}, "packed"),
    ],
)
def test_several_hosts_have_the_placement_of_their_benchmark_on_a_cluster(
    entry: dict[str, Any], placement: str | None
) -> None:
    plan = plan_of(entry)
    there = place_hosts(plan)
    [shape] = [Shape.model_validate(shape) for shape in there.shapes]
    assert shape.hosts.placement == placement
    affinity = str(patch(shape, Context(plan.run_id, "uid", "i", "s3://b")))
    assert ("podAntiAffinity" in affinity) == (placement == "spread")
    assert [point.id for point in there.points] == [point.id for point in plan.points]
    own = entry.get("hosts", {}).get("placement")
    wish = f"placement on a cluster: {placement}"
    assert (wish in plan_text(plan)) == (placement is not None and own is None)


def test_the_default_placement_changes_nothing_on_one_machine() -> None:
    spread = {"benchmark": "iperf", "name": "wish", "hosts": {"placement": "spread"}}
    default, wish = plan_of({"benchmark": "iperf"}, spread).shapes
    assert needs_cluster(Shape.model_validate(default)) is None
    assert "placement: spread" in (needs_cluster(Shape.model_validate(wish)) or "")


def test_benchmarks_of_different_placements_share_no_pods() -> None:
    hosts = {"hosts": {"count": 2}, "image": "registry.example/all:1"}
    plan = plan_of({"benchmark": "fio", **hosts}, {"benchmark": "iperf", **hosts})
    placements = {shape["hosts"]["placement"] for shape in place_hosts(plan).shapes}
    assert placements == {"any", "spread"}


def test_both_variants_of_a_duet_are_spread() -> None:
    suite = parse_suite("name: s\nentries: [{benchmark: iperf}]")
    duet = on_cluster(prepare_duet(suite, suite, ("", ""), 8))
    for plan in (duet.a, duet.b):
        assert plan.shapes[0]["hosts"]["placement"] == "spread"


async def test_too_few_nodes_are_found_and_the_points_are_skipped() -> None:
    params = {"benchmark": "Allreduce", "ranks": 3}
    plan = place_hosts(plan_of({"benchmark": "imb", "hosts": {"count": 3}, "params": params}))
    reason = "3 nodes are asked for (placement: spread), the cluster has 2 for these pods"
    result = await check_requirements(cluster(), plan, "bench", "perfdag install")
    [few] = [
        finding for finding in result if finding.state == "missing" and "nodes" in finding.what
    ]
    assert (few.what, few.do) == (reason, "use fewer hosts, or placement: any")
    shapes = [Shape.model_validate(shape) for shape in plan.shapes]
    assert await unmet(cluster(), shapes, "bench") == {0: reason}


GPU = """
name: gpu-one
entries:
- name: offline
  benchmark: resnet50
  resources: {nvidia.com/gpu: 1, cpu: 4, memory: 16Gi}
  node_selector: {cloud.google.com/gke-accelerator: nvidia-tesla-t4}
  params: {device: cuda}
- name: cpu
  benchmark: resnet50
  params: {scenario: single-stream}
"""


def jobs(text: str, folder: Path, **more: Any) -> list[dict[str, Any]]:
    file = folder / "suite.yaml"
    file.write_text(text)
    options = {"namespace": "bench", "store": "claim://results", **more}
    return job_manifests(str(file), Installation(**options))


def test_each_shape_has_a_job_with_its_entries_image_and_resources(tmp_path: Path) -> None:
    suite, gpu, cpu = jobs(GPU, tmp_path)
    assert suite["data"]["suite.yaml"] == GPU
    assert [job["metadata"]["name"] for job in (gpu, cpu)] == [
        "perfdag-gpu-one-1",
        "perfdag-gpu-one-2",
    ]
    pod = gpu["spec"]["template"]["spec"]
    (main_container,) = pod["containers"]
    assert main_container["image"] == "localhost/perfdag-resnet50:1"
    assert main_container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert main_container["command"][-4:] == ["--only", "offline", "--store", "/perfdag/store"]
    assert "nvidia-tesla-t4" in str(pod)
    assert {"name": PROVIDED, "value": "1"} in main_container["env"]
    claims = [volume for volume in pod["volumes"] if "persistentVolumeClaim" in volume]
    assert claims == [{"name": "store", "persistentVolumeClaim": {"claimName": "results"}}]
    assert pod["automountServiceAccountToken"] is False
    assert "@" not in str(pod)


def test_a_pod_of_a_job_measures_what_a_machine_would_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = Shape.model_validate({"resources": {"nvidia.com/gpu": 1}})
    assert needs_cluster(shape)
    monkeypatch.setenv(PROVIDED, "1")
    assert needs_cluster(shape) is None


@pytest.mark.parametrize(
    ("text", "store", "message"),
    [
        (GPU, "", "a Job's pod is gone after its run: give --store claim://NAME"),
        (
            "name: a\nentries:\n- {name: two, benchmark: iperf, hosts: {count: 2}, params: "
            "{duration: 1s}}\n",
            "claim://results",
            "entry two needs 2 hosts, and a Job has one pod: use `perfdag submit`",
        ),
        (
            "name: a\nentries:\n- name: shapes\n  benchmark: command\n  params: {argv: [id]}\n"
            "  permutations: {product: {resources: [{cpu: 1}, {cpu: 2}]}}\n",
            "claim://results",
            "entry shapes has points of 2 shapes",
        ),
    ],
)
def test_what_one_pod_cannot_measure_is_refused(
    text: str, store: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(CommandError, match=message):
        jobs(text, tmp_path, store=store)


def test_the_verb_prints_the_jobs(tmp_path: Path, cli: CommandLine) -> None:
    file = tmp_path / "suite.yaml"
    file.write_text(GPU)
    kinds = [
        part["kind"]
        for part in yaml.safe_load_all(
            cli(["render", str(file), "--job", "--store", "s3://bench/results"]).out
        )
    ]
    assert kinds == ["ConfigMap", "Job", "Job"]
    assert main(["render", str(file), "--job", "--base", "--store", "s3://bench/results"]) == 2


IMAGES = "registry.example/perfdag-{name}:1"
BASE, IPERF = (IMAGES.replace("{name}", name) for name in ("base", "iperf"))


def node(
    name: str,
    *images: str,
    ready: str = "True",
    labels: dict[str, str] | None = None,
    spec: dict[str, Any] | None = None,
    system: str = "linux",
    **allocatable: str,
) -> dict[str, Any]:
    status = {
        "conditions": [{"type": "Ready", "status": ready}],
        "images": [{"names": ["registry.example/other@sha256:1", each]} for each in images],
        "nodeInfo": {"operatingSystem": system},
        "allocatable": allocatable,
    }
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": spec or {},
        "status": status,
    }


def pulls(
    nodes: list[dict[str, Any]], *shapes: dict[str, Any], policy: str = "IfNotPresent"
) -> list[tuple[str, str, str]]:
    numbered = {number: Shape.model_validate(shape) for number, shape in enumerate(shapes)}
    items = missing_images(nodes, numbered, IMAGES, policy)
    return [(item["image"], item["node"], item["shape"]) for item in items]


def test_an_image_is_pulled_where_a_node_does_not_list_it() -> None:
    """Each pod needs the base image too, for its credentials; no pair stands there twice."""
    nodes = [node("a", BASE, IPERF), node("b", BASE), node("c")]
    shapes = ({"image": "iperf"}, {"image": "iperf", "hosts": {"count": 2}})
    assert pulls(nodes, *shapes) == [(IPERF, "b", "0"), (BASE, "c", "0"), (IPERF, "c", "0")]
    assert pulls(nodes[:1], *shapes) == []
    assert pulls(nodes[:1], *shapes, policy="Always") == [(BASE, "a", "0"), (IPERF, "a", "0")]
    assert pulls(nodes, *shapes, policy="Never") == []


@pytest.mark.parametrize(
    ("unfit", "shape"),
    [
        (node("n", ready="Unknown"), {}),
        (node("n", spec={"unschedulable": True}), {}),
        (node("n", system="windows"), {}),
        (node("n"), {"node_selector": {"pool": "bench"}}),
        (node("n", spec={"taints": [{"key": "gpu", "effect": "NoSchedule"}]}), {}),
        (node("n"), {"resources": {"nvidia.com/gpu": 1}}),
        (node("n"), {"hosts": {"count": 2, "roles": {"client": {"node_selector": {"a": "b"}},
                                                     "server": {"node_selector": {"c": "d"}}}}}),
        (node("n") | {"metadata": {"name": "n", "annotations": {"kwok.x-k8s.io/node": "f"}}}, {}),
    ],
)  # fmt: skip
def test_a_node_that_takes_no_pod_of_a_shape_pulls_nothing(
    unfit: dict[str, Any], shape: dict[str, Any]
) -> None:
    assert pulls([unfit], shape) == []
    fit = {"nvidia.com/gpu": "8"}
    tainted = {"taints": [{"key": "gpu", "effect": "NoSchedule"}]}
    other = node("n", labels={"pool": "bench", "a": "b"}, spec=tainted, **fit)
    assert pulls([other], {"tolerations": [{"key": "gpu", "operator": "Exists"}], **shape})


@pytest.mark.parametrize(
    ("reference", "listed"),
    [
        ("debian", "docker.io/library/debian:latest"),
        ("bench/tool:2", "docker.io/bench/tool:2"),
        ("localhost/tool:1", "localhost/tool:1"),
        ("registry:5000/tool", "registry:5000/tool:latest"),
        ("registry.example/tool:2@sha256:ab", "registry.example/tool@sha256:ab"),
    ],
)
def test_a_node_lists_images_by_their_full_names(reference: str, listed: str) -> None:
    if set(reference) & set("/:"):  # else it is one of the installation's
        assert pulls([node("a", BASE, listed)], {"image": reference}) == []
    assert missing_images([node("a", listed)], {0: Shape()}, reference, "IfNotPresent") == []


def test_a_cluster_of_hundreds_of_nodes_stays_an_object_that_argo_stores() -> None:
    nodes = [node(f"n{number}") for number in range(2 * MAX_PULLS)]
    assert len(pulls(nodes, {"image": "iperf"})) == MAX_PULLS

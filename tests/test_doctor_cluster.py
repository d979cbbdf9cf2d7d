"""What `doctor --cluster` says of what a suite asks for, beside what the plan step makes of it."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from perfdag.app.doctor.cluster import check_installation
from perfdag.app.doctor.network_policy import check_network_policy
from perfdag.app.doctor.requirements import benchmarks_with_rights, check_shapes, gpu_findings
from perfdag.cli import main
from perfdag.kube.client import Kube
from perfdag.plan.plan import make_plan
from perfdag.shape import Shape
from perfdag.steps.runner.feasibility import unmet
from perfdag.suite.load import load_suite, parse_suite
from tests.conftest import CommandLine

from .steps.test_feasibility import STORAGE, cluster, network

POLICY = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "perfdag-measuring", "namespace": "bench"},
}


def daemon(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": "kube-system"},
    }


FAST = {"apiVersion": STORAGE, "kind": "StorageClass", "metadata": {"name": "fast"}}

ASKED: list[tuple[dict[str, Any], Callable[[], Kube], str, str]] = [
    ({"volume": {"storage_class": "by-hand"}}, cluster, "ok", "storage class by-hand"),
    (
        {"volume": {"storage_class": "gone"}},
        cluster,
        "missing",
        "there is no storage class gone; there are: by-hand",
    ),
    (
        {"volume": {"storage_class": "gone"}},
        partial(cluster, refused="/storageclasses"),
        "warn",
        "storage class gone is not known",
    ),
    (
        {"volume": {}},
        partial(cluster, FAST),
        "missing",
        "there is no default storage class",
    ),
    (
        {"network": {"name": "net"}},
        partial(network, "net"),
        "missing",
        "no such NetworkAttachmentDefinition",
    ),
    (
        {"network": {"name": "net"}},
        partial(network, "net", "bench"),
        "ok",
        "Multus network net",
    ),
    ({"network": {"name": "b/net"}}, cluster, "missing", "no Multus"),
    (
        {"network": {"name": "b/net"}},
        partial(cluster, refused="/networkattachmentdefinitions", absent=()),
        "warn",
        "Multus network b/net is not known",
    ),
    ({"scheduler": "volcano"}, partial(cluster, absent=("PodGroup",)), "missing", "no Volcano"),
    ({"scheduler": "volcano"}, cluster, "ok", "Volcano"),
    ({"resources": {"rdma/hca": 1}}, cluster, "ok", "rdma/hca on 1 node"),
    ({"resources": {"nvidia.com/gpu": 1}}, cluster, "missing", "no node has nvidia.com/gpu"),
    ({"resources": {"rdma/hca": 5}}, cluster, "missing", "the most that a node has is 4"),
    (
        {"resources": {"nvidia.com/gpu": 1}},
        partial(cluster, refused="/nodes"),
        "warn",
        "nvidia.com/gpu is not known",
    ),
    ({"hugepages": {"hugepages-2Mi": "1Gi"}}, cluster, "missing", "no node has hugepages-2Mi"),
    ({"hosts": {"count": 3, "placement": "spread"}}, cluster, "missing", "the cluster has 2"),
    (
        {"hosts": {"count": 3, "placement": "spread"}},
        partial(cluster, refused="/nodes"),
        "warn",
        "3 nodes to spread over is not known",
    ),
]


@pytest.mark.parametrize(("shape", "has", "state", "words"), ASKED)
async def test_doctor_and_the_plan_step_find_the_same(
    shape: dict[str, Any], has: Callable[[], Kube], state: str, words: str
) -> None:
    asking, api = Shape.model_validate(shape), has()
    [finding] = await check_shapes(api, [asking, asking], "bench")
    assert (finding.state, bool(finding.do)) == (state, state == "missing")
    assert words in finding.what
    skipped = await unmet(api, [asking], "bench")
    assert skipped == ({0: finding.what} if state == "missing" else {})


@pytest.mark.parametrize(
    ("shape", "do"),
    [
        ({"network": {"name": "b/net"}}, "create it, or name an existing one"),
        ({"resources": {"rdma/hca": 5}}, "request less"),
    ],
)
async def test_what_is_there_already_need_not_be_installed(shape: dict[str, Any], do: str) -> None:
    [finding] = await check_shapes(network("other"), [Shape.model_validate(shape)], "bench")
    assert finding.state == "missing"
    assert (finding.do or "").startswith(do)


def test_cuda_in_pods_without_a_gpu_is_found(tmp_path: Path) -> None:
    file = tmp_path / "suite.yaml"
    entry = "  - {name: %s, benchmark: resnet50, params: {device: cuda, fast: true}%s}\n"
    file.write_text(
        "name: s\nentries:\n"
        + entry % ("without", "")
        + entry % ("with", ", resources: {nvidia.com/gpu: 1}")
    )
    plan = make_plan(load_suite(str(file)))
    findings = gpu_findings(plan, [Shape.model_validate(item) for item in plan.shapes])
    assert [item.what for item in findings] == [
        "entry without: device is cuda, but its pods request no GPU"
    ]
    assert findings[0].do == "resources: {nvidia.com/gpu: 1}"


def test_rendering_and_submitting_say_it_too(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    cli: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("hera")
    file = tmp_path / "suite.yaml"
    file.write_text(
        "name: s\nentries:\n"
        "  - {name: model, benchmark: torchbench, params: {model: alexnet, device: cuda}}\n"
        "  - {name: verbs, benchmark: rdma-latency, params: {cuda: 0, mode: read}, network: "
        "{host: true}}\n"
        "  - {name: held, benchmark: rdma-latency, params: {cuda: 1, mode: read}, resources: "
        "{rdma/hca: 1, nvidia.com/gpu: 1}}\n"
    )
    warnings = [
        (
            "entry model: device is cuda, but its pods request no GPU; add resources: "
            "{nvidia.com/gpu: 1}"
        ),
        "entry verbs: cuda is 0, but its pods request no GPU; add resources: {nvidia.com/gpu: 1}",
    ]
    assert cli(["render", str(file)]).err.splitlines() == warnings
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert main(["submit", str(file)]) != 0
    assert capsys.readouterr().err.splitlines()[:2] == warnings


@pytest.mark.parametrize(
    ("entries", "allowed"),
    [
        ("- {benchmark: queue-scaling}\n- {benchmark: queue-autoscale}\n- {benchmark: iperf}", []),
        (
            "- {benchmark: queue-scaling, params: {deployment: backend}}\n"
            "- {benchmark: queue-autoscale}",
            ["queue-scaling"],
        ),
        (
            "- {benchmark: queue-autoscale, permutations: {explicit: [{}, {deployments: "
            "[backend]}]}}",
            ["queue-autoscale"],
        ),
        ("- {benchmark: vmi-burst}\n- {benchmark: scale}", ["scale", "vmi-burst"]),
    ],
)
def test_rights_are_asked_for_where_a_point_uses_them(entries: str, allowed: list[str]) -> None:
    assert (
        benchmarks_with_rights(make_plan(parse_suite(f"name: s\nentries:\n{entries}\n"))) == allowed
    )


@pytest.mark.parametrize(
    ("has", "state", "words"),
    [
        (cluster, "warn", "there is no NetworkPolicy perfdag-measuring in bench"),
        (partial(cluster, refused="/networkpolicies"), "warn", "you may not read whether"),
        (partial(cluster, POLICY, daemon("calico-node")), "ok", "which calico-node enforces"),
        (partial(cluster, POLICY, daemon("kube-flannel-ds")), "warn", "is enforced is not known"),
        (partial(cluster, POLICY, refused="/daemonsets"), "warn", "is enforced is not known"),
    ],
)
async def test_the_policy_of_measuring_pods_is_found(
    has: Callable[[], Kube], state: str, words: str
) -> None:
    finding = await check_network_policy(has(), "bench", "perfdag install")
    assert finding.state == state
    assert words in finding.what


async def test_an_installation_of_another_version_is_a_finding() -> None:
    template = {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "WorkflowTemplate",
        "metadata": {"name": "perfdag", "namespace": "bench"},
        "spec": {"arguments": {"parameters": []}, "templates": [{"name": "finish"}]},
    }
    [finding] = await check_installation(cluster(template), "bench", None)
    assert (finding.state, finding.what) == (
        "missing",
        "perfdag in namespace bench was installed by another version",
    )
    assert finding.do.startswith("perfdag install --namespace bench")

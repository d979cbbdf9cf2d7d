"""`perfdag doctor`: what a suite lacks on this machine, and what a cluster lacks for it."""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from perfdag.benchmark import registry
from perfdag.commands.doctor import check_argo, check_installation, check_nodes
from perfdag.commands.main import main
from perfdag.hosts.base import install_command
from perfdag.hosts.local import LocalHost
from perfdag.shape import Shape
from perfdag.steps import mpi
from tests.conftest import CommandLine
from tests.fakes.api_server import ApiServer
from tests.fakes.files import write_programs

from .steps.test_feasibility import cluster


@pytest.fixture
def path_with_iperf3_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(write_programs(tmp_path / "bin", {"iperf3": ""})))


@pytest.mark.usefixtures("path_with_iperf3_only")
def test_what_is_there_is_no_finding(write_suite: Any, cli: CommandLine) -> None:
    suite = write_suite(
        "name: one\nentries:\n  - {benchmark: iperf, permutations: {product: {streams: [1, 2]}}}\n"
    )
    assert "ok       iperf: what its 2 points need is here" in cli(["doctor", str(suite)]).out


@pytest.mark.usefixtures("path_with_iperf3_only")
def test_open_mpi_without_its_imb_is_missing(write_suite: Any, cli: CommandLine) -> None:
    mpis = "{product: {mpi: [intel, openmpi]}}"
    suite = write_suite(f"name: mpi\nentries:\n  - {{benchmark: imb, permutations: {mpis}}}\n")
    lines = cli(["doctor", str(suite)], 1).out.splitlines()
    own = lines.index("missing  imb: /opt/imb/IMB-MPI1 is not installed (1 of 2 points)")
    assert "build IMB-MPI1 for Open MPI" in lines[own + 1]
    missing = lines.index("missing  imb: mpirun is not installed (1 of 2 points)")
    assert "-> " in lines[missing + 1]


@pytest.mark.parametrize("pip", [True, False])
def test_an_environment_that_uv_made_has_no_pip(pip: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfdag.hosts.base.find_spec", lambda name: object() if pip else None)
    command = (
        f"{sys.executable} -m pip install impi-rt"
        if pip
        else f"uv pip install --python {sys.executable} impi-rt"
    )
    assert install_command({"pip": "impi-rt"}) == command


def test_a_tool_that_no_package_brings_here_has_its_own_advice(
    write_suite: Any, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.setattr(mpi, "IMB", mpi.imb_tool("Linux", "aarch64"))
    monkeypatch.setattr(LocalHost, "which", lambda self, program: None)
    suite = str(
        write_suite(
            "name: mpi\nentries:\n  - {benchmark: imb, params: {transport: shm}, hosts: "
            "{count: 1}}\n"
        )
    )
    advice = (
        "there is no impi-rt for Linux on aarch64; set mpi: openmpi and name an IMB-MPI1 built "
        "for Open MPI with program"
    )
    assert (
        f"missing  imb: IMB-MPI1 is not installed\n         -> {advice}\n"
        in cli(["doctor", suite], 1).out
    )
    assert main(["run", suite, "--no-report"]) == 1
    (part,) = [
        json.loads(file.read_text())
        for file in Path("perfdag-results").glob("runs/*/parts/*-1.json")
        if "canary" not in file.name
    ]
    assert (part["status"], part["error"]) == ("skipped", f"IMB-MPI1 is not installed ({advice})")


def test_a_wrapper_that_is_not_there_is_missing_and_an_interpreter_is_asked_once(
    write_suite: Any, tmp_path: Path, cli: CommandLine
) -> None:
    python = write_programs(tmp_path, {"python": f"echo call >> {tmp_path}/calls"}) / "python"

    def missing(wrapper: str) -> str:
        params = (
            f"{{system: stub, python: {python}, treatment_python: /there/python, wrapper: "
            f"[{wrapper}]}}"
        )
        entry = (
            f"{{benchmark: resnet50-overhead, params: {params}, permutations: {{product: "
            f"{{pairs: [2, 3, 4]}}}}}}"
        )
        (line,) = [
            text
            for text in cli(
                ["doctor", str(write_suite(f"name: w\nentries:\n  - {entry}\n"))], 1
            ).out.splitlines()
            if "resnet50" in text
        ]
        return line

    assert (
        missing("no-such-runtime") == "missing  resnet50-overhead: no-such-runtime is not installed"
    )
    assert "/there/python (Python) behind env" in missing("env")
    assert (tmp_path / "calls").read_text() == 2 * "call\n", "once in each of both runs"


def test_an_interpreter_of_resnet50_without_perfdag_is_missing_before_anything_is_measured(
    write_suite: Any, tmp_path: Path, cli: CommandLine
) -> None:
    script = {"python": f'exec {sys.executable} -I -S "$@"'}
    python = write_programs(tmp_path / "bare", script) / "python"
    params = f"{{system: stub, python: {python}}}"
    suite = write_suite(f"name: bare\nentries:\n  - {{benchmark: resnet50, params: {params}}}\n")
    doctor = cli(["doctor", str(suite)], 1).out
    advice = f"{python} -m pip install '/path/to/perfdag[torch]'"
    packages = "perfdag (Python), pydantic (Python), mlperf_loadgen (Python)"
    need = f"missing  resnet50: {packages} are not installed\n         -> {advice}"
    assert need in doctor
    assert "perfdag (Python) is not installed" in cli(["run", str(suite), "--no-report"], 1).err


@pytest.fixture
def no_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.usefixtures("no_cluster")
@pytest.mark.parametrize(
    ("entry", "texts"),
    [
        (
            "{benchmark: command, optional: true, params: {argv: [no-such-program]}}",
            ["warn     command: no-such-program is not on ", "is not on"],
        ),
        (
            "{benchmark: command, params: {argv: [sleep, '0'], expected: 0.01}, network: "
            "{host: false}}",
            [
                "missing  command: network.host: false (a pod network): needs a cluster",
                "measure it with perfdag submit",
            ],
        ),
        (
            "{benchmark: scale, params: {namespace: bench}}",
            ["missing  scale: no cluster: no kubeconfig at ", "set KUBECONFIG=/path/to/kubeconfig"],
        ),
        (
            "{benchmark: imb, params: {benchmark: Allreduce, ranks: 4096}, hosts: {count: 1}}",
            ["missing  imb: "],
        ),
        (
            "{benchmark: command, optional: true, params: {expected: 0.01}, permutations: "
            "{product: {argv: [[sleep, '0'], [no-such-program]]}}}",
            ["warn     command: no-such-program is not on ", "(1 of 2 points)"],
        ),
    ],
    ids=["program", "shape", "cluster", "cpus", "some"],
)
def test_what_run_would_skip_is_never_ok(
    entry: str,
    texts: list[str],
    write_suite: Any,
    cli: CommandLine,
) -> None:
    suite = str(write_suite(f"name: one\nentries:\n  - {entry}\n"))
    output = cli(["doctor", suite], 0 if "optional" in entry else 1).out
    name = entry.split("benchmark: ")[1].split(",")[0]
    assert all(text in output for text in texts), output
    assert f"ok       {name}" not in output
    code = 0 if "(1 of 2 points)" in texts else 1
    result = cli(["run", suite, "--no-report", "--json"], code).out
    assert json.loads(result)["statuses"]["skipped"] >= 1


@pytest.mark.usefixtures("no_cluster")
def test_without_a_suite_every_benchmark_is_asked(cli: CommandLine) -> None:
    output = cli(["doctor"], 1).out
    named = re.findall(r"[\w-]+", " ".join(re.findall(r"^\w+ +([\w, -]+): ", output, re.M)))
    assert set(registry.names()) <= set(named)
    assert "missing  scale, vmi-burst, vmi-steady: no cluster" in output, "a need stands once"
    assert re.search("warn     command.*: has params without a default", output)
    assert "ok       resnet50-overhead" not in output


def deployment(image: str, env: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    spec = {"template": {"spec": {"containers": [{"image": image, "env": [*env]}]}}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "argo", "namespace": "argo"},
        "spec": spec,
    }


@pytest.mark.parametrize(
    ("objects", "state"),
    [
        ([deployment("quay.io/argoproj/workflow-controller:v4.1.2")], "ok"),
        ([deployment("quay.io/argoproj/workflow-controller:v4.0.5")], "missing"),
        ([deployment("r/workflow-controller@sha256:00")], "warn"),
        ([], "warn"),
    ],
)
async def test_argo_has_to_know_pending_timeout(objects: list[dict[str, Any]], state: str) -> None:
    found, *_ = [finding async for finding in check_argo(ApiServer(*objects).client())]
    assert found.state == state
    assert "4.1" in found.what + found.do


FAST = {"name": "DEFAULT_REQUEUE_TIME", "value": "2s"}


@pytest.mark.parametrize(
    ("env", "advice"),
    [
        ([], [("warn", "once in 10s (DEFAULT_REQUEUE_TIME)")]),
        ([{"name": "DEFAULT_REQUEUE_TIME", "value": "1m0s"}], [("warn", "once in 1m0s")]),
        ([FAST], []),
        ([FAST, {"name": "ALWAYS_OFFLOAD_NODE_STATUS", "value": "false"}], []),
        (
            [FAST, {"name": "ALWAYS_OFFLOAD_NODE_STATUS", "value": "true"}],
            [("missing", "no run reads that it is over")],
        ),
        ([{"name": "DEFAULT_REQUEUE_TIME", "valueFrom": {"configMapKeyRef": {}}}], []),
    ],
)
async def test_settings_of_the_controller_that_slow_or_hang_runs_are_findings(
    env: list[dict[str, Any]], advice: list[tuple[str, str]]
) -> None:
    argo = deployment("quay.io/argoproj/workflow-controller:v4.1.2", env)
    _, *found = [finding async for finding in check_argo(ApiServer(argo).client())]
    assert [each.state for each in found] == [state for state, _ in advice]
    for finding, (_, text) in zip(found, advice, strict=True):
        assert text in finding.what
        assert re.search("-n argo deployment/argo (DEFAULT_.*=2s|ALWAYS_.*-)$", finding.do)


def test_a_control_plane_node_that_would_be_measured_is_a_warning() -> None:
    role = "node-role.kubernetes.io/control-plane"
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    nodes = [
        {"metadata": {"name": name, "labels": labels}, "spec": {"taints": taints}, "status": ready}
        for name, labels, taints in (
            ("kept", {role: ""}, [{"key": role, "effect": "NoSchedule"}]),
            ("open", {role: ""}, []),
            ("worker", {}, []),
        )
    ]
    ok, warning = check_nodes(nodes)
    assert (ok.state, warning.state) == ("ok", "warn")
    assert warning.what.endswith("would be measured: open")
    command = f"kubectl taint node open {role}:NoSchedule"
    assert warning.do == f"avoid_nodes: [{role}] in the suite, or {command}"
    assert [each.state for each in check_nodes(nodes, [Shape(avoid_nodes=[role])])] == ["ok"]


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
        "perfdag in namespace bench is of another version",
    )
    assert finding.do.startswith("perfdag install --namespace bench")

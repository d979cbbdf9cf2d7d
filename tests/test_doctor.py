"""`perfdag doctor SUITE` on this machine: what any point of the suite needs and is not here."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from perfdag.benchmark import registry
from perfdag.cli import main
from perfdag.hosts.local import LocalHost
from perfdag.hosts.packages import install_command
from perfdag.steps.imb.benchmark import Imb
from perfdag.steps.mpi import intelmpi
from tests.conftest import CommandLine


@pytest.fixture
def path_with_iperf3_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "iperf3").write_text("#!/bin/sh\n")
    (folder / "iperf3").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


@pytest.mark.usefixtures("path_with_iperf3_only")
def test_every_point_is_asked_what_it_needs(write_suite: Any, cli: CommandLine) -> None:
    second = (
        "  - {benchmark: iperf, name: two, permutations: {product: {streams: [1, 2], "
        "implementation: [iperf3, iperf2]}}}\n"
    )
    suite = write_suite(f"name: both\nentries:\n  - {{benchmark: iperf}}\n{second}")
    lines = cli(["doctor", str(suite)], 1).out.splitlines()
    (missing,) = [line for line in lines if line.startswith("missing")]
    assert missing == "missing  iperf: iperf is not installed (2 of 4 points)"
    assert "-> " in lines[lines.index(missing) + 1]


@pytest.mark.usefixtures("path_with_iperf3_only")
def test_what_is_there_is_no_finding(write_suite: Any, cli: CommandLine) -> None:
    suite = write_suite(
        "name: one\nentries:\n  - {benchmark: iperf, permutations: {product: {streams: [1, 2]}}}\n"
    )
    assert "ok       iperf: what its 2 points need is here" in cli(["doctor", str(suite)]).out


@pytest.mark.usefixtures("path_with_iperf3_only")
def test_open_mpi_without_its_imb_is_missing(write_suite: Any, cli: CommandLine) -> None:
    suite = write_suite("name: mpi\nentries:\n  - {benchmark: imb, params: {mpi: openmpi}}\n")
    output = cli(["doctor", str(suite)], 1).out
    assert "missing  imb: IMB-MPI1 built for Open MPI (/opt/imb/IMB-MPI1" in output
    assert "missing  imb: mpirun is not installed" in output


@pytest.mark.parametrize("pip", [True, False])
def test_an_environment_that_uv_made_has_no_pip(pip: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfdag.hosts.packages.find_spec", lambda name: object() if pip else None)
    command = (
        f"{sys.executable} -m pip install impi-rt"
        if pip
        else f"uv pip install --python {sys.executable} impi-rt"
    )
    assert install_command({"pip": "impi-rt"}) == command


def test_a_tool_that_no_package_brings_here_has_its_own_advice(
    write_suite: Any, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.setattr(Imb, "tools", (intelmpi.imb("Linux", "aarch64"),))
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
    assert main(["run", suite, "--no-report"]) == 0
    (part,) = [
        json.loads(file.read_text())
        for file in Path("perfdag-results").glob("runs/*/parts/*-1.json")
        if "canary" not in file.name
    ]
    assert (part["status"], part["error"]) == ("skipped", f"IMB-MPI1 is not installed ({advice})")


def test_a_wrapper_that_is_not_there_is_missing_and_an_interpreter_is_asked_once(
    write_suite: Any, tmp_path: Path, cli: CommandLine
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho asked >> {tmp_path}/asked\n")
    python.chmod(0o755)

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
    assert (tmp_path / "asked").read_text() == "asked\n"


@pytest.mark.parametrize(
    ("entry", "texts"),
    [
        (
            "{benchmark: command, params: {argv: [no-such-program]}}",
            ["missing  command: no-such-program is not on ", "is not on"],
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
            ["missing  scale: no cluster: no KUBECONFIG", "set KUBECONFIG=/path/to/kubeconfig"],
        ),
        (
            "{benchmark: imb, params: {benchmark: Allreduce, ranks: 4096}, hosts: {count: 1}}",
            ["missing  imb: "],
        ),
        (
            "{benchmark: command, params: {expected: 0.01}, permutations: "
            "{product: {argv: [[sleep, '0'], [no-such-program]]}}}",
            ["missing  command: no-such-program is not on ", "(1 of 2 points)"],
        ),
    ],
    ids=["program", "shape", "cluster", "cpus", "some"],
)
def test_what_run_would_skip_is_never_ok(
    entry: str,
    texts: list[str],
    write_suite: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cli: CommandLine,
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    suite = str(write_suite(f"name: one\nentries:\n  - {entry}\n"))
    output = cli(["doctor", suite], 1).out
    name = entry.split("benchmark: ")[1].split(",")[0]
    assert all(text in output for text in texts), output
    assert f"ok       {name}" not in output
    assert json.loads(cli(["run", suite, "--no-report", "--json"]).out)["statuses"]["skipped"] >= 1


def test_without_a_suite_every_benchmark_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    output = cli(["doctor"], 1).out
    for name in registry.names():
        assert f" {name}: " in output
    assert "missing  vmi-burst: no cluster" in output
    assert "warn     command: has params without a default" in output
    assert "ok       resnet50-overhead" not in output

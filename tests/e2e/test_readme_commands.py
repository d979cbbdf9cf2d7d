"""The commands of README and docs that need a cluster, in a namespace and a store of the test."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from perfdag.kube.client import Kube, KubeError, run_with_client
from perfdag.store.open import open_store
from tests.simulation import simulate
from tests.test_readme import ON_A_CLUSTER

from .conftest import IMAGES, installed

pytestmark = [pytest.mark.argo, pytest.mark.slow]
INSTALL, SUBMIT, STATUS, REMOVE, BURST, WORKLOADS = ON_A_CLUSTER


def perfdag(command: str, **replaced: str) -> str:
    """Execute a command with some of its words replaced, and return what it printed."""
    words = [replaced.get(word, word) for word in shlex.split(command)[1:]]
    argv = [sys.executable, "-m", "perfdag", *words]
    result = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr


def test_a_cluster_in_three_commands() -> None:
    Path("suites").mkdir()
    Path("suites/quick.yaml").write_text(
        "name: quick\nentries:\n  - {benchmark: command, params: {argv: [sleep, '0.1']}}\n"
    )
    with installed("restricted") as bench:
        images = "registry.example/bench/perfdag-{name}:1.0"
        own = {"bench": bench.name, "s3://bench/results": bench.store, images: IMAGES}
        perfdag(INSTALL, **own)
        assert "1 ok" in perfdag(SUBMIT, **own)
        assert "Succeeded" in perfdag(STATUS, **own)
        perfdag(REMOVE, **own)
        assert bench.objects("Workflow", "argoproj.io/v1alpha1") == []
        assert [key for key in open_store(bench.store).list("results") if "quick" in key]


@pytest.fixture
def simulated() -> None:
    """Nodes, KubeVirt and Run:ai that KWOK simulates, and Run:ai's namespace of a project."""

    async def project(client: Kube) -> None:
        await client.resource("kwok.x-k8s.io/v1alpha1", "Stage")
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "runai-project-0"}}
        try:
            await client.create(body)
        except KubeError as error:
            if error.status != 409:
                raise

    if not os.environ.get("KUBECONFIG"):
        pytest.skip("no cluster: KUBECONFIG is not set")
    try:
        run_with_client(project)
    except KubeError as error:
        pytest.skip(f"no KWOK with Stages on this cluster: {error}")
    perfdag("perfdag scale nodes --count 20 --gpus 8")
    for system in ("kubevirt", "runai"):
        simulate(system)


def test_vmis_and_workloads_at_scale(simulated: None) -> None:
    """As they stand, but with 20 workloads in place of 2,000, which take 400 s, and without the
    gates on the API server's latency, which a busy machine of the tests does not hold.
    """
    perfdag(f"{BURST} --no-api-gates")
    [run] = json.loads(Path("out0/summary.json").read_text())["runs"]
    assert (run["scenario"], run["count"]) == ("burst", 100)
    perfdag(WORKLOADS, **{"2000": "20"})
    assert len(json.loads(Path("out1/submitted.json").read_text())) == 20
    perfdag("perfdag scale sample -o out1 --watch 60")
    perfdag("perfdag scale delete -o out1")

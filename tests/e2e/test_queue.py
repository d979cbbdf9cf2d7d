"""Queue benchmarks on a Deployment from a pod of a run: with the rights that `install --allow`
grants, and without them.
"""

import json
import os
import subprocess
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from perfdag.kube.client import Kube, run_with_client
from perfdag.steps.queue.manifests import Queues, manifests

from .conftest import IMAGES, Namespace

pytestmark = [pytest.mark.argo, pytest.mark.slow]
NODE = os.environ.get("PERFDAG_TEST_NODE", "node-0")
DEPLOYMENT = "perfdag-queue-nap"


def deployment(namespace: str, name: str) -> dict[str, Any]:
    async def work(client: Kube) -> dict[str, Any]:
        return await client.get("apps/v1/Deployment", name, namespace)

    return run_with_client(work)


@pytest.fixture(scope="module")
def queues() -> Iterator[str]:
    """A namespace of its own with a queue that nothing scales."""
    namespace = f"perfdag-queue-{uuid.uuid4().hex[:6]}"
    requests = {"cpu": "10m", "memory": "16Mi"}
    named = [{"name": "nap", "command": ["sleep", "0.2"], "requests": requests}]
    shared = {
        "namespace": namespace,
        "image": IMAGES.format(name="queue"),
        "node_selector": {"kubernetes.io/hostname": NODE},
    }

    async def apply(client: Kube) -> None:
        for body in manifests(Queues.model_validate({**shared, "queues": named})):
            await client.apply(body)

    async def remove(client: Kube) -> None:
        await client.delete("v1/Namespace", namespace)

    try:
        run_with_client(apply)
        wait = ["wait", "deployment", "--all", "--for=condition=Available", "--timeout=90s"]
        subprocess.run(["kubectl", "-n", namespace, *wait], check=True)
        yield namespace
    finally:
        run_with_client(remove)


@pytest.fixture
def suite(queues: str) -> str:
    """The benchmark on a Deployment of the other namespace."""
    return (
        "name: queues\nrepetitions: 1\nwarmup: 0\nentries:\n"
        f"  - {{benchmark: queue-scaling, params: {{deployment: {DEPLOYMENT}, namespace: "
        f"{queues}, client: {DEPLOYMENT}-client, limit: 4,"
        " item: 0.2s, factor: 1.5}}\n"
    )


@pytest.fixture
def allowed(bench: Namespace, queues: str) -> Iterator[None]:
    """The installation with the benchmark allowed, and without it again at the end."""
    bench.install("--allow", f"queue-scaling={queues}")
    yield
    bench.install()


def test_queues_of_another_namespace_are_measured_under_the_accounts_that_install_made(
    bench: Namespace, queues: str, allowed: None, suite: str
) -> None:
    run = bench.measure(suite)
    scaling = [row for row in run.rows if row["benchmark"] == "queue-scaling"]
    assert {row["status"] for row in scaling} == {"ok"}, [
        row["error"] for row in scaling if row["error"]
    ]
    throughput = {
        json.loads(row["coords"])["replicas"]: row["value"]
        for row in scaling
        if row["metric"] == "throughput"
    }
    assert throughput.keys() == {1, 2, 4}
    assert throughput[4] > 1.5 * throughput[2] > 1.5 * 1.5 * throughput[1]
    assert deployment(queues, DEPLOYMENT)["spec"]["replicas"] == 1

    accounts = {
        pod["spec"]["serviceAccountName"]
        for pod in bench.objects(
            "Pod", labels=f"workflows.argoproj.io/workflow={run.workflow},perfdag/measuring=true"
        )
    }
    assert accounts == {"perfdag-measure-queue-scaling"}

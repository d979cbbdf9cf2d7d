"""Faults of a cluster, by commands of the environment, and what must hold after them.

PERFDAG_TEST_CUT and PERFDAG_TEST_HEAL get the name of a node, PERFDAG_TEST_KILL the name of a node
and `kubelet` or `containerd`, which it starts again. PERFDAG_TEST_RESTART does so with Argo's
controller.
"""

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import datetime

import pytest

from perfdag.kube.client import Kube, KubeError, run_with_client

from .conftest import Namespace

CUT_SECONDS = 130
"""Kubernetes calls a node NotReady after 50 s, and deletes its pods 60 s later."""
needs_a_link = pytest.mark.skipif(
    not {"PERFDAG_TEST_CUT", "PERFDAG_TEST_HEAL"} <= os.environ.keys(),
    reason="PERFDAG_TEST_CUT and PERFDAG_TEST_HEAL name no commands that cut a node off and back",
)
needs_programs = pytest.mark.skipif(
    not {"PERFDAG_TEST_KILL", "PERFDAG_TEST_RESTART"} <= os.environ.keys(),
    reason=(
        "PERFDAG_TEST_KILL and PERFDAG_TEST_RESTART name no commands that kill and start programs"
    ),
)


def command(variable: str, *words: str) -> None:
    """Run the command of an environment variable with these words."""
    argv = ["bash", "-c", os.environ[variable], "fault", *words]
    subprocess.run(argv, check=True, capture_output=True, timeout=400)


@contextlib.contextmanager
def cut(node: str) -> Iterator[None]:
    """Cut a node off, and heal its link at the end."""
    command("PERFDAG_TEST_CUT", node)
    try:
        yield
    finally:
        command("PERFDAG_TEST_HEAL", node)


@contextlib.contextmanager
def cordoned(*nodes: str) -> Iterator[None]:
    """Let no new pod come to these nodes."""

    async def cordon(client: Kube, on: bool) -> None:
        kind = "v1/Node"
        for node in nodes:
            await client.patch(kind, node, {"spec": {"unschedulable": on or None}})

    run_with_client(lambda client: cordon(client, True))
    try:
        yield
    finally:
        run_with_client(lambda client: cordon(client, False))


def drain(bench: Namespace, workflow: str, node: str) -> None:
    """Cordon a node, evict the pods of a run there, and uncordon it when they are gone."""

    def left() -> list[str]:
        labels = f"workflows.argoproj.io/workflow={workflow}"
        return [
            pod["metadata"]["name"]
            for pod in bench.objects("Pod", labels=labels)
            if pod["spec"].get("nodeName") == node and pod["status"]["phase"] == "Running"
        ]

    async def evict(client: Kube, names: list[str]) -> None:
        for name in names:
            body = {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": name, "namespace": bench.name},
            }
            with contextlib.suppress(KubeError):  # it ended by itself
                path = await client.path("v1/Pod", bench.name, name, "eviction")
                await client.request("POST", path, json=body)

    with cordoned(node):
        names = left()
        run_with_client(lambda client: evict(client, names))
        bench.until(lambda: not left(), 180, "drained node")


def node_of(bench: Namespace, workflow: str, rank: int = 1) -> str:
    """The node of a rank of the gang that measures."""
    return str(bench.pod(workflow, rank, seconds=200)["spec"]["nodeName"])


def kill(bench: Namespace, node: str, program: str) -> None:
    """Kill a program of a node with -9, and wait until its kubelet works again."""

    async def renewed(client: Kube) -> float:
        lease = await client.get("coordination.k8s.io/v1/Lease", node, "kube-node-lease")
        return datetime.fromisoformat(lease["spec"]["renewTime"]).timestamp()

    command("PERFDAG_TEST_KILL", node, program)
    started = time.time()
    bench.until(lambda: run_with_client(renewed) > started, 180, f"working kubelet on {node}")


def _cut_for_a_while(bench: Namespace, workflow: str, node: str) -> None:
    if node == bench.nodes()[0]:  # the first node has the API server
        node = bench.nodes()[-1]
    with cut(node):
        time.sleep(CUT_SECONDS)


FAULTS: dict[str, Callable[[Namespace, str, str], None]] = {
    "kill -9 a kubelet": lambda bench, _, node: kill(bench, node, "kubelet"),
    "kill -9 a containerd": lambda bench, _, node: kill(bench, node, "containerd"),
    "drain a node": drain,
    "kill -9 Argo's controller": lambda _, __, ___: command("PERFDAG_TEST_RESTART"),
    "cut a link": _cut_for_a_while,
}
"""What breaks, given a namespace, a Workflow in it and a node that it uses; healed on return."""


def is_done(bench: Namespace, workflow: str) -> bool:
    """Whether a Workflow ended; one that did holds no lock."""
    [result] = [
        each
        for each in bench.objects("Workflow", "argoproj.io/v1alpha1")
        if each["metadata"]["name"] == workflow
    ]
    if (result.get("status") or {}).get("phase") not in ("Succeeded", "Failed", "Error"):
        return False
    locks = (result["status"].get("synchronization") or {}).get("mutex") or {}
    assert not locks.get("holding"), locks
    return True

"""A real HorizontalPodAutoscaler on real pods, with metrics from metrics_api.py.

The API server must run on this machine: it reads the metrics from the loopback.
"""

import json
import os
import secrets
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from perfdag.benchmark.contract import Gang
from perfdag.hosts.local import LocalHost
from perfdag.shape import Shape
from perfdag.steps.queue.autoscale.params import QueueAutoscaleParams
from perfdag.steps.queue.autoscale_benchmark import QueueAutoscale
from perfdag.steps.queue.manifests.model import Queues
from perfdag.steps.queue.manifests.objects import manifests
from tests.queue.metrics_api import CUSTOM, EXTERNAL, objects, serve

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
]


LOAD_SECONDS = 240
"""The HPA decides each 15 s, so its last quarter has four decisions, and a busy node delays
pods.
"""
ITEM_SECONDS = 2.0
"""Long beside the start of a process on a busy node: items must take what the need assumes."""
APISERVICES = {
    "external": "v1beta1.external.metrics.k8s.io",
    "custom": "v1beta2.custom.metrics.k8s.io",
}


def kubectl(*argv: str) -> str:
    return subprocess.run(["kubectl", *argv], capture_output=True, check=True, text=True).stdout


def served_by_others(service: str) -> bool:
    """Tell whether the cluster has such metrics; delete what a killed test left.

    Without that, the API server would block the deletion of namespaces.
    """
    text = kubectl("get", "apiservice", service, "--ignore-not-found", "-o", "json")
    if not text:
        return False
    rows = json.loads(text)
    reference = rows["spec"].get("service") or {}
    available = any(
        item["type"] == "Available" and item["status"] == "True"
        for item in rows.get("status", {}).get("conditions", [])
    )
    if available or not reference.get("namespace", "").startswith("perfdag-queue-"):
        return True
    kubectl("delete", "apiservice", service, "--ignore-not-found")
    return False


@contextmanager
def removed_afterwards(service: str, namespace: str) -> Iterator[None]:
    """Delete the APIService and the namespace at the end, even if this process is killed.

    A helper process does it when its pipe closes.
    """
    script = (
        'read _; kubectl delete apiservice "$1" --ignore-not-found; exec kubectl delete '
        'namespace "$2" --ignore-not-found --wait=false'
    )
    with subprocess.Popen(
        ["sh", "-c", script, "sh", service, namespace],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ):
        yield


@pytest.mark.parametrize(
    ("by", "load"),
    [("external", "step"), ("external", "ramp"), ("external", "spike"), ("custom", "step")],
)
def test_the_real_hpa_follows(by: str, load: str, tmp_path: Path) -> None:
    """It covers the height of the load and releases it before the load ends.

    An open loop leaves requests that wait, so it may overshoot up to its most backends.
    """
    server_url = json.loads(kubectl("config", "view", "--minify", "-o", "json"))["clusters"][0][
        "cluster"
    ]["server"]
    try:
        socket.create_server((urlsplit(server_url).hostname or "", 0)).close()
    except OSError:
        pytest.skip("the API server is not on this machine")
    if served_by_others(APISERVICES[by]):
        pytest.skip(f"the cluster serves {by} metrics already")
    namespace = f"perfdag-queue-{secrets.token_hex(4)}"
    names = ["sleep", "other"] if (by, load) == ("external", "step") else ["sleep"]
    autoscale = {"by": by, "most": 8, "window": 10, "items": 1.0}
    queue = {
        "command": ["sleep", f"{ITEM_SECONDS:g}"],
        "requests": {"cpu": "20m", "memory": "16Mi"},
        "autoscale": autoscale,
    }
    image = os.environ.get("PERFDAG_TEST_QUEUE_IMAGE", "localhost/perfdag-queue:1")
    node = {"kubernetes.io/hostname": os.environ.get("PERFDAG_TEST_NODE", "node-0")}
    queues = Queues.model_validate(
        {
            "namespace": namespace,
            "image": image,
            "node_selector": node,
            "queues": [{**queue, "name": name} for name in names],
        }
    )
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all(manifests(queues)))
    with removed_afterwards(APISERVICES[by], namespace):
        kubectl("apply", "-f", str(file))
        kubectl(
            "-n",
            namespace,
            "wait",
            "deployment",
            "--all",
            "--for=condition=Available",
            "--timeout=180s",
        )
        pods = json.loads(
            kubectl(
                "-n",
                namespace,
                "get",
                "pods",
                "-l",
                "app.kubernetes.io/name=perfdag-queue-frontend",
                "-o",
                "json",
            )
        )
        server = serve(tmp_path, f"http://{pods['items'][0]['status']['podIP']}:9998/metrics")
        file.write_text(
            yaml.safe_dump_all(
                objects(
                    namespace, server.server_address[1], EXTERNAL if by == "external" else CUSTOM
                )
            )
        )
        kubectl("apply", "-f", str(file))
        kubectl("wait", "apiservice", APISERVICES[by], "--for=condition=Available", "--timeout=60s")
        watched = {
            "deployments": [f"perfdag-queue-{name}" for name in names],
            "namespace": namespace,
        }
        params = QueueAutoscaleParams.model_validate(
            {
                "load": load,
                "low": 0.5 / ITEM_SECONDS,
                "high": 3.5 / ITEM_SECONDS,
                "item": ITEM_SECONDS,
                "duration": LOAD_SECONDS,
                **watched,
            }
        )
        benchmark = QueueAutoscale()
        try:
            output = benchmark.run(
                Gang([LocalHost()], Shape(), 2 * LOAD_SECONDS + 60, str(tmp_path)), params
            )
        finally:
            server.shutdown()
        rows = [item for item in benchmark.parse(output, params) if "elapsed" not in item.coords]
        assert {item.coords["queue"] for item in rows} == set(params.deployments)
        for name in params.deployments:
            measured = {item.metric: item.value for item in rows if item.coords["queue"] == name}
            print(name, measured)  # noqa: T201
            # To the end of the load, and to its fall for a step: later its height is not covered.
            assert 0 < measured["reaction"] <= LOAD_SECONDS * (0.5 if load == "step" else 0.75)
            assert measured["release"] <= LOAD_SECONDS / 4
            assert measured["overshoot"] <= 1.0

"""The real HorizontalPodAutoscaler on real pods, its metric served by external_metrics.py (for tests alone).

The API server has to run on this machine, since it is told to ask the loopback.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from perfdag.benchmark import Gang
from perfdag.hosts import LocalHost
from perfdag.shape import Shape
from perfdag.steps.queue.manifests import manifests
from perfdag.steps.queue.queues import Queues
from perfdag.steps.queue_autoscale import QueueAutoscale, QueueAutoscaleParams
from tests.queue.external_metrics import objects, serve

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.skipif("KUBECONFIG" not in os.environ, reason="KUBECONFIG is not set: no cluster to test against"),
]


def kubectl(*argv: str) -> str:
    return subprocess.run(["kubectl", *argv], capture_output=True, check=True, text=True).stdout


def test_the_real_hpa_follows_a_step(tmp_path: Path) -> None:
    server_url = json.loads(kubectl("config", "view", "--minify", "-o", "json"))["clusters"][0]["cluster"]["server"]
    try:
        socket.create_server((urlsplit(server_url).hostname or "", 0)).close()
    except OSError:
        pytest.skip("the API server is not on this machine")
    if "external.metrics.k8s.io" in kubectl("get", "apiservices", "-o", "name"):
        pytest.skip("the cluster serves external metrics already")
    namespace = f"perfdag-queue-{secrets.token_hex(4)}"
    queue = {"name": "sleep", "command": ["sleep", "0.5"], "requests": {"cpu": "1m", "memory": "16Mi"}}
    autoscale = {"by": "external", "most": 8, "window": 10, "items": 1.0}
    image = os.environ.get("PERFDAG_TEST_QUEUE_IMAGE", "localhost/perfdag-queue:1")
    node = {"kubernetes.io/hostname": os.environ.get("PERFDAG_TEST_NODE", "node-0")}
    queues = Queues.model_validate(
        {"namespace": namespace, "image": image, "node_selector": node, "queues": [{**queue, "autoscale": autoscale}]}
    )
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all(manifests(queues)))
    kubectl("apply", "-f", str(file))
    server = None
    try:
        kubectl("-n", namespace, "wait", "deployment", "--all", "--for=condition=Available", "--timeout=90s")
        pods = json.loads(kubectl("-n", namespace, "get", "pods", "-l", "app.kubernetes.io/name=perfdag-queue-frontend", "-o", "json"))
        server = serve(tmp_path, f"http://{pods['items'][0]['status']['podIP']}:9998/metrics")
        file.write_text(yaml.safe_dump_all(objects(namespace, server.server_address[1])))
        kubectl("apply", "-f", str(file))
        kubectl("wait", "apiservice", "v1beta1.external.metrics.k8s.io", "--for=condition=Available", "--timeout=30s")
        params = QueueAutoscaleParams(load="step", low=1, high=4, duration=120, deployment="perfdag-queue-sleep", namespace=namespace)  # type: ignore[arg-type]
        benchmark = QueueAutoscale()
        output = benchmark.run(Gang([LocalHost()], Shape(), 300, str(tmp_path)), params)
        measured = {each.metric: each.value for each in benchmark.parse(output, params) if "elapsed" not in each.coords}
        print(measured)  # noqa: T201
        assert 0 < measured["reaction"] <= 45  # the controller looks each 15 s
        assert measured["overshoot"] <= 0.5
        assert measured["release"] <= 60
    finally:
        subprocess.run(
            ["kubectl", "delete", "apiservice", "v1beta1.external.metrics.k8s.io", "--ignore-not-found"], check=False, capture_output=True
        )
        subprocess.run(["kubectl", "delete", "namespace", namespace, "--wait=false"], check=False, capture_output=True)
        if server:
            server.shutdown()

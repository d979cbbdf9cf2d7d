"""Validations that end early, on a Deployment of simulated pods, and the pods that count."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from perfdag.app.queue.validation import other_scaler
from perfdag.benchmark.contract import Gang
from perfdag.cli import main
from perfdag.hosts.local import LocalHost
from perfdag.outcome import Failed
from perfdag.shape import Shape
from perfdag.steps.queue.autoscale.params import QueueAutoscaleParams
from perfdag.steps.queue.autoscale_benchmark import QueueAutoscale
from perfdag.steps.queue.client.stats import ClientStats
from perfdag.steps.queue.scaling_benchmark import QueueScaling, QueueScalingParams
from perfdag.steps.queue.validate.deployment import DeploymentTarget
from tests.fakes.api_server import ApiServer

cluster = pytest.mark.skipif(
    "KUBECONFIG" not in os.environ, reason="KUBECONFIG is not set: no cluster to test against"
)
TOLERATED = [{"operator": "Exists"}]


class Control(BaseHTTPRequestHandler):
    """A client's control port whose requests are never answered."""

    def do_GET(self) -> None:
        self.server.talks.wait()  # type: ignore[attr-defined]
        answer: dict[str, Any] = ClientStats().as_json()
        if "value=" in self.path:
            answer = {"result": int(self.path.rpartition("value=")[2])}
            self.server.requests.append(answer["result"])  # type: ignore[attr-defined]
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def control() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("0.0.0.0", 0), Control)
    server.requests, server.talks = [], threading.Event()  # type: ignore[attr-defined]
    server.talks.set()  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield server
    server.talks.set()  # type: ignore[attr-defined]
    server.shutdown()
    server.server_close()


def kubectl(*argv: str, stdin: Any = None) -> str:
    text = None if stdin is None else yaml.safe_dump_all(stdin)
    return subprocess.run(
        ["kubectl", *argv], input=text, capture_output=True, check=True, text=True
    ).stdout


def deployment(namespace: str, replicas: int) -> dict[str, Any]:
    """Return a Deployment whose pods are ready on a simulated node."""
    labels = {"app": "fake", "tier": "back"}
    spec = {
        "nodeSelector": {"type": "kwok"},
        "tolerations": TOLERATED,
        "containers": [{"name": "c", "image": "none"}],
    }
    selector = {
        "matchLabels": {"app": "fake"},
        "matchExpressions": [{"key": "tier", "operator": "In", "values": ["back"]}],
    }
    template = {
        "metadata": {"labels": labels},
        "spec": {**spec, "terminationGracePeriodSeconds": 0},
    }
    meta = {"name": "fake", "namespace": namespace}
    spec = {"replicas": replicas, "selector": selector, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec}


def service(namespace: str, name: str, port: int) -> None:
    """Create a Service of a local port, with a pod that never runs for the API server's proxy."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        out.connect(
            ("203.0.113.1", 9)
        )  # sends nothing: only says by which address this machine is reached
        address = out.getsockname()[0]
    meta, ports = {"name": name, "namespace": namespace}, [{"name": "control", "port": 9996}]
    pod = {
        "schedulingGates": [{"name": "perfdag.test/never"}],
        "containers": [{"name": "c", "image": "none"}],
    }
    subset = {
        "addresses": [{"ip": address, "targetRef": {"kind": "Pod", **meta}}],
        "ports": [{"name": "control", "port": port}],
    }
    objects = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": pod},
        {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {"ports": ports}},
        {"apiVersion": "v1", "kind": "Endpoints", "metadata": meta, "subsets": [subset]},
    ]
    kubectl("apply", "-f", "-", stdin=objects)
    status = json.dumps({"status": {"podIP": address, "podIPs": [{"ip": address}]}})
    kubectl(
        "-n", namespace, "patch", "pod", name, "--subresource=status", "--type=merge", "-p", status
    )


@pytest.fixture
def namespace() -> Iterator[str]:
    """With a Deployment `fake` of two ready replicas."""
    name = f"perfdag-queue-{secrets.token_hex(4)}"
    if not kubectl("get", "nodes", "-l", "type=kwok", "-o", "name"):
        pytest.skip("the cluster has no simulated nodes")
    kubectl("create", "namespace", name)
    try:
        kubectl("apply", "-f", "-", stdin=[deployment(name, 2)])
        kubectl(
            "-n", name, "wait", "deployment", "fake", "--for=condition=Available", "--timeout=60s"
        )
        yield name
    finally:
        kubectl("delete", "namespace", name, "--wait=false")


def replicas(namespace: str) -> int:
    return int(
        kubectl("-n", namespace, "get", "deployment", "fake", "-o", "jsonpath={.spec.replicas}")
    )


@cluster
@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.parametrize("end", ["SIGTERM", "SIGINT", "client gone"])
def test_replicas_are_put_back(namespace: str, control: ThreadingHTTPServer, end: str) -> None:
    url = f"http://127.0.0.1:{control.server_address[1]}"
    argv = [
        sys.executable,
        "-m",
        "perfdag",
        "queue",
        "validate",
        "fake",
        "-n",
        namespace,
        "--client-url",
        url,
        "--limit",
        "3",
    ]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as validator:
        deadline = time.monotonic() + 60
        while control.requests[-2:] != [0, 1]:  # type: ignore[attr-defined]
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert replicas(namespace) == 1
        if end == "client gone":
            control.shutdown()
            control.server_close()
        else:
            validator.send_signal(getattr(signal, end))
        output = validator.communicate(timeout=60)[1]
    assert validator.returncode == (2 if end == "client gone" else 130), output
    assert "restoring 2 replica(s)" in output
    assert "Traceback" not in output
    assert replicas(namespace) == 2


@cluster
@pytest.mark.cluster
@pytest.mark.slow
def test_a_client_that_hangs_holds_no_replicas(
    namespace: str, control: ThreadingHTTPServer
) -> None:
    service(namespace, "its-client", control.server_address[1])
    argv = [
        sys.executable,
        "-m",
        "perfdag",
        "queue",
        "validate",
        "fake",
        "-n",
        namespace,
        "--client",
        "its-client",
        "--limit",
        "3",
    ]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as validator:
        deadline = time.monotonic() + 60
        while control.requests[-2:] != [0, 1]:  # type: ignore[attr-defined]
            assert time.monotonic() < deadline
            assert validator.poll() is None, validator.communicate()[1]
            time.sleep(0.1)
        control.talks.clear()  # type: ignore[attr-defined]
        time.sleep(0.5)
        validator.send_signal(signal.SIGTERM)
        time.sleep(2)
        assert replicas(namespace) == 2
        output = validator.communicate(timeout=18)[1]
    assert validator.returncode == 130, output
    assert "the client may continue to send: no answer in 5 s" in output
    assert "Traceback" not in output


@cluster
@pytest.mark.cluster
@pytest.mark.slow
async def test_pods_that_ended_or_belong_to_others_are_not_counted(namespace: str) -> None:
    from perfdag.kube.client import Kube

    spec = deployment(namespace, 0)["spec"]["template"]
    stranger = {
        "apiVersion": "v1",
        "kind": "Pod",
        **spec,
        "metadata": {**spec["metadata"], "name": "stranger", "namespace": namespace},
    }
    kubectl("apply", "-f", "-", stdin=[stranger])
    kubectl("-n", namespace, "wait", "pod", "stranger", "--for=condition=Ready", "--timeout=60s")
    ended = kubectl(
        "-n", namespace, "get", "pods", "-l", "app=fake", "-o", "jsonpath={.items[0].metadata.name}"
    )
    async with Kube() as kube:
        target = DeploymentTarget(kube, namespace, "fake")
        await target.find()
        assert await target.ready() == 2
        kubectl(
            "-n",
            namespace,
            "patch",
            "pod",
            ended,
            "--subresource=status",
            "--type=merge",
            "-p",
            '{"status": {"phase": "Failed"}}',
        )
        for _ in range(100):
            if (
                await target.ready() == 2 and await target.gone()
            ):  # the ReplicaSet made another one; what failed stays
                break
        else:
            pytest.fail("a pod that failed is counted")


@cluster
@pytest.mark.cluster
@pytest.mark.slow
def test_a_deployment_that_something_else_scales_is_refused(
    namespace: str, control: ThreadingHTTPServer, capsys: pytest.CaptureFixture[str]
) -> None:
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "fake"}
    metric = {
        "type": "Resource",
        "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 90}},
    }
    spec = {"scaleTargetRef": reference, "maxReplicas": 2, "minReplicas": 2, "metrics": [metric]}
    meta = {"name": "hpa-of-fake", "namespace": namespace}
    kubectl(
        "apply",
        "-f",
        "-",
        stdin=[
            {
                "apiVersion": "autoscaling/v2",
                "kind": "HorizontalPodAutoscaler",
                "metadata": meta,
                "spec": spec,
            }
        ],
    )
    url = f"http://127.0.0.1:{control.server_address[1]}"
    assert (
        main(["queue", "validate", "fake", "-n", namespace, "--client-url", url, "--limit", "3"])
        == 2
    )
    assert "HorizontalPodAutoscaler hpa-of-fake scales fake as well" in capsys.readouterr().err
    assert replicas(namespace) == 2


@cluster
@pytest.mark.cluster
@pytest.mark.slow
def test_a_deployment_that_nothing_scales_is_not_watched(namespace: str, tmp_path: Path) -> None:
    params = QueueAutoscaleParams(
        deployments=["fake"], namespace=namespace, low=1, high=4, duration=600
    )
    with pytest.raises(Failed, match=f"nothing scales Deployment fake in namespace {namespace}"):
        QueueAutoscale().run(Gang([LocalHost()], Shape(), 30, str(tmp_path)), params)


async def test_rights_that_are_missing_are_reported() -> None:
    server = ApiServer()
    server.fail("/horizontalpodautoscalers", 403, "somebody cannot list horizontalpodautoscalers")
    target = DeploymentTarget(server.client(), "there", "fake")
    reports: list[str] = []
    assert await other_scaler(target, reports.append) is None
    assert "not known whether anything else scales fake: somebody cannot list" in reports[0]


def test_the_benchmark_ends_its_validator_gently(tmp_path: Path) -> None:
    params = QueueScalingParams(command=["sleep", "0.4"], limit=2)
    with pytest.raises(Failed, match="did not end within 3 s") as failed:
        QueueScaling().run(Gang([LocalHost()], Shape(), 3, str(tmp_path)), params)
    assert "restoring 0 replica(s)" in failed.value.texts["stderr"]

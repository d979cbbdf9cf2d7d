"""Validation of Deployments with real pods, and server-side checks of the manifests.

The node PERFDAG_TEST_NODE must have the image PERFDAG_TEST_QUEUE_IMAGE.
"""

import json
import os
import secrets
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from perfdag.cli import main
from perfdag.kube.client import Kube, run_with_client
from perfdag.steps.queue.manifests.model import Queues
from perfdag.steps.queue.manifests.objects import manifests
from perfdag.steps.queue.validate.targets import send_by_service, token_of

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
]
NODE = os.environ.get("PERFDAG_TEST_NODE", "node-0")


def kubectl(*argv: str) -> Any:
    done = subprocess.run(["kubectl", *argv, "-o", "json"], capture_output=True, check=True)
    return json.loads(done.stdout)


@pytest.fixture
def deploy(tmp_path: Path) -> tuple[str, str]:
    """A namespace of its own and the file of its objects."""
    namespace = f"perfdag-queue-{secrets.token_hex(4)}"
    small = {"cpu": "10m", "memory": "16Mi"}
    queues = Queues.model_validate(
        {
            "namespace": namespace,
            "image": os.environ.get("PERFDAG_TEST_QUEUE_IMAGE", "localhost/perfdag-queue:1"),
            "node_selector": {"kubernetes.io/hostname": NODE},
            "queues": [
                {
                    "name": "linear",
                    "command": ["sleep", "0.5"],
                    "requests": small,
                    "ingress": "queue.example",
                },
                {"name": "serial", "command": ["usl", "0.5", "0.2", "0"], "requests": small},
                {
                    "name": "large",
                    "command": ["sleep", "0.1"],
                    "requests": {"cpu": "600m"},
                    "replicas": 0,
                },
            ],
        }
    )
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all(manifests(queues, "test-token")))
    return namespace, str(file)


def test_validation_on_real_pods(
    deploy: tuple[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace, file = deploy
    subprocess.run(["kubectl", "apply", "-f", file], check=True, capture_output=True)
    try:
        subprocess.run(
            [
                "kubectl",
                "-n",
                namespace,
                "wait",
                "deployment",
                "--all",
                "--for=condition=Available",
                "--timeout=90s",
            ],
            check=True,
        )
        command = ["queue", "validate", "-n", namespace, "--json"]

        assert main([*command, "perfdag-queue-linear", "--limit", "16", "--factor", "1.8"]) == 0
        linear = json.loads(capsys.readouterr().out)
        assert [step["replicas"] for step in linear["steps"]] == [1, 2, 4, 8, 16]
        assert linear["nodes"][NODE]["pods"] == 16
        assert (
            kubectl("-n", namespace, "get", "deployment", "perfdag-queue-linear")["spec"][
                "replicas"
            ]
            == 1
        )

        monkeypatch.setenv("PERFDAG_QUEUE_TOKEN", "another")
        assert main([*command, "perfdag-queue-linear", "--limit", "2"]) == 4
        monkeypatch.delenv("PERFDAG_QUEUE_TOKEN")

        assert main([*command, "perfdag-queue-serial", "--limit", "8", "--factor", "1.4"]) == 3
        serial = json.loads(capsys.readouterr().out)
        assert [bool(step["problems"]) for step in serial["steps"]] == [False, False, False, True]
        assert serial["usl"]["sigma"] == pytest.approx(0.2, rel=0.1)

        assert main([*command, "perfdag-queue-large", "--limit", "4", "--scale-timeout", "15"]) == 2
        output = capsys.readouterr().err
        assert "of 4 replicas run after 15 s" in output
        assert "Insufficient cpu" in output
        assert (
            kubectl("-n", namespace, "get", "deployment", "perfdag-queue-large")["spec"]["replicas"]
            == 0
        )

        assert main([*command, "perfdag-queue-nothing", "--limit", "4"]) == 2
        assert "there are: perfdag-queue-frontend" in capsys.readouterr().err
    finally:
        subprocess.run(
            ["kubectl", "delete", "namespace", namespace, "--wait=false"],
            check=True,
            capture_output=True,
        )


@contextmanager
def namespaced(
    tmp_path: Path, queue: dict[str, Any], **more: Any
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A namespace with the objects of one queue applied to it, deleted at the end."""
    namespace = f"perfdag-queue-{secrets.token_hex(4)}"
    image = os.environ.get("PERFDAG_TEST_QUEUE_IMAGE", "localhost/perfdag-queue:1")
    node = {"kubernetes.io/hostname": NODE}
    objects = manifests(
        Queues.model_validate(
            {
                "namespace": namespace,
                "image": image,
                "node_selector": node,
                "queues": [queue],
                **more,
            }
        )
    )
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all(objects))
    try:
        subprocess.run(["kubectl", "apply", "-f", str(file)], check=True, capture_output=True)
        yield namespace, objects
    finally:
        subprocess.run(
            ["kubectl", "delete", "namespace", namespace, "--wait=false"],
            check=True,
            capture_output=True,
        )


def test_deploy_applies_what_serves_and_removes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Deploy a file with a ServiceMonitor and an autoscaler of the validated queue."""
    namespace = f"perfdag-queue-{secrets.token_hex(4)}"
    small, scale = {"cpu": "10m", "memory": "16Mi"}, {"by": "external", "most": 4}
    queue = {"name": "sleep", "command": ["sleep", "0.5"], "requests": small, "autoscale": scale}
    shared = {
        "namespace": namespace,
        "monitor": "monitoring",
        "node_selector": {"kubernetes.io/hostname": NODE},
    }
    image = {"image": os.environ.get("PERFDAG_TEST_QUEUE_IMAGE", "localhost/perfdag-queue:1")}
    file = tmp_path / "objects.yaml"
    file.write_text(
        yaml.safe_dump_all(manifests(Queues.model_validate({**shared, **image, "queues": [queue]})))
    )
    try:
        argv = [
            "queue",
            "validate",
            "perfdag-queue-sleep",
            "-n",
            namespace,
            "--limit",
            "2",
            "--factor",
            "1.5",
            "--deploy",
            str(file),
        ]
        for _ in range(
            2
        ):  # what the first made is gone when it has ended, so that the next can make it anew
            assert main(argv) == 0, capsys.readouterr().err
            output = capsys.readouterr().err
            assert (
                "not applied: HorizontalPodAutoscaler perfdag-queue-sleep, which would scale perfdag-queue-sleep"
                in output
            )
            assert "exists already" not in output
            left = subprocess.run(
                ["kubectl", "get", "namespace", namespace],
                capture_output=True,
                text=True,
                check=False,
            )
            assert "NotFound" in left.stderr
    finally:
        gone = ["kubectl", "delete", "namespace", namespace, "--ignore-not-found", "--wait=false"]
        subprocess.run(gone, check=True, capture_output=True)
    file.write_text("queues: []")
    assert main([*argv[:-1], str(file)]) == 2
    assert "perfdag queue manifests" in capsys.readouterr().err


def client(namespace: str, path: str, method: str = "GET") -> Any:
    """A page of the client's control port, through the API server."""

    async def fetch(kube: Kube) -> bytes:
        token = await token_of(kube, namespace)
        return await send_by_service(kube, namespace, "perfdag-queue-s-client", token)(method, path)

    return json.loads(run_with_client(fetch))


def test_cron_job_empties_the_queue_and_ends(tmp_path: Path) -> None:
    scale = {"by": "cron", "schedule": "* * * * *", "parallelism": 3}
    small = {"cpu": "10m", "memory": "16Mi"}
    queue = {
        "name": "s",
        "command": ["sleep", "0.5"],
        "replicas": 0,
        "requests": small,
        "autoscale": scale,
    }
    with namespaced(tmp_path, queue) as (namespace, _):
        ready = ["wait", "deployment", "--all", "--for=condition=Available", "--timeout=90s"]
        subprocess.run(["kubectl", "-n", namespace, *ready], check=True)
        client(namespace, "parallel?value=12&type=json", "POST")
        end = time.monotonic() + 120
        while (before := client(namespace, "stats?type=json"))[
            "pending"
        ] < 12:  # a service may take a moment to lead somewhere
            assert time.monotonic() < end
        client(
            namespace, "parallel?value=0&type=json"
        )  # those 12 wait for the CronJob's backends, none follow
        while True:
            output = client(namespace, "stats?type=json")
            jobs = kubectl("-n", namespace, "get", "jobs")["items"]
            if output["success"] >= 12 and any(job["status"].get("succeeded") == 3 for job in jobs):
                break
            assert time.monotonic() < end, (output["success"], output["pending"], output["causes"])
            time.sleep(1)
        assert (output["pending"], output["failure"]) == (0, before["failure"])
        assert len(output["nodes"][NODE]["pods"]) >= 3
        assert not any(job["status"].get("failed") for job in jobs)


def test_the_api_server_takes_every_kind_it_knows(tmp_path: Path) -> None:
    shared = {"monitor": "monitoring"}
    data = {"nfs_server": "192.0.2.1", "nfs_path": "/volume"}
    resources = {
        "gpu.intel.com/i915": 1,
        "gpu.intel.com/millicores": 480,
        "gpu.intel.com/memory.max": "560M",
    }
    scaled = [
        {"name": by, "command": ["sleep", "1"], "autoscale": {"by": by}, "ingress": f"{by}.example"}
        for by in ("custom", "external", "cron")
    ]
    device = {
        "name": "gpu",
        "command": ["/bin/true"],
        "limit": 9,
        "resources": resources,
        "data": data,
        "node_selector": {"gpu": "true"},
    }
    with namespaced(tmp_path, {"name": "s", "command": ["sleep", "1"], "replicas": 0}) as (
        namespace,
        _,
    ):
        objects = manifests(
            Queues.model_validate({"namespace": namespace, "queues": [*scaled, device], **shared})
        )
        known = [
            body for body in objects if body["kind"] not in ("ServiceMonitor", "ScaledObject")
        ]  # of operators that need not be there
        assert {
            "Ingress",
            "PersistentVolume",
            "RoleBinding",
            "HorizontalPodAutoscaler",
            "CronJob",
        } <= {body["kind"] for body in known}
        file = tmp_path / "all.yaml"
        file.write_text(yaml.safe_dump_all(known))
        checked = ["kubectl", "apply", "--dry-run=server", "--validate=strict", "-f", str(file)]
        done = subprocess.run(checked, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("(server dry run)") == len(known)

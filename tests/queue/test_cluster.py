"""Validation of Deployments with real pods. The image (PERFDAG_TEST_QUEUE_IMAGE) has to be on the node (PERFDAG_TEST_NODE)."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from perfdag.cli import main
from perfdag.steps.queue.manifests import manifests
from perfdag.steps.queue.queues import Queues

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.skipif("KUBECONFIG" not in os.environ, reason="KUBECONFIG is not set: no cluster to test against"),
]
NODE = os.environ.get("PERFDAG_TEST_NODE", "node-0")


def kubectl(*argv: str) -> Any:
    done = subprocess.run(["kubectl", *argv, "-o", "json"], capture_output=True, check=True)
    return json.loads(done.stdout)


@pytest.fixture
def deploy(tmp_path: Path) -> tuple[str, str]:
    """A namespace of its own and the file of its objects."""
    namespace = f"perfdag-queue-{secrets.token_hex(4)}"
    small = {"cpu": "1m", "memory": "16Mi"}
    queues = Queues.model_validate(
        {
            "namespace": namespace,
            "image": os.environ.get("PERFDAG_TEST_QUEUE_IMAGE", "localhost/perfdag-queue:1"),
            "node_selector": {"kubernetes.io/hostname": NODE},
            "queues": [
                {"name": "linear", "command": ["sleep", "0.5"], "requests": small, "ingress": "queue.example"},
                {"name": "serial", "command": ["usl", "0.5", "0.2", "0"], "requests": small},
                {"name": "large", "command": ["sleep", "0.1"], "requests": {"cpu": "600m"}},
            ],
        }
    )
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all(manifests(queues, "test-token")))
    return namespace, str(file)


def test_validation_on_real_pods(deploy: tuple[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    namespace, file = deploy
    subprocess.run(["kubectl", "apply", "-f", file], check=True, capture_output=True)
    try:
        subprocess.run(
            ["kubectl", "-n", namespace, "wait", "deployment", "--all", "--for=condition=Available", "--timeout=90s"], check=True
        )
        here = ["queue", "validate", "-n", namespace, "--json"]

        monkeypatch.setenv("PERFDAG_QUEUE_TOKEN", "test-token")
        assert main([*here, "perfdag-queue-linear", "--limit", "16", "--factor", "1.8"]) == 0
        linear = json.loads(capsys.readouterr().out)
        assert [step["replicas"] for step in linear["steps"]] == [1, 2, 4, 8, 16]
        assert linear["nodes"][NODE]["pods"] == 16
        assert kubectl("-n", namespace, "get", "deployment", "perfdag-queue-linear")["spec"]["replicas"] == 1

        monkeypatch.delenv("PERFDAG_QUEUE_TOKEN")
        assert main([*here, "perfdag-queue-linear", "--limit", "2"]) == 4  # the control port wants its token

        assert main([*here, "perfdag-queue-serial", "--limit", "8", "--factor", "1.4"]) == 3
        serial = json.loads(capsys.readouterr().out)
        assert [bool(step["problems"]) for step in serial["steps"]] == [False, False, False, True]
        assert serial["usl"]["sigma"] == pytest.approx(0.2, rel=0.1)

        assert main([*here, "perfdag-queue-large", "--limit", "4", "--scale-timeout", "15"]) == 2
        said = capsys.readouterr().err
        assert "of 4 replicas run after 15 s" in said
        assert "Insufficient cpu" in said
        assert kubectl("-n", namespace, "get", "deployment", "perfdag-queue-large")["spec"]["replicas"] == 1

        assert main([*here, "perfdag-queue-nothing", "--limit", "4"]) == 2
        assert "there are: perfdag-queue-frontend" in capsys.readouterr().err
    finally:
        subprocess.run(["kubectl", "delete", "namespace", namespace, "--wait=false"], check=True, capture_output=True)

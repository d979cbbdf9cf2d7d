"""Validation of Deployments with real pods, and server-side checks of the manifests.

The node PERFDAG_TEST_NODE must have the image PERFDAG_TEST_QUEUE_IMAGE.
"""

import json
import os
import re
import secrets
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from perfdag.commands.main import main
from perfdag.kube.client import Kube, run_with_client
from perfdag.steps.queue.manifests import Queues, manifests
from perfdag.steps.queue.sites import DeploymentSite, token_of

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
]
NODE = os.environ.get("PERFDAG_TEST_NODE", "node-0")
IMAGE = os.environ.get("PERFDAG_TEST_QUEUE_IMAGE", "localhost/perfdag-queue:1")
SMALL = {"cpu": "10m", "memory": "16Mi"}


def kubectl(*argv: str) -> Any:
    done = subprocess.run(["kubectl", *argv, "-o", "json"], capture_output=True, check=True)
    return json.loads(done.stdout)


@contextmanager
def namespaced(tmp_path: Path, *queues: dict[str, Any]) -> Iterator[str]:
    """A namespace with the objects of queues applied to it, deleted at the end."""
    namespace = f"perfdag-queue-{secrets.token_hex(4)}"
    shared = {"image": IMAGE, "node_selector": {"kubernetes.io/hostname": NODE}}
    objects = Queues.model_validate({"namespace": namespace, "queues": queues, **shared})
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all(manifests(objects)))
    try:
        subprocess.run(["kubectl", "apply", "-f", str(file)], check=True, capture_output=True)
        wait = ["wait", "deployment", "--all", "--for=condition=Available", "--timeout=90s"]
        subprocess.run(["kubectl", "-n", namespace, *wait], check=True)
        yield namespace
    finally:
        subprocess.run(
            ["kubectl", "delete", "namespace", namespace, "--wait=false"],
            check=True,
            capture_output=True,
        )


def test_validation_on_real_pods(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    linear = {"name": "linear", "command": ["sleep", "0.5"], "requests": SMALL}
    serial = {"name": "serial", "command": ["usl", "0.5", "0.2", "0"], "requests": SMALL}
    large = {"name": "large", "command": ["sleep", "0.1"], "requests": {"cpu": "600m"}}
    with namespaced(
        tmp_path, linear | {"ingress": "queue.example"}, serial, large | {"replicas": 0}
    ) as namespace:

        def replicas(name: str) -> int:
            result = kubectl("-n", namespace, "get", "deployment", f"perfdag-queue-{name}")
            return int(result["spec"]["replicas"])

        command = ["queue", "validate", "-n", namespace, "--json"]

        assert main([*command, "perfdag-queue-linear", "--limit", "16", "--factor", "1.8"]) == 0
        outcome = json.loads(capsys.readouterr().out)
        assert [step["replicas"] for step in outcome["steps"]] == [1, 2, 4, 8, 16]
        assert len(outcome["nodes"][NODE]["pods"]) == 16
        assert replicas("linear") == 1

        monkeypatch.setenv("PERFDAG_QUEUE_TOKEN", "another")
        assert main([*command, "perfdag-queue-linear", "--limit", "2"]) == 4
        assert "log in" not in capsys.readouterr().err
        monkeypatch.delenv("PERFDAG_QUEUE_TOKEN")

        assert main([*command, "perfdag-queue-serial", "--limit", "8", "--factor", "1.45"]) == 3
        outcome = json.loads(capsys.readouterr().out)
        assert [step["verdict"] == "failed" for step in outcome["steps"]] == [False] * 3 + [True]
        # The back-off of an idle backend is part of the time of an item.
        assert outcome["usl"]["sigma"] == pytest.approx(0.2, rel=0.25)

        assert main([*command, "perfdag-queue-large", "--limit", "4", "--scale-timeout", "15"]) == 2
        output = capsys.readouterr().err
        assert re.search(r"after 15 s \d of 4 replicas run", output)
        assert "Insufficient cpu" in output
        assert replicas("large") == 0

        assert main([*command, "perfdag-queue-nothing", "--limit", "4"]) == 4
        assert '"perfdag-queue-nothing" not found' in capsys.readouterr().err

        both = ["perfdag-queue-linear", "perfdag-queue-large", "--limit", "1"]
        assert main([*command, *both]) == 0
        results = json.loads(capsys.readouterr().out)
        assert [results[name]["verdict"] for name in both[:2]] == ["passed", "passed"]


def client(namespace: str, path: str, method: str = "GET", **query: str) -> Any:
    """A page of the client's control port, through the API server."""

    async def fetch(kube: Kube) -> Any:
        site = DeploymentSite(kube, namespace, "perfdag-queue-s")
        site.token = await token_of(kube, namespace)
        return await site.send(method, path, **query)

    return run_with_client(fetch)


def test_cron_job_empties_the_queue_and_ends(tmp_path: Path) -> None:
    scale = {"by": "cron", "schedule": "* * * * *", "parallelism": 3}
    queue = {"name": "s", "command": ["sleep", "0.5"], "replicas": 0, "requests": SMALL}
    with namespaced(tmp_path, queue | {"autoscale": scale}) as namespace:
        client(namespace, "parallel", "POST", value="12")
        end = time.monotonic() + 120
        while (before := client(namespace, "stats"))[
            "pending"
        ] < 12:  # a service may take a moment to lead somewhere
            assert time.monotonic() < end
        client(
            namespace, "parallel", "POST", value="0"
        )  # those 12 wait for the CronJob's backends, none follow
        while True:
            output = client(namespace, "stats")
            jobs = kubectl("-n", namespace, "get", "jobs")["items"]
            if output["success"] >= 12 and any(job["status"].get("succeeded") == 3 for job in jobs):
                break
            assert time.monotonic() < end, (output["success"], output["pending"], output["causes"])
            time.sleep(1)
        assert (output["pending"], output["failure"]) == (0, before["failure"])
        # A backend that starts late finds the queue empty and ends: it has no item.
        assert sum(output["nodes"][NODE]["pods"].values()) == output["success"]
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
    with namespaced(tmp_path, {"name": "s", "command": ["sleep", "1"], "replicas": 0}) as namespace:
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

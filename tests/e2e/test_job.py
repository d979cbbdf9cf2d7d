"""A suite as a plain Job, without Argo, in a namespace that enforces PodSecurity restricted."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from perfdag.cli import main

pytestmark = pytest.mark.argo
IMAGES = os.environ.get("PERFDAG_TEST_IMAGES", "localhost/perfdag-{name}:1")


def kubectl(*words: str, stdin: str | None = None) -> str:
    done = subprocess.run(
        ["kubectl", *words], input=stdin, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def namespace() -> Iterator[str]:
    name = f"job-{uuid4().hex[:8]}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    document = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": labels},
    }
    kubectl("apply", "-f", "-", stdin=json.dumps(document))
    try:
        yield name
    finally:
        kubectl("delete", "namespace", name, "--wait=false")


@pytest.mark.slow
def test_a_suite_runs_as_a_job_and_leaves_its_rows(
    namespace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket = os.environ.get("PERFDAG_TEST_BUCKET", "perfdag")
    store = f"s3://{bucket}/tests/{namespace}"
    keys = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    secret: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "perfdag-store", "namespace": namespace},
        "stringData": keys,
    }
    kubectl("apply", "-f", "-", stdin=json.dumps(secret))
    suite = tmp_path / "job.yaml"
    suite.write_text(
        "name: job\nentries:\n- {name: one, benchmark: command, repetitions: 2, image: base,"
        ' params: {argv: ["true"]}}\n'
    )
    options = ["--namespace", namespace, "--store", store, "--images", IMAGES]
    assert main(["render", str(suite), "--job", *options]) == 0
    kubectl("apply", "-f", "-", stdin=capsys.readouterr().out)
    deadline = time.monotonic() + 240
    status: dict[str, Any] = {}
    while time.monotonic() < deadline and not (status.get("succeeded") or status.get("failed")):
        time.sleep(2)
        status = json.loads(kubectl("get", "job", "perfdag-job", "-n", namespace, "-o", "json"))[
            "status"
        ]
    log = kubectl("logs", "-n", namespace, "job/perfdag-job")
    assert status.get("succeeded") == 1, log
    assert main(["show", "last", "--store", store]) == 0
    assert "2 ok" in capsys.readouterr().out

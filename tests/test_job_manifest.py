"""The manifests of a suite as plain Jobs."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from perfdag.app.cluster.job_manifest import job_manifests
from perfdag.app.errors import CommandError
from perfdag.app.local_run import PROVIDED, needs_cluster
from perfdag.cli import main
from perfdag.shape import Shape
from perfdag.workflows.containers import Installation
from tests.conftest import CommandLine

GPU = """
name: gpu-one
entries:
- name: offline
  benchmark: resnet50
  resources: {nvidia.com/gpu: 1, cpu: 4, memory: 16Gi}
  node_selector: {cloud.google.com/gke-accelerator: nvidia-tesla-t4}
  params: {device: cuda}
- name: cpu
  benchmark: resnet50
  params: {scenario: single-stream}
"""


def jobs(text: str, folder: Path, **more: Any) -> list[dict[str, Any]]:
    file = folder / "suite.yaml"
    file.write_text(text)
    options = {"namespace": "bench", "store": "claim://results", **more}
    return job_manifests(str(file), Installation(**options))


def test_each_shape_has_a_job_with_its_entries_image_and_resources(tmp_path: Path) -> None:
    suite, gpu, cpu = jobs(GPU, tmp_path)
    assert suite["data"]["suite.yaml"] == GPU
    assert [job["metadata"]["name"] for job in (gpu, cpu)] == [
        "perfdag-gpu-one-1",
        "perfdag-gpu-one-2",
    ]
    pod = gpu["spec"]["template"]["spec"]
    (main_container,) = pod["containers"]
    assert main_container["image"] == "localhost/perfdag-resnet50:1"
    assert main_container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert main_container["command"][-4:] == ["--only", "offline", "--store", "/perfdag/store"]
    assert "nvidia-tesla-t4" in str(pod)
    assert {"name": PROVIDED, "value": "1"} in main_container["env"]
    claims = [volume for volume in pod["volumes"] if "persistentVolumeClaim" in volume]
    assert claims == [{"name": "store", "persistentVolumeClaim": {"claimName": "results"}}]
    assert pod["automountServiceAccountToken"] is False
    assert "@" not in str(pod)


def test_a_pod_of_a_job_measures_what_a_machine_would_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = Shape.model_validate({"resources": {"nvidia.com/gpu": 1}})
    assert needs_cluster(shape)
    monkeypatch.setenv(PROVIDED, "1")
    assert needs_cluster(shape) is None


@pytest.mark.parametrize(
    ("text", "store", "message"),
    [
        (GPU, "", "a Job's pod is gone after its run: give --store claim://NAME"),
        (
            "name: a\nentries:\n- {name: two, benchmark: iperf, hosts: {count: 2}, params: "
            "{duration: 1s}}\n",
            "claim://results",
            "entry two needs 2 hosts, and a Job has one pod: use `perfdag submit`",
        ),
        (
            "name: a\nentries:\n- name: shapes\n  benchmark: command\n  params: {argv: [id]}\n"
            "  permutations: {product: {resources: [{cpu: 1}, {cpu: 2}]}}\n",
            "claim://results",
            "entry shapes has points of 2 shapes",
        ),
    ],
)
def test_what_one_pod_cannot_measure_is_refused(
    text: str, store: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(CommandError, match=message):
        jobs(text, tmp_path, store=store)


def test_the_verb_prints_the_jobs(tmp_path: Path, cli: CommandLine) -> None:
    file = tmp_path / "suite.yaml"
    file.write_text(GPU)
    kinds = [
        part["kind"]
        for part in yaml.safe_load_all(
            cli(["render", str(file), "--job", "--store", "s3://bench/results"]).out
        )
    ]
    assert kinds == ["ConfigMap", "Job", "Job"]
    assert main(["render", str(file), "--job", "--base", "--store", "s3://bench/results"]) == 2

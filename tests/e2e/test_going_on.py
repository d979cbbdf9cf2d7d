"""A run that ended early on a real cluster goes on: as a run of its own, or by `argo retry` of
its Workflow.
"""

import subprocess
from pathlib import Path

import pytest

from perfdag.kube.client import Kube, run_with_client

from .conftest import Namespace, sleeps

pytestmark = [pytest.mark.argo, pytest.mark.slow]


def test_what_was_stopped_goes_on_by_resume_and_by_argo_retry(
    bench: Namespace, tmp_path: Path
) -> None:
    name = bench.submit(sleeps(tmp_path, points=40))
    run_id = bench.run_id(name)
    bench.under_way(run_id)
    subprocess.run(["argo", "stop", name, "-n", bench.name], check=True, capture_output=True)
    bench.watch(name)
    half = len(bench.stored(run_id))
    assert 0 < half < 40
    assert {row["status"] for row in bench.rows(run_id)} == {"ok", "missing"}
    resumed = bench.perfdag("submit", "--resume", run_id, check=True).stdout
    name = resumed.split("workflow ")[1].split()[0]
    bench.under_way(run_id, half + 2)
    subprocess.run(["argo", "stop", name, "-n", bench.name], check=True, capture_output=True)
    bench.watch(name)
    assert len(bench.stored(run_id)) < 40
    argo_retry(bench, name)
    bench.until(lambda: len(bench.stored(run_id)) == 40, 180, "complete run")
    bench.assert_complete(run_id, 40)
    # not waited for: Argo 4.1 can leave the attempt that was stopped Running, and with it the
    # workflow
    subprocess.run(["argo", "terminate", name, "-n", bench.name], check=True, capture_output=True)


def argo_retry(bench: Namespace, name: str) -> None:
    subprocess.run(["argo", "retry", name, "-n", bench.name], check=True, capture_output=True)


def test_argo_retry_of_a_run_whose_pods_cannot_start_ends(bench: Namespace) -> None:
    """The watchdog failed with them, so that it is made again with them."""
    entry = "{benchmark: command, resources: {requests: {cpu: 500}}, params: {argv: ['true']}}"
    name = bench.submit(f"name: waits\npending_limit: 20s\nentries: [{entry}]\n")
    assert bench.watch(name).returncode == 4
    assert bench.workflow(name)["metadata"]["labels"]["perfdag/verdict"] == "failed"
    argo_retry(bench, name)
    assert bench.watch(name).returncode == 4


def test_a_run_that_stands_still_ends_with_its_report(bench: Namespace, tmp_path: Path) -> None:
    kind = "argoproj.io/v1alpha1/WorkflowTemplate"

    async def shorten(client: Kube) -> None:
        """Let the watchdog wait for 30 s, and not for more than an hour."""
        spec = (await client.get(kind, "perfdag", bench.name))["spec"]
        for template in spec["templates"]:
            if template["name"] == "watchdog-pod":
                template["container"]["args"][-1] = "30s"
        await client.patch(kind, "perfdag", {"spec": {"templates": spec["templates"]}}, bench.name)

    run_with_client(shorten)
    try:
        result = bench.measure(sleeps(tmp_path, 3, 900.0, hosts=1, extra="isolation: point\n"))
    finally:
        bench.install()
    assert result.exit_code == 1
    errors = {row["error"] for row in result.rows}
    assert errors == {f"workflow {result.workflow} was stopped: it did not go on for 30.0 s"}

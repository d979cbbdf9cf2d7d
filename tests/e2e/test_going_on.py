"""A run that ended early on a real cluster goes on: as a run of its own, or by `argo retry` of
its Workflow.
"""

import subprocess
from pathlib import Path

import pytest

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
    subprocess.run(["argo", "retry", name, "-n", bench.name], check=True, capture_output=True)
    bench.until(lambda: len(bench.stored(run_id)) == 40, 180, "complete run")
    bench.assert_complete(run_id, 40)
    # not waited for: Argo 4.1 can leave the attempt that was stopped Running, and with it the
    # workflow
    subprocess.run(["argo", "terminate", name, "-n", bench.name], check=True, capture_output=True)

"""Faults that other runs on the cluster would feel too, so nothing runs beside these: a cordoned node, a controller that is killed."""

import os
import subprocess
from pathlib import Path

import pytest

from perfdag import kube
from perfdag.kube import Kube

from .conftest import Namespace, sleeps

pytestmark = [pytest.mark.argo, pytest.mark.slow]


def test_a_cordoned_node_waits_and_goes_on(bench: Namespace, tmp_path: Path) -> None:
    name = bench.submit(sleeps(tmp_path, points=6, extra="batch_time: 3s\n"))
    run_id = bench.run_id(name)
    node = bench.pod(name, 0)["spec"]["nodeName"]

    async def cordon(client: Kube, on: bool) -> None:
        await client.patch(await client.resource("v1", "Node"), node, {"spec": {"unschedulable": on}})

    kube.run(lambda client: cordon(client, True))
    try:
        bench.until(lambda: "unschedulable" in bench.perfdag("status", name).stdout, 90, "pod that waits for the node")
    finally:
        kube.run(lambda client: cordon(client, False))
    assert bench.watch(name).returncode == 0
    bench.assert_complete(run_id, 6)


@pytest.mark.skipif("PERFDAG_TEST_RESTART" not in os.environ, reason="PERFDAG_TEST_RESTART names no command that kills and restarts Argo")
def test_a_killed_controller_loses_nothing(bench: Namespace, tmp_path: Path) -> None:
    name = bench.submit(sleeps(tmp_path, points=12, extra="batch_time: 8s\n"))
    run_id = bench.run_id(name)
    bench.until(lambda: len(bench.stored(run_id)) >= 2, 120, "sample in the store")
    subprocess.run(["bash", "-c", os.environ["PERFDAG_TEST_RESTART"]], check=True, capture_output=True, timeout=200)
    said = bench.watch(name, timeout=400)
    assert said.returncode == 0, said.stdout + said.stderr
    bench.assert_complete(run_id, 12)
    assert len({row["batch"] for row in bench.rows(run_id)}) > 1, "the controller had nothing left to do"

"""A harness that is killed: what its journal kept, and what a later sample adds."""

import asyncio
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from perfdag.kube.client import Kube
from tests import simulation

from .conftest import left

pytestmark = pytest.mark.cluster
COUNT = 40
PERFDAG = [sys.executable, "-P", "-m", "perfdag"]
KEPT = 12.0
"""Seconds until the journal has what was seen: a state each 2 s, a copy to the store each 5 s."""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["scale", "suite"])
async def test_a_sample_of_a_killed_run_has_what_it_saw_and_what_came_later(
    kube: Kube, nodes: None, namespace: str, way: str, tmp_path: Path
) -> None:
    """Of VMIs that run 1 to 40 s after their creation, the journal has the first, a sample that
    starts after the kill the last.
    """
    await simulation.install(kube, "kubevirt", {"vmi-running": (1000, 40_000)})
    words = ["scale", "vmi", "burst", "--count", str(COUNT), "--no-primer", "-o", str(tmp_path)]
    words += ["--namespace", namespace, "--no-api-gates"]
    if way == "suite":
        params = f"{{counts: [{COUNT}], primer: false, api_gates: false, namespace: {namespace}}}"
        suite = tmp_path / "s.yaml"
        suite.write_text(
            f"name: killed\nentries:\n  - {{benchmark: vmi-burst, params: {params}}}\n"
        )
        words = ["run", str(suite), "--no-report", "--store", str(tmp_path)]

    async def running() -> set[str]:
        vmis = await kube.list(
            await kube.resource("kubevirt.io/v1", "VirtualMachineInstance"), namespace
        )
        return {
            vmi["metadata"]["uid"]
            for vmi in vmis
            if (vmi.get("status") or {}).get("phase") == "Running"
        }

    process = await asyncio.create_subprocess_exec(*PERFDAG, *words)
    try:
        async with asyncio.timeout(60):
            while len(kept := await running()) < COUNT // 4:
                await asyncio.sleep(0.1)
        await asyncio.sleep(KEPT)
    finally:
        process.kill()
        await process.wait()
    (file,) = tmp_path.rglob("run.json")
    assert len(await running()) < COUNT, "some run after the kill"
    sample = ["scale", "sample", "-o", str(file.parent), "--watch", "90"]
    process = await asyncio.create_subprocess_exec(*PERFDAG, *sample)
    assert await process.wait() == 0
    rows = pq.read_table(file.parent / "stages.parquet").to_pylist()
    ran = {row["uid"]: row for row in rows if (row["stage"], row["status"]) == ("running", "ok")}
    assert len(ran) == COUNT
    assert all(ran[uid]["receive_time"] for uid in kept), "the journal kept when it was seen"
    seen = [uid for uid, row in ran.items() if row["receive_time"]]
    assert len(seen) > len(kept), "the sample saw the last"
    run = rows[0]["run"]
    deletion = await asyncio.create_subprocess_exec(*PERFDAG, "scale", "delete", "--run", run)
    assert await deletion.wait() == 0
    assert await left(kube, "kubevirt.io/v1", "VirtualMachineInstance", namespace) == 0

"""The suite with every benchmark, shortened by --set alone: what the cluster can run is ok, the
rest is skipped with its reason.
"""

from pathlib import Path

import pytest

from perfdag.store.s3 import open_store

from .conftest import IMAGES, Namespace

pytestmark = [pytest.mark.argo, pytest.mark.slow]
SUITES = Path(__file__).parents[2] / "suites"


def _set(*pairs: str) -> list[str]:
    return [word for pair in pairs for word in ("--set", pair)]


def test_everything_runs_here_or_is_skipped_with_its_reason(privileged: Namespace) -> None:
    shorter = _set(
        "pending_limit=90s", "iperf-set.duration=1s", "iperf.duration=1s", "mpi-pingpong.max_log=10", "fio-here.runtime=1s",  # noqa: E501
        "fio-here.size=16MiB", "openfoam-here.time_steps=5", "openfoam.size=XS", "openfoam.nodes=3", "openfoam.procs=6", "openfoam.time_steps=2", "openfoam.oversubscribe=true",  # noqa: E501
    )  # fmt: skip
    # the image of torchbench is too heavy for a test: this one has no torch, which is a reason too
    light = _set(f"pytorch-here.image={IMAGES.format(name='base')}")
    run = privileged.measure(SUITES / "everything.yaml", *shorter, *light, timeout=900)
    states = {(row["entry"], row["status"]) for row in run.rows}
    assert run.exit_code == 0, run.output
    ran = {"iperf-set", "iperf", "mpi-pingpong", "openfoam", "openfoam-here", "fio-here"}
    lacks = {
        "network-selection",
        "rdma-bandwidth",
        "rdma-latency",
        "rdma-bandwidth-here",
        "rdma-latency-here",
        "fio-filesystem",
        "pytorch-gpu",
        "pytorch-here",
    }
    assert states == {(entry, "ok") for entry in ran} | {(entry, "skipped") for entry in lacks}
    reasons = {row["entry"]: row["error"] for row in run.rows if row["status"] == "skipped"}
    report = open_store(privileged.store).get(f"runs/{run.id}/report.html").decode()
    assert all(reasons.values())
    assert all(entry in report for entry in lacks)
    assert "csi-cinder" in reasons["fio-filesystem"]
    assert "csi-cinder" in report
    assert len({row["point"] for row in run.rows if row["entry"] == "iperf-set"}) == 15

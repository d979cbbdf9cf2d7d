"""MPI over two pods, on two nodes where there are two: a whole application, each rank with a
disk of its own, collectives, and messages from pod to pod.
"""

import json
import os
from typing import Any

import pytest
import yaml

from .conftest import Namespace

pytestmark = [pytest.mark.argo, pytest.mark.slow]


def _rows(bench: Namespace, entry: dict[str, Any]) -> list[dict[str, Any]]:
    run = bench.measure(
        yaml.safe_dump({"name": "mpi", "pending_limit": "180s", "entries": [entry]})
    )
    run.assert_ok()
    if "hosts" in entry:
        assert {row["same_node"] for row in run.rows} == {bench.spread() == "any"}
    return run.rows


def _facts(rows: list[dict[str, Any]]) -> dict[str, Any]:
    (facts,) = {row["env"] for row in rows}
    result: dict[str, Any] = json.loads(facts)["sample"]
    return result


def test_openfoam_over_two_pods(bench: Namespace) -> None:
    params = {"cells": 16, "procs": 2, "nodes": 2, "time_steps": 5, "oversubscribe": True}
    hosts = {"placement": bench.spread()}
    rows = _rows(bench, {"benchmark": "openfoam", "hosts": hosts, "params": params})
    by = {(row["metric"], row["stat"]): row for row in rows if row["coords"] == "{}"}
    assert by["solve_time", "value"]["value"] > 0
    assert by["memory", "value"]["n"] == 2, "each rank reported its memory"
    assert by["pressure_iterations", "value"]["value"] == 5 * 2 * 250
    assert _facts(rows)["point_to_point"] == "ob1"


def test_two_ranks_in_each_of_two_pods(bench: Namespace) -> None:
    params = {"max_log": 10, "iterations": 50, "oversubscribe": True}
    points = [
        {"benchmark": name, "ranks": 4, "ranks_per_host": 2} for name in ("Allreduce", "Uniband")
    ]
    entry = {
        "benchmark": "imb",
        "params": params,
        "permutations": {"explicit": [*points, {"benchmark": "PingPong"}]},
    }
    entry["hosts"] = {"placement": bench.spread()}
    rows = _rows(bench, entry)
    result: dict[tuple[str, str], set[int]] = {}
    for row in rows:
        own_params, facts = json.loads(row["params"]), json.loads(row["env"])["sample"]
        if (row["metric"], row["stat"]) in (("latency", "mean"), ("bandwidth", "value")):
            result.setdefault((own_params["benchmark"], row["metric"]), set()).add(
                json.loads(row["coords"])["message_bytes"]
            )
        assert facts["fabric"].startswith("tcp"), "also between ranks of one pod"
    sizes = {0, *(2**log for log in range(11))}
    assert result["Allreduce", "latency"] == sizes - {1, 2}
    assert result["PingPong", "latency"] == sizes
    assert result["PingPong", "bandwidth"] >= sizes - {0}
    assert result["Uniband", "bandwidth"] >= sizes - {0}


def test_every_rdma_provider_of_the_image_loads(bench: Namespace) -> None:
    """Without a device libfabric registers all but efa, whose library must load all the same."""
    script = """set -eu
    export LD_LIBRARY_PATH=/opt/impi/lib FI_PROVIDER_PATH=/opt/impi/lib
    for each in /opt/impi/lib/*-fi.so; do
        lacking=$(ldd "$each" | grep 'not found' || true)
        if [ "$lacking" ]; then echo "$each: $lacking" >&2; exit 1; fi
    done
    ls /opt/impi/lib/libefa-fi.so
    listed=$(/opt/impi/bin/libfabric/fi_info -l)
    for name in mlx verbs psm2 psm3; do
        if ! echo "$listed" | grep -q "^$name:"; then echo "no $name among $listed" >&2; exit 1; fi
    done"""
    entry = {"benchmark": "command", "image": "imb", "params": {"argv": ["sh", "-c", script]}}
    _rows(bench, entry)


@pytest.mark.skipif(
    "IMB_SOURCE" not in os.environ,
    reason="IMB_SOURCE names no archive of the Intel MPI Benchmarks: imb-openmpi is not built",
)
def test_imb_with_open_mpi_between_pods_and_within_one(bench: Namespace) -> None:
    entry = {
        "benchmark": "imb",
        "params": {"mpi": "openmpi", "max_log": 10, "iterations": 50, "oversubscribe": True},
        "permutations": {"product": {"transport": ["tcp", "shm"]}},
    }
    rows = _rows(bench, entry)
    assert {json.loads(row["env"])["sample"]["fabric"] for row in rows} == {"ob1"}

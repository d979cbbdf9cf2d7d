"""The shipped suites plan, docs/kube-perftest.md has every field, and params that cannot be
measured are refused. tests/test_import.py compares `everything` with the original.
"""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from perfdag.benchmark import registry
from perfdag.commands.imports import COMMON, KINDS
from perfdag.suite.load import load_suite
from perfdag.suite.points import enumerate_points

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["network", "mpi", "storage"])
def test_the_ready_suites_plan(name: str) -> None:
    assert enumerate_points(load_suite(ROOT / f"suites/{name}.yaml")).points


def test_each_field_of_kube_perftest_is_in_the_table() -> None:
    page = (ROOT / "docs/kube-perftest.md").read_text()
    fields = {*COMMON, *(field for kind in KINDS.values() for field in kind.fields)}
    assert {field for field in fields if f"`{field}`" not in page} == set()


IMPOSSIBLE: dict[str, list[dict[str, Any]]] = {
    "imb": [
        {"benchmark": "PongPing"},
        {"transport": "ucx"},
        {"max_log": 31},
        {"min_log": 5, "max_log": 4},
        {"ranks": 3},
        {"benchmark": "Bcast", "ranks": 5, "ranks_per_host": 2},
        {"benchmark": "Allreduce", "max_log": 1},
        {"program": "/opt/IMB"},
    ],
    "torchbench": [
        {"batch_size": 0},
        {"model": "../x"},
        {"gpus": 2, "device": "cuda"},
        {"device": "cpu", "precision": "fp16"},
        {"device": "cuda", "precision": "amp_bf16"},
        {"precision": "fp64"},
        {"iterations": 1},
    ],
    "openfoam": [
        {"procs": 7, "nodes": 2},
        {"procs": 8, "nodes": 2, "procs_per_node": 3},
        {"size": "S", "cells": 10},
        {"cells": 4, "procs": 5},
        {"size": "L"},
        {"cells": 895},  # from here on the faces need more than 32 bits
        {"procs": 0},
        {"procs": 2, "nodes": 1, "transport": "rdma"},
    ],
    "rdma-bandwidth": [
        {"iterations": 4},
        {"duration": "10s"},
        {"duration": "1s", "sizes": [8]},
        {"duration": "3.5s", "sizes": [8]},
        {"mode": "atomic"},
        {"sizes": []},
        {"mtu": 1500},
        {"device": "mlx5_0 -x"},
    ],
    "rdma-latency": [{"gid_index": 65}],
    "fio": [
        {"rw": "rw,readwrite"},
        {"ioengine": "aio"},
        {"directory": "/a", "file": "/b"},
        {"directory": "relative"},
        *(
            {"file": path}  # fio would write to another file, which may hold data
            for path in ("/a\nrw=write", "/a;b", "/a#b", "/a/$ncpus", "/a\\", "/a ")
        ),
        {"ioengine": "psync", "iodepth": 8},
        {"iodepth": 8, "direct": False},
        {"ioengine": "mmap"},
        {"bs": 1000},
        {"size": "4KiB", "bs": "1MiB"},
        {"rw": "read", "percentage_random": 50},
        {"prefill": True, "file": "/dev/sdz"},
    ],
    "iperf": [
        {"protocol": "sctp"},
        {"implementation": "iperf"},
        {"streams": 0},
        {"streams": 129},
        {"duration": "1.5s"},
        {"duration": 0},
        {"reverse": True, "bidirectional": True},
        {"protocol": "udp", "mss": 1000},
        {"congestion": "cubic; rm -rf /"},
        {"stream": 2},
    ],
    "latency": [
        {"test": "TCP_STREAM"},
        {"duration": "1.5s"},
        {"request_size": 0},
        {"test": "UDP_RR", "response_size": 65508},
        {"port": 80},
    ],
}


@pytest.mark.parametrize(
    ("name", "params"), [(name, each) for name, table in IMPOSSIBLE.items() for each in table]
)
def test_params_that_cannot_be_measured_are_refused(name: str, params: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        registry.get(name).Params.model_validate(params)

"""The shipped suites plan, docs/kube-perftest.md has every field, and params that cannot be
measured are refused. tests/test_import.py compares `everything` with the original.
"""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from perfdag.benchmark import registry
from perfdag.commands.imports.suites import COMMON, KINDS
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


IMPOSSIBLE: dict[str, list[tuple[dict[str, Any], str]]] = {
    "imb": [
        ({"benchmark": "PongPing"}, "literal_error"),
        ({"transport": "ucx"}, "literal_error"),
        ({"max_log": 31}, "less_than_equal"),
        ({"min_log": 5, "max_log": 4}, "sizes-swapped"),
        ({"ranks": 3}, "two-ranks"),
        ({"benchmark": "Bcast", "ranks": 5, "ranks_per_host": 2}, "uneven-ranks"),
        ({"benchmark": "Allreduce", "max_log": 1}, "small-messages"),
        ({"program": "/opt/IMB"}, "own-program"),
    ],
    "torchbench": [
        ({"batch_size": 0}, "greater_than_equal"),
        ({"model": "../x"}, "wrong-form"),
        ({"gpus": 2, "device": "cuda"}, "literal_error"),
        ({"device": "cpu", "precision": "fp16"}, "no-precision"),
        ({"device": "cuda", "precision": "amp_bf16"}, "no-precision"),
        ({"precision": "fp64"}, "literal_error"),
        ({"iterations": 1}, "greater_than_equal"),
    ],
    "openfoam": [
        ({"procs": 7, "nodes": 2}, "uneven-procs"),
        ({"size": "S", "cells": 10}, "size-and-cells"),
        ({"cells": 4, "procs": 5}, "many-procs"),
        ({"size": "L"}, "literal_error"),
        ({"cells": 895}, "less_than_equal"),  # from here on the faces need more than 32 bits
        ({"procs": 0}, "greater_than_equal"),
        ({"procs": 2, "nodes": 1, "transport": "rdma"}, "rdma-on-one-node"),
    ],
    "rdma-bandwidth": [
        ({"iterations": 4}, "greater_than_equal"),
        ({"duration": "10s"}, "duration-of-all-sizes"),
        ({"duration": "1s", "sizes": [8]}, "short-duration"),
        ({"duration": "3.5s", "sizes": [8]}, "whole-seconds"),
        ({"mode": "atomic"}, "literal_error"),
        ({"sizes": []}, "literal_error"),
        ({"mtu": 1500}, "literal_error"),
        ({"device": "mlx5_0 -x"}, "wrong-form"),
    ],
    "rdma-latency": [({"gid_index": 65}, "less_than_equal")],
    "fio": [
        ({"rw": "rw,readwrite"}, "literal_error"),
        ({"ioengine": "aio"}, "literal_error"),
        ({"directory": "/a", "file": "/b"}, "directory-and-file"),
        ({"directory": "relative"}, "wrong-form"),
        *(
            # fio would write to another file, which may hold data
            ({"file": path}, "wrong-form")
            for path in ("/a\nrw=write", "/a;b", "/a#b", "/a/$ncpus", "/a\\", "/a ")
        ),
        ({"ioengine": "psync", "iodepth": 8}, "one-in-flight"),
        ({"iodepth": 8, "direct": False}, "buffered-libaio"),
        ({"ioengine": "mmap"}, "direct-mmap"),
        ({"bs": 1000}, "unaligned"),
        ({"size": "4KiB", "bs": "1MiB"}, "small-share"),
        ({"rw": "read", "percentage_random": 50}, "not-random"),
        ({"prefill": True, "file": "/dev/sdz"}, "prefill-overwrites"),
    ],
    "iperf": [
        ({"protocol": "sctp"}, "literal_error"),
        ({"implementation": "iperf"}, "literal_error"),
        ({"implementation": "iperf2", "mss": 1000}, "iperf3-only"),
        ({"streams": 0}, "greater_than_equal"),
        ({"streams": 129}, "less_than_equal"),
        ({"duration": "1.5s"}, "whole-seconds"),
        ({"duration": 0}, "value_error"),
        ({"reverse": True, "bidirectional": True}, "reverse-and-bidirectional"),
        ({"protocol": "udp", "mss": 1000}, "tcp-only"),
        ({"congestion": "cubic; rm -rf /"}, "wrong-form"),
        ({"stream": 2}, "extra_forbidden"),
    ],
    "latency": [
        ({"test": "TCP_STREAM"}, "literal_error"),
        ({"duration": "1.5s"}, "whole-seconds"),
        ({"request_size": 0}, "greater_than_equal"),
        ({"test": "UDP_RR", "response_size": 65508}, "large-datagram"),
        ({"port": 80}, "greater_than_equal"),
    ],
}


@pytest.mark.parametrize(
    ("name", "params", "code"),
    [(name, *each) for name, table in IMPOSSIBLE.items() for each in table],
)
def test_params_that_cannot_be_measured_are_refused(
    name: str, params: dict[str, Any], code: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        registry.get(name).Params.model_validate(params)
    assert refused.value.errors()[0]["type"] == code

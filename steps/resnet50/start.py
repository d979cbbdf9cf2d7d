"""The program started on a host: argv, environment, the GPU watched meanwhile."""

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from perfdag.benchmark import Failed, Skip
from perfdag.hosts import Finished, Host
from perfdag.steps import gpu
from perfdag.steps.resnet50.params import Workload

MODULE = "perfdag.steps.resnet50"
SETUP = 90.0
"""Seconds for imports, weights, warm-up and checks, generously."""
_NEEDS = ("torch", "torchvision", "mlperf_loadgen")


def interpreter(params: Workload) -> str:
    """The Python that measures."""
    return params.python or sys.executable


def plain(params: Workload) -> list[str]:
    """argv of the program without the wrapper; the spec comes on standard input."""
    return [interpreter(params), "-m", MODULE, "--spec", "-"]


def spec(params: Workload) -> bytes:
    """What the program reads."""
    return json.dumps(params.spec()).encode()


def absent(host: Host, params: Workload) -> list[str]:
    """Python packages that the interpreter of a host lacks; the interpreter itself where it is not there."""
    python = interpreter(params)
    if host.which(python) is None:
        return [python]
    needs = _NEEDS if params.system == "resnet50" else _NEEDS[2:]
    code = "import importlib.util,sys;print(*[n for n in sys.argv[1:] if importlib.util.find_spec(n) is None])"
    finished = host.run([python, "-c", code, *needs], timeout=60)
    return finished.stdout.split() if finished.code == 0 else [python]


def ran(finished: Finished) -> str:
    """The result that a program printed; Failed where it ended without one, with what that means for a kill."""
    if finished.stdout.strip().startswith("{"):
        return finished.stdout
    if finished.timed_out:
        raise Failed(f"the program did not end within {finished.seconds:.0f} s: raise timeout or lower min_duration", finished.texts())
    if finished.code in (-9, 137):
        raise Failed(
            "the program was killed, as the kernel does when memory runs out: lower batch or samples, or raise the limit", finished.texts()
        )
    raise Failed(f"the program exited {finished.code} without a result: {finished.tail()}", finished.texts())


@contextlib.contextmanager
def watched(host: Host, params: Workload) -> Iterator[dict[str, Any]]:
    """Facts of the GPUs, and after the block what they did in it (`during`, `slowed`); nothing where the device is a CPU."""
    facts: dict[str, Any] = {}
    if params.device != "cuda":
        yield facts
        return
    if reason := gpu.problem(host):
        raise Skip(f"device cuda: {reason}")
    facts["gpus"] = gpu.facts(host)
    with gpu.watched(host) as seen:
        yield facts
    facts |= seen


def spec_file(scratch: str, number: int) -> str:
    """Path of a copy's spec on its host."""
    return str(PurePosixPath(scratch) / f"copy-{number}" / "spec.json")

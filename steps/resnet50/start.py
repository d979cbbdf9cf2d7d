"""The program started on a host: argv, environment, the GPU watched meanwhile."""

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
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


def plain(params: Workload, python: str | None = None) -> list[str]:
    """argv of the program without the wrapper, by another interpreter where one is named; the spec comes on standard input."""
    return [python or interpreter(params), "-m", MODULE, "--spec", "-"]


def spec(params: Workload) -> bytes:
    """What the program reads."""
    return json.dumps(params.spec()).encode()


def absent(host: Host, params: Workload, python: str | None = None, wrapper: Sequence[str] = ()) -> list[str]:
    """Python packages that an interpreter of a host lacks (unset: the one that measures), behind a wrapper where one is given; the
    interpreter itself where it is not there."""
    python = python or interpreter(params)
    if not wrapper and host.which(python) is None:
        return [python]
    needs = _NEEDS if params.system == "resnet50" else _NEEDS[2:]
    code = "import importlib.util,sys;print(*[n for n in sys.argv[1:] if importlib.util.find_spec(n) is None])"
    finished = host.run([*wrapper, python, "-c", code, *needs], timeout=60)
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
def watched(hosts: Sequence[Host], params: Workload) -> Iterator[dict[str, Any]]:
    """Facts of the GPUs of the hosts (`gpus`; of the second and further hosts under `peers` by gpu.by_name), and after the block what they did in
    it and `against`, why the figures are not the devices' own; nothing where the device is a CPU."""
    facts: dict[str, Any] = {}
    if params.device != "cuda":
        yield facts
        return
    one_each = gpu.by_name(list({id(host): host for host in hosts}.values()))  # copies may share a host, and pods a node's name
    found: list[dict[str, Any]] = []
    for host in one_each.values():
        if reason := gpu.problem(host):
            raise Skip(f"device cuda: {reason}")
        found.append({"gpus": gpu.facts(host)})
    with contextlib.ExitStack() as stack:
        seen = [stack.enter_context(gpu.watched(host)) for host in one_each.values()]
        facts |= found[0]
        yield facts
    reasons = []
    for (name, host), here, during in zip(one_each.items(), found, seen, strict=True):
        here |= during
        if reason := against(here, gpu.facts(host)):
            reasons.append(f"{name}: {reason}" if len(one_each) > 1 else reason)
    facts |= found[0]
    if len(one_each) > 1:
        facts["peers"] = dict(list(zip(one_each, found, strict=True))[1:])
    facts["against"] = "; ".join(reasons) or None


def against(found: dict[str, Any], after: Sequence[dict[str, Any]]) -> str | None:
    """Why figures of a host's GPUs are not the devices' own: slowed, not seen at all, or with memory errors since `gpus` was read."""
    if found.get("slowed"):
        return str(found["slowed"])
    if not found.get("during"):
        return f"what the GPU's clocks did is not known: {found.get('error', 'no samples')}"
    before = {each.get("index"): each.get("ecc_uncorrected", 0) for each in found["gpus"]}
    for each in after:
        if (grown := each.get("ecc_uncorrected", 0) - before.get(each.get("index"), 0)) > 0:
            return f"GPU {each['index']} had {grown} uncorrected memory error(s) meanwhile: its memory is broken"
    return None


def spec_file(scratch: str, number: int) -> str:
    """Path of a copy's spec on its host."""
    return str(PurePosixPath(scratch) / f"copy-{number}" / "spec.json")

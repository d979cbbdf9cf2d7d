"""What our step adds to each tool's own time.

The step is timed from the start of prepare() to the end of parse(). The tool is what it takes by itself: the longest command of run(), timed
where it is started and waited for, fio's laying out of files before it, and mesh and decomposition; icoFoam, which the step starts through a
wrapper, is run bare on the same case for comparison. The difference is what surrounds the tool: looking for it and for devices, starting and
stopping servers, asking versions, reading outputs, parsing. What a benchmark does once in a run (torchbench's weights) is in the first round
alone, and so not in the medians. Printed: medians of ROUNDS rounds, the difference, the tool's own range, and
whether the difference is at most 100 ms or 1 %, whichever is more. Exit 1 where one is not, or nothing was measured.

    python benchmarks/overhead.py [NAME...]        needs iperf3, fio, IMB-MPI1, OpenFOAM, and for torchbench PERFDAG_TORCHBENCH (a checkout) and
                                                   PERFDAG_TORCH_PYTHON (an interpreter with torch); what is absent is named and left out
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Any

from perfdag import benchmark as registry
from perfdag.benchmark import Gang, SampleError, Skip
from perfdag.hosts import Finished, LocalHost, LocalProcess
from perfdag.shape import Shape, merge
from perfdag.steps.openfoam import DEBIAN_ROOT

ROUNDS = 5
ALLOWED_SECONDS, ALLOWED_PART = 0.1, 0.01
POINTS: dict[str, dict[str, Any]] = {
    "command": {"argv": ["sleep", "1"]},
    "iperf": {"duration": "2s"},
    "fio": {"runtime": "2s", "size": "16MiB", "rw": "randread", "iodepth": 4},
    "imb": {"benchmark": "PingPong", "max_log": 10, "iterations": 2000, "transport": "shm"},
    "openfoam": {"cells": 30, "time_steps": 20, "stop": "tolerance"},
    "torchbench": {"model": "alexnet", "python": os.environ.get("PERFDAG_TORCH_PYTHON")},
    "rdma-bandwidth": {"sizes": [65536]},
    "rdma-latency": {"sizes": [2]},
}
SHAPES: dict[str, dict[str, Any]] = {"fio, 2 hosts": {"hosts": {"count": 2}}}
POINTS["fio, 2 hosts"] = POINTS["fio"]


class Watched(LocalHost):
    """A host that adds up the wall time of the commands it ran to their end, as the tool itself took it."""

    def __init__(self) -> None:
        super().__init__()
        self.commands: list[tuple[list[str], float]] = []
        self.laying: list[LocalProcess] = []

    def run(self, argv: Any, **named: Any) -> Finished:
        start = time.perf_counter()
        try:
            return super().run(argv, **named)
        finally:
            self.commands.append((list(argv), time.perf_counter() - start))

    def serve(self, argv: Any, **named: Any) -> LocalProcess:
        """Laying out files is fio's own work, also where it is started beside that of other hosts."""
        started = super().serve(argv, **named)
        if "--create_only=1" in argv:
            self.laying.append(started)
        return started


@dataclass
class Cost:
    """Medians in s over the rounds: the whole step, and the tool by itself."""

    step: list[float]
    tool: list[float]

    def line(self, name: str) -> tuple[str, bool]:
        """One line of the report, and whether the limit is held."""
        step, tool = statistics.median(self.step), statistics.median(self.tool)
        added = statistics.median(s - t for s, t in zip(self.step, self.tool, strict=True))
        allowed = max(ALLOWED_SECONDS, ALLOWED_PART * tool)
        held = added <= allowed
        verdict = f"limit {allowed * 1000:.0f} ms: {'held' if held else 'NOT HELD'}"
        spread = (max(self.tool) - min(self.tool)) * 1000
        return f"{name:12} {tool:8.3f} {step:8.3f} {added * 1000:10.1f} {added / tool * 100:7.2f} %  {spread:9.1f}  {verdict}", held


def measure(name: str, params: dict[str, Any], rounds: int) -> Cost:
    """Run the step `rounds` times. Raises SampleError where the tool is absent or fails."""
    benchmark = registry.get(name.partition(",")[0])
    model = benchmark.Params(**params)
    shape = Shape.model_validate(merge(benchmark.shape(model), SHAPES.get(name, {})))
    cost = Cost([], [])
    for _ in range(rounds):
        hosts = [Watched() for _ in range(shape.hosts.count)]
        with tempfile.TemporaryDirectory() as scratch:
            gang = Gang(hosts, shape, 120, scratch)
            absent = benchmark.missing(gang, model)
            if absent:
                raise Skip(", ".join(tool.program for tool in absent) + " is not installed")
            start = time.perf_counter()
            benchmark.prepare(gang, model)
            prepared = time.perf_counter() - start
            own = ico_foam(gang.notes["case"]) if name == "openfoam" else None
            meshed = gang.notes.get("mesh_s", 0.0) + gang.notes.get("decompose_s", 0.0)
            for host in hosts:
                host.commands.clear()
            start = time.perf_counter()
            output = benchmark.run(gang, model)
            benchmark.parse(output, model)
            cost.step.append(prepared + time.perf_counter() - start)
        cost.tool.append(meshed + (own if own is not None else tool_time(hosts)))
    return cost


def tool_time(hosts: list[Watched]) -> float:
    """The longest command in s, and the longest laying out of files before it."""
    laid = max((each.stop().seconds for host in hosts for each in host.laying), default=0.0)
    return laid + max(seconds for host in hosts for _, seconds in host.commands)


def ico_foam(case: str) -> float:
    """Wall time in s of icoFoam alone on a case that prepare() made; it writes nothing there."""
    root = os.environ.get("WM_PROJECT_DIR") or DEBIAN_ROOT
    environment = {**os.environ, "WM_PROJECT_DIR": root, "FOAM_SIGFPE": "true"}
    start = time.perf_counter()
    subprocess.run(["icoFoam", "-case", case], env=environment, check=True, capture_output=True)
    return time.perf_counter() - start


def bare(argv: list[str], rounds: int) -> float:
    """Median wall time in s of a command by subprocess alone: the baseline of what starting a process costs here."""
    took = []
    for _ in range(rounds):
        start = time.perf_counter()
        subprocess.run(argv, check=True, capture_output=True)
        took.append(time.perf_counter() - start)
    return statistics.median(took)


def main(names: list[str]) -> int:
    """Print the table; 1 where a step adds more than is allowed or nothing was measured, 2 where a name is unknown."""
    unknown = [name for name in names if name not in POINTS]
    if unknown:
        print(f"no such benchmark: {', '.join(unknown)}; known: {'; '.join(POINTS)}", file=sys.stderr)
        return 2
    chosen = {name: params for name, params in POINTS.items() if not names or name in names}
    print(f"{'benchmark':12} {'tool s':>8} {'step s':>8} {'added ms':>10} {'added':>9}  {'tool +- ms':>9}")
    every, measured = True, 0
    for name, params in chosen.items():
        try:
            cost = measure(name, params, ROUNDS)
        except SampleError as error:
            print(f"{name:12} left out: {error}")
            continue
        line, held = cost.line(name)
        every, measured = every and held, measured + 1
        print(line, flush=True)
    if not measured:
        print("nothing was measured", file=sys.stderr)
        return 1
    print(
        f"baseline: `true` by subprocess alone takes {bare(['true'], 20) * 1000:.1f} ms; allowed: {ALLOWED_SECONDS * 1000:.0f} ms or {ALLOWED_PART:.0%}"
    )
    return 0 if every else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""What we add to each tool's own time.

A sample is timed as the lead of a run takes it: from choosing the hosts over all that surrounds the
tool to the row in the store. In it are the guard against noise at its start and end, looking for
the tool (missing), prepare, provenance, run, parse, and one small file written; the hosts' facts
and a round's canary are not, which are there once a run and once a round. The tool is what it takes
by itself: the longest command of run(), timed where it is started and waited for, fio's laying out
of files before it, and mesh and decomposition; icoFoam, which the step starts through a wrapper, is
run bare on the same case for comparison, and that run is taken off the sample. The difference is
what is added: the guard's looks, looking for the tool and for devices, starting and stopping
servers, asking versions, reading outputs, parsing. What a benchmark does once in a run
(torchbench's weights) is in the first round alone, and so not in the medians. Printed: medians of
ROUNDS rounds, the difference, the tool's own range, and whether the difference is at most 100 ms or
1 %, whichever is more. Exit 1 where one is not, or nothing was measured.

    python benchmarks/overhead.py [NAME...]        needs iperf3, fio, IMB-MPI1, OpenFOAM, and for torchbench PERFDAG_TORCHBENCH (a checkout) and
                                                   PERFDAG_TORCH_PYTHON (an interpreter with torch);
                                                   what is absent is named and left out
"""  # noqa: E501

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from perfdag.benchmark import registry
from perfdag.benchmark.contract import Gang, Measurement, SampleError, Skip
from perfdag.hosts.base import CommandResult
from perfdag.hosts.local import LocalHost, LocalProcess
from perfdag.plan import make_plan
from perfdag.results.samples import SampleRecord
from perfdag.steps.loop import LocalPool, MeasuringLoop
from perfdag.store.base import FolderStore
from perfdag.suite.load import parse_suite
from perfdag.suite.points import Point

ROUNDS = 5
ALLOWED_SECONDS, ALLOWED_PART = 0.1, 0.01
POINTS: dict[str, dict[str, Any]] = {
    "command": {"argv": ["sleep", "1"]},
    "iperf": {"duration": "2s"},
    "latency": {"duration": "2s"},
    "fio": {"runtime": "2s", "size": "16MiB", "rw": "randread", "iodepth": 4},
    "imb": {"benchmark": "PingPong", "max_log": 10, "iterations": 2000, "transport": "shm"},
    "openfoam": {"cells": 30, "time_steps": 20, "stop": "tolerance"},
    "torchbench": {"model": "alexnet", "python": os.environ.get("PERFDAG_TORCH_PYTHON")},
    "rdma-bandwidth": {"sizes": [65536]},
    "rdma-latency": {"sizes": [2]},
}
SHAPES: dict[str, dict[str, Any]] = {
    "fio, 2 hosts": {"hosts": {"count": 2}},
    "rdma-bandwidth": {"network": {"host": True}},
    "rdma-latency": {"network": {"host": True}},
}
POINTS["fio, 2 hosts"] = POINTS["fio"]


class WatchingHost(LocalHost):
    """A host that adds up the wall time of the commands it ran to their end, as the tool itself
    took it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.commands: list[tuple[list[str], float]] = []
        self.laying: list[LocalProcess] = []

    def run(self, argv: Any, **options: Any) -> CommandResult:
        start = time.perf_counter()
        try:
            return super().run(argv, **options)
        finally:
            self.commands.append((list(argv), time.perf_counter() - start))

    def serve(self, argv: Any, **options: Any) -> LocalProcess:
        """Laying out files is fio's own work, also where it is started beside that of other
        hosts.
        """
        server = super().serve(argv, **options)
        if "--create_only=1" in argv:
            self.laying.append(server)
        return server


@dataclass
class Cost:
    """Seconds by round: the whole sample, and the tool by itself."""

    sample: list[float]
    tool: list[float]

    def line(self, name: str) -> tuple[str, bool]:
        """One line of the report, and whether the limit is held."""
        sample, tool = statistics.median(self.sample), statistics.median(self.tool)
        overhead = statistics.median(s - t for s, t in zip(self.sample, self.tool, strict=True))
        limit = max(ALLOWED_SECONDS, ALLOWED_PART * tool)
        ok = overhead <= limit
        verdict = f"limit {limit * 1000:.0f} ms: {'held' if ok else 'NOT HELD'}"
        spread = (max(self.tool) - min(self.tool)) * 1000
        return (
            f"{name:12} {tool:8.3f} {sample:8.3f} {overhead * 1000:10.1f} "
            f"{overhead / tool * 100:7.2f} %  {spread:9.1f}  {verdict}",
            ok,
        )


class Watcher:
    """Times each sample from outside, and the commands of the tool in it."""

    def __init__(self, name: str, hosts: list[WatchingHost]) -> None:
        self.name, self.hosts, self.cost = name, hosts, Cost([], [])
        self._began = 0.0

    def started(self, point: Point, repetition: int) -> None:
        """The lead begins a sample."""
        for host in self.hosts:
            host.laying.clear()
        self._began = time.perf_counter()

    def prepared(self) -> None:
        """The sample is ready to run."""
        for host in self.hosts:
            host.commands.clear()

    def finished(self, point: Point, part: SampleRecord) -> None:
        """The sample is stored."""
        whole = time.perf_counter() - self._began
        if part.status != "ok":
            raise Skip(part.error or part.status)
        self.cost.sample.append(whole)
        every = sum(seconds for host in self.hosts for _, seconds in host.commands)
        self.cost.tool.append(every if self.name == "openfoam" else tool_time(self.hosts))

    def skipped(self, point: Point, repetition: int, why: str) -> None:
        """Nothing is passed over here."""


def measure(name: str, params: dict[str, Any], rounds: int) -> Cost:
    """Measure `rounds` samples. Raises SampleError where the tool is absent or fails."""
    entry = {"benchmark": name.partition(",")[0], "params": params, **SHAPES.get(name, {})}
    plan = make_plan(
        parse_suite(
            json.dumps(
                {"name": "overhead", "repetitions": rounds, "timeout": "120s", "entries": [entry]}
            )
        )
    )
    benchmark = registry.get(entry["benchmark"])
    hosts = [WatchingHost() for _ in range(plan.shapes[0].hosts.count)]
    watcher, run = Watcher(name, hosts), benchmark.run

    def run_watched(gang: Gang, options: Any) -> list[Measurement]:
        watcher.prepared()
        return run(gang, options)

    with tempfile.TemporaryDirectory() as folder, patch.object(benchmark, "run", run_watched):
        pool = LocalPool()
        with patch.object(pool, "hosts_for", lambda shape: hosts):
            MeasuringLoop(plan, FolderStore(folder), pool, watcher).measure(range(len(plan.order)))
    return watcher.cost


def tool_time(hosts: list[WatchingHost]) -> float:
    """The longest command in s, and the longest laying out of files before it."""
    layout_seconds = max(
        (item.stop().seconds for host in hosts for item in host.laying), default=0.0
    )
    return layout_seconds + max(seconds for host in hosts for _, seconds in host.commands)


def bare(argv: list[str], rounds: int) -> float:
    """Median wall time in s of a command by subprocess alone: the baseline of what starting a
    process costs here.
    """
    took = []
    for _ in range(rounds):
        start = time.perf_counter()
        subprocess.run(argv, check=True, capture_output=True)
        took.append(time.perf_counter() - start)
    return statistics.median(took)


def main(names: list[str]) -> int:
    """Print the table; 1 where more is added than is allowed or nothing was measured, 2 where a
    name is unknown.
    """
    unknown = [name for name in names if name not in POINTS]
    if unknown:
        print(
            f"no such benchmark: {', '.join(unknown)}; known: {'; '.join(POINTS)}", file=sys.stderr
        )
        return 2
    points = {name: params for name, params in POINTS.items() if not names or name in names}
    print(
        f"{'benchmark':12} {'tool s':>8} {'sample s':>8} {'overhead ms':>10} {'overhead':>9}  "
        f"{'tool +- ms':>9}"
    )
    every, count = True, 0
    for name, params in points.items():
        try:
            cost = measure(name, params, ROUNDS)
        except SampleError as error:
            print(f"{name:12} left out: {error}")
            continue
        line, ok = cost.line(name)
        every, count = every and ok, count + 1
        print(line, flush=True)
    if not count:
        print("nothing was measured", file=sys.stderr)
        return 1
    print(
        f"baseline: `true` by subprocess alone takes {bare(['true'], 20) * 1000:.1f} ms; "
        f"allowed: {ALLOWED_SECONDS * 1000:.0f} ms or {ALLOWED_PART:.0%}"
    )
    return 0 if every else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""What a sample costs beyond its tool: 200 samples of a 10 ms command, median of (time between
starts - the command's own time).

Baseline: the same command 200 times through subprocess.run alone, in the same process. Exit 1 where
the limit is not held. Usage: python benchmarks/overhead_run.py
"""

import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

from limits import at_most

from perfdag.plan import make_plan
from perfdag.results.samples import SampleRecord
from perfdag.steps.loop import LocalPool, MeasuringLoop
from perfdag.store.base import FolderStore
from perfdag.suite.load import parse_suite
from perfdag.suite.points import Point

SAMPLES = 200
LIMIT_MS = 20.0


class Watcher:
    """Keeps when each sample was handed over."""

    def __init__(self) -> None:
        self.moments: list[float] = []
        self.inside: list[float] = []

    def started(self, point: Point, repetition: int) -> None:
        """Not needed."""

    def finished(self, point: Point, part: SampleRecord) -> None:
        """The sample is stored."""
        self.moments.append(time.perf_counter())
        self.inside.append(part.rows[0]["value"])

    def skipped(self, point: Point, repetition: int, why: str) -> None:
        """Not needed."""


def main() -> int:
    """Print the overhead and its ratio to plain subprocess calls; 1 where it is over its limit."""
    text = (
        f"name: overhead\nentries:\n"
        f"  - {{benchmark: command, params: {{argv: [sleep, '0.01']}}, permutations: {{product: "
        f"{{env: [{', '.join(f'{{N: {str(i)!r}}}' for i in range(SAMPLES))}]}}}}}}\n"
    )
    plan = make_plan(parse_suite(text))
    watcher = Watcher()
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        lead = MeasuringLoop(plan, FolderStore(folder), LocalPool(), watcher)
        began = datetime.now()
        lead.measure(range(len(plan.order)))
        whole = (datetime.now() - began).total_seconds()
    between = [
        after - before for before, after in zip(watcher.moments, watcher.moments[1:], strict=False)
    ]
    overhead = statistics.median(
        gap - inside for gap, inside in zip(between, watcher.inside[1:], strict=True)
    )
    plain = []
    for _ in range(SAMPLES):
        start = time.perf_counter()
        subprocess.run(["sleep", "0.01"], check=True, capture_output=True)
        plain.append(time.perf_counter() - start)
    print(
        f"overhead of a sample: {overhead * 1000:.1f} ms (median of {SAMPLES}; whole loop "
        f"{whole:.1f} s)"
    )
    print(
        f"command inside: {statistics.median(watcher.inside) * 1000:.1f} ms, "
        f"{statistics.median(watcher.inside) / statistics.median(plain):.2f} x "
        f"subprocess.run alone"
    )
    return 0 if at_most("overhead", overhead * 1e3, LIMIT_MS, "ms") else 1


if __name__ == "__main__":
    sys.exit(main())

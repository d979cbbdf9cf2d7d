"""Planning speed: enumerate and order 10,000 and 100,000 points. Baseline: parsing and canonical-dumping the same points as JSON.

Prints seconds, peak memory of the process in MB, and the ratio to the baseline of the same run. Usage: python benchmarks/plan.py
"""

import json
import multiprocessing
import resource
import time
from typing import Any

from perfdag import suite
from perfdag.plan import make_plan


def text(points: int) -> str:
    """A suite of `points` points of two axes."""
    side = points // 100
    return f"name: big\nentries:\n  - benchmark: command\n    params: {{argv: [ls]}}\n    permutations:\n      product:\n        expected: {list(range(1, side + 1))}\n        exit_code: {list(range(100))}\n"


def measure(points: int, queue: "multiprocessing.Queue[Any]") -> None:
    """Time one plan in a process of its own, so that its peak memory is its own."""
    make_plan(suite.loads(text(100)))  # imports are not planning
    start = time.perf_counter()
    plan = make_plan(suite.loads(text(points)))
    dumped = plan.dump()
    seconds = time.perf_counter() - start
    start = time.perf_counter()
    for point in plan.points:
        json.loads(json.dumps({"id": point.id, "params": point.params}, sort_keys=True))
    baseline = time.perf_counter() - start
    queue.put((len(plan.points), seconds, baseline, len(dumped), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))


def main() -> None:
    """Print one line a size."""
    context = multiprocessing.get_context("spawn")
    for points in (10_000, 100_000):
        queue = context.Queue()
        process = context.Process(target=measure, args=(points, queue))
        process.start()
        count, seconds, baseline, size, memory = queue.get()
        process.join()
        print(
            f"plan of {count:>7,} points: {seconds:.2f} s, {seconds / baseline:.1f} x JSON round trip of the same points, {size / 1e6:.1f} MB plan.json, peak {memory:.0f} MB"
        )


if __name__ == "__main__":
    main()

"""How soon perfdag answers: planning 10,000 and 100,000 points, and `perfdag --help`.

Baselines in the same run: for planning parsing and canonical-dumping the same points as JSON, for
the help `python -c pass`, in turn. Prints seconds, the ratio to the baseline and peak memory in MB;
exit 1 where a limit is not held. Usage: python benchmarks/plan.py
"""

import json
import multiprocessing
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

from limits import at_most

from perfdag.plan import make_plan
from perfdag.suite.load import parse_suite

LIMITS = {10_000: (1.0, None), 100_000: (5.0, 500.0)}  # points: seconds, MB
HELP_SECONDS = 0.1  # over python -c pass
HELP_ROUNDS = 20


def text(points: int) -> str:
    """A suite of `points` points of two axes."""
    side = points // 100
    return (
        f"name: big\nentries:\n  - benchmark: command\n    params: {{argv: [ls]}}\n"
        f"    permutations:\n      product:\n        expected: {list(range(1, side + 1))}\n"
        f"        exit_code: {list(range(100))}\n"
    )


def measure(points: int, queue: "multiprocessing.Queue[Any]") -> None:
    """Time one plan in a process of its own, so that its peak memory is its own."""
    make_plan(parse_suite(text(100)))  # imports are not planning
    start = time.perf_counter()
    plan = make_plan(parse_suite(text(points)))
    dump = plan.dump()
    seconds = time.perf_counter() - start
    start = time.perf_counter()
    for point in plan.points:
        json.loads(json.dumps({"id": point.id, "params": point.params}, sort_keys=True))
    baseline = time.perf_counter() - start
    queue.put(
        (
            len(plan.points),
            seconds,
            baseline,
            len(dump),
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        )
    )


def seconds_of(*argv: str) -> float:
    """Wall time of this Python with these arguments."""
    start = time.perf_counter()
    subprocess.run([sys.executable, *argv], check=True, capture_output=True)
    return time.perf_counter() - start


def print_help() -> bool:
    """Whether `perfdag --help` is within its limit."""
    seconds_of("-m", "perfdag", "--help")  # the first reads the files from the disk
    rounds = [
        (seconds_of("-m", "perfdag", "--help"), seconds_of("-c", "pass"))
        for _ in range(HELP_ROUNDS)
    ]
    ours, plain = (statistics.median(column) for column in zip(*rounds, strict=True))
    print(
        f"perfdag --help: {ours * 1e3:.0f} ms, python -c pass {plain * 1e3:.0f} ms (medians "
        f"of {HELP_ROUNDS}), {ours / plain:.1f} x"
    )
    return at_most("over python -c pass", (ours - plain) * 1e3, HELP_SECONDS * 1e3, "ms")


def plan_points(points: int) -> bool:
    """Whether planning so many points is within its limits."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=measure, args=(points, queue))
    process.start()
    count, seconds, baseline, size, memory = queue.get()
    process.join()
    print(
        f"plan of {count:>7,} points: {seconds:.2f} s, {seconds / baseline:.1f} x JSON round "
        f"trip of the same points, {size / 1e6:.1f} MB plan.json, peak {memory:.0f} MB"
    )
    soon, small = LIMITS[points]
    ok = at_most("time", seconds, soon, "s")
    return ok and (small is None or at_most("peak memory", memory, small, "MB"))


def main() -> int:
    """Print the figures; 1 where a limit is not held."""
    return 0 if all([print_help(), *(plan_points(points) for points in LIMITS)]) else 1


if __name__ == "__main__":
    sys.exit(main())

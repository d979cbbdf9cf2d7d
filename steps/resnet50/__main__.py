"""Measure one workload in a process of its own.

It reads its input as JSON and prints one JSON object with LoadGen's logs verbatim. A search
prints each trial before that, as a line of its own.

    python -m perfdag.steps.resnet50 [--wait]

The input is a line of standard input, so any wrapper that passes on the standard streams can
precede it. With --wait it reports on standard error that it is ready, and waits for another line
before LoadGen starts. Copies start together that way (see `start_barrier`).
"""

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator

from perfdag.steps.resnet50.program import Program
from perfdag.steps.resnet50.start_barrier import READY


def main() -> int:
    """Measure the input. Exit 0 with a result, even if INVALID, or 3 with an error in the JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m perfdag.steps.resnet50",
        description="measures one workload; started by the benchmarks",
    )
    parser.add_argument(
        "--wait",
        action="store_true",
        help="report on standard error that it is ready, and wait for a line of standard input",
    )
    args = parser.parse_args()
    spec = json.loads(sys.stdin.readline())
    with _stdout_reserved() as out:
        program = Program(spec, out)
        if args.wait:
            program.barrier = _barrier
        try:
            program.measure()
        except Exception as error:
            program.fail(error)
        program.emit()
    return 0


@contextlib.contextmanager
def _stdout_reserved() -> Iterator[int]:
    """Provide a descriptor of stdout, and send what libraries print to standard error meanwhile."""
    sys.stdout.flush()
    reserved = os.dup(1)
    os.dup2(2, 1)
    yield reserved


def _barrier() -> None:
    sys.stderr.write(f"\n{READY}\n")
    sys.stderr.flush()
    if not sys.stdin.readline():
        raise EOFError("standard input ended before all copies were ready")


if __name__ == "__main__":
    sys.exit(main())

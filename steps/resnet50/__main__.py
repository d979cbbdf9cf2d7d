"""Measure one workload in a process of its own.

It reads its input, a line of JSON on standard input, and prints one JSON object with LoadGen's
logs verbatim, so any wrapper that passes on the standard streams can precede it.

    python -m perfdag.steps.resnet50
"""

import contextlib
import json
import os
import sys
from collections.abc import Iterator

from perfdag.steps.resnet50.program import Program


def main() -> int:
    """Measure the input. Exit 0 with a result, even if INVALID, or 3 with an error in the JSON."""
    spec = json.loads(sys.stdin.readline())
    with _stdout_reserved() as out:
        program = Program(spec, out)
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


if __name__ == "__main__":
    sys.exit(main())

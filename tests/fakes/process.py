"""`perfdag` as a process of its own, whose rounds have figures of a canary without its load.

The load of a canary is 0.1 s of CPU time.
"""

import signal
import sys

from perfdag.commands.main import program
from perfdag.hosts import disturbance

CANARY: dict[str, float | None] = {"cpu": 20_000.0, "memory": 1e10, "loopback": 2e-5, "disk": 1e-4}
PERFDAG = [sys.executable, __file__]

if __name__ == "__main__":
    # a shell that runs the tests in the background has SIGINT ignored, and children inherit that
    signal.signal(signal.SIGINT, signal.default_int_handler)
    disturbance.canary = CANARY.copy
    program()

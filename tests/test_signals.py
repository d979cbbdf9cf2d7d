"""Told to end: once is enough, and a second time cuts nothing short."""

import signal
import subprocess
import sys
import time

import pytest

CLEARS = """
import time
from perfdag.signals import end_once
from perfdag.steps.pods.context import exit_retryable
end_once({end})
try:
    print("ready", flush=True)
    time.sleep(30)
finally:
    time.sleep(0.6)
    print("cleared", flush=True)
"""


BUSY = """
import asyncio, time
from perfdag import signals
from perfdag.steps.pods.context import exit_retryable

async def spin():
    print("ready", flush=True)
    while True:
        end = time.monotonic() + 0.05
        while time.monotonic() < end:  # nearly always within a task: where a raised signal would be that task's error
            pass
        await asyncio.sleep(0)

async def main():
    try:
        await asyncio.gather(spin(), asyncio.sleep(30))
    finally:
        await asyncio.sleep(0.6)
        print("cleared", flush=True)

signals.end_once({end})
signals.run(main())
"""  # noqa: E501


@pytest.mark.parametrize(
    "program", [pytest.param(CLEARS, id="in a wait"), pytest.param(BUSY, id="amid a task")]
)
@pytest.mark.parametrize(
    ("end", "code", "error"),
    [("exit_retryable", 75, ""), ("", -signal.SIGINT, "KeyboardInterrupt")],
)
def test_a_second_signal_does_not_cut_short_what_the_first_began_to_clear(
    program: str, end: str, code: int, error: str
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", program.format(end=end)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    for _ in range(3):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.15)
    output, errors = process.communicate(timeout=10)
    assert (output, process.returncode) == ("cleared\n", code)
    assert "never retrieved" not in errors
    assert errors.strip().splitlines()[-1:] == ([error] if error else [])

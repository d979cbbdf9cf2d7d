"""Told to end: once is enough, and a second time cuts nothing short."""

import signal
import subprocess
import sys
import time

import pytest

CLEARS = """
import time
from perfdag.signals import end_once
from perfdag.steps.runner.pod_exit_codes import exit_retryable
end_once({end})
try:
    print("ready", flush=True)
    time.sleep(30)
finally:
    time.sleep(0.6)
    print("cleared", flush=True)
"""


@pytest.mark.parametrize(("end", "code"), [("exit_retryable", 75), ("", -signal.SIGINT)])
def test_what_the_first_signal_began_to_clear_is_cleared(end: str, code: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", CLEARS.format(end=end)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout
    assert process.stdout.readline() == b"ready\n"
    for _ in range(3):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.15)
    said, _ = process.communicate(timeout=10)
    assert said == b"cleared\n"
    assert process.returncode == code


BUSY = """
import asyncio, time
from perfdag import signals
from perfdag.steps.runner.pod_exit_codes import exit_retryable

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
    ("end", "code", "error"),
    [("exit_retryable", 75, ""), ("", -signal.SIGINT, "KeyboardInterrupt")],
)
def test_a_signal_in_the_midst_of_a_task_lets_all_of_them_clear_away(
    end: str, code: int, error: str
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", BUSY.format(end=end)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    for _ in range(3):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.15)
    said, wrong = process.communicate(timeout=10)
    assert said == "cleared\n"
    assert process.returncode == code
    assert "never retrieved" not in wrong
    assert wrong.strip().splitlines()[-1:] == ([error] if error else [])

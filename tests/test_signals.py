"""Told to end: once is enough, and a second time cuts nothing short."""

import signal
import subprocess
import sys
import time

import pytest

CLEARS = """
import time
from perfdag.signals import end_once
from perfdag.steps.peer import stop
end_once({end})
try:
    print("ready", flush=True)
    time.sleep(30)
finally:
    time.sleep(0.6)
    print("cleared", flush=True)
"""


@pytest.mark.parametrize(("end", "code"), [("stop", 75), ("", -signal.SIGINT)])
def test_what_the_first_signal_began_to_clear_is_cleared(end: str, code: int) -> None:
    process = subprocess.Popen([sys.executable, "-P", "-c", CLEARS.format(end=end)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout
    assert process.stdout.readline() == b"ready\n"
    for _ in range(3):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.15)
    said, _ = process.communicate(timeout=10)
    assert said == b"cleared\n"
    assert process.returncode == code

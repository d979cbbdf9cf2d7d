"""Scripts of benchmarks/ that refuse what they cannot measure."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "overhead.py"


def test_a_benchmark_that_is_not_known_is_refused() -> None:
    said = subprocess.run([sys.executable, str(SCRIPT), "nosuch", "command"], capture_output=True, text=True)
    assert said.returncode == 2
    assert "no such benchmark: nosuch; known: command; iperf;" in said.stderr


def test_nothing_measured_is_no_success() -> None:
    said = subprocess.run([sys.executable, str(SCRIPT), "rdma-latency"], capture_output=True, text=True, env={"PATH": "/nowhere"})
    assert said.returncode == 1
    assert "nothing was measured" in said.stderr

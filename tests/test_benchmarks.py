"""benchmarks/overhead.py refuses what it cannot measure, and counts all that surrounds a tool."""

import importlib.util
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from perfdag.benchmark.registry import get
from perfdag.hosts import disturbance

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "overhead.py"


@pytest.mark.parametrize(
    ("names", "code", "message"),
    [
        (["nosuch", "command"], 2, "no such benchmark: nosuch; known: command; iperf;"),
        (["rdma-latency"], 1, "nothing was measured"),
    ],
)
def test_what_cannot_be_measured_is_no_success(names: list[str], code: int, message: str) -> None:
    argv = [sys.executable, str(SCRIPT), *names]
    result = subprocess.run(argv, capture_output=True, text=True, env={"PATH": "/nowhere"})
    assert result.returncode == code
    assert message in result.stderr


def test_what_is_added_has_the_guard_and_the_look_for_the_tool_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = importlib.util.spec_from_file_location("overhead", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    overhead: Any = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(
        sys.modules, "overhead", overhead
    )  # where its dataclasses look for their module
    spec.loader.exec_module(overhead)
    calls: list[str] = []

    def slow(name: str, real: Any) -> Any:
        def called(*args: Any, **named: Any) -> Any:
            calls.append(name)
            time.sleep(0.2)
            return real(*args, **named)

        return called

    benchmark = get("command")
    monkeypatch.setattr(disturbance, "runnable", slow("guard", disturbance.runnable))
    for name in ("missing", "provenance", "parse"):
        monkeypatch.setattr(benchmark, name, slow(name, getattr(benchmark, name)))
    cost = overhead.measure("command", {"argv": ["sleep", "0.01"]}, 1)
    assert calls == ["guard", "missing", "provenance", "parse"]
    assert cost.tool[0] >= 0.01
    assert cost.sample[0] - cost.tool[0] >= 0.8

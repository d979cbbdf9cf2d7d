"""Measure one workload in a process of its own: set up, warm up, run LoadGen.

It reads its input, a line of JSON on standard input, and prints one JSON object with LoadGen's
logs verbatim, so any wrapper that passes on the standard streams can precede it.

    python -m perfdag.steps.resnet50.program
"""

import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, NoReturn

from perfdag.steps.resnet50 import loadgen
from perfdag.steps.resnet50.loadgen import Load
from perfdag.steps.resnet50.params import MARGIN, PROGRAM, SHARE_OF_CAPACITY
from perfdag.steps.resnet50.system import OutOfMemoryError, StubSubject, System, classify
from perfdag.steps.resnet50.warmup import warm_all
from perfdag.units import parse_cpu_list


def _pin(text: str) -> None:
    """Run only on the CPUs of a list like `0-2,5`. Raises ValueError if one is missing."""
    wanted, allowed = parse_cpu_list(text), os.sched_getaffinity(0)
    if not wanted <= allowed:
        raise ValueError(
            f"cpus {text}: this process may use {', '.join(map(str, sorted(allowed)))}"
        )
    os.sched_setaffinity(0, wanted)


class Program:
    """One measurement; `result` is the JSON to print."""

    def __init__(self, spec: Mapping[str, Any], out: int) -> None:
        self.spec, self._out = spec, out
        self.result: dict[str, Any] = {"program": PROGRAM, "spec": dict(spec)}
        self._once = threading.Lock()
        self._advice = (
            "while the model was set up, before any batch: stop what else uses {device},"
            " or raise the memory limit"
        )

    def emit(self) -> None:
        """Print the result."""
        data = json.dumps(self.result, default=str).encode() + b"\n"
        while data:
            data = data[os.write(self._out, data) :]

    def fail(self, error: BaseException) -> NoReturn:
        """Print the result with the error and end the process, from any thread.

        LoadGen would wait for answers for ever.
        """
        with self._once:
            kind, text = classify(error)
            if kind == "memory" and not isinstance(error, OutOfMemoryError):
                text = f"out of memory {self._advice.format(**self.spec)} ({text})"
            self.result["error"] = {"kind": kind, "text": text}
            self.emit()
            sys.stderr.flush()
            os._exit(3)

    def measure(self) -> None:
        """Set up, warm up, run LoadGen."""
        spec = self.spec
        if spec["cpus"]:
            _pin(spec["cpus"])
        subject: Any
        if spec["system"] == "stub":
            subject = StubSubject(spec)
        else:
            from perfdag.steps.resnet50.model import ModelSubject

            subject = ModelSubject(dict(spec))
        self.result |= subject.facts
        system: System = subject.system
        self._advice = (
            "while {samples} samples were loaded for batch {batch}: lower samples,"
            " or raise the memory limit"
        )
        system.load(range(spec["samples"]))
        self._advice = "at batch {batch}: lower batch"
        woken = subject.wake() if spec["backend"] == "compile" else 0.0
        rate, self.result["warmup"] = warm_all(spec, system, woken)
        self.result |= subject.timing(spec["batch"])
        self._advice = (
            "under LoadGen at batch {batch}, which fitted in the warm-up:"
            " lower batch or samples, or stop what else uses {device}"
        )
        load = self._load(rate)
        time.sleep(max(0.0, spec.get("start_at", 0.0) - time.time()))
        tested = loadgen.measure(system, load, self.fail, subject.arm)
        started, end = tested.span
        self.result["test"] = {
            "started": started,
            "ended": end,
            "rate": load.target_rate,
            "batches": tested.batches,
            "logs": dict(tested.logs),
        }

    def _load(self, rate: float) -> Load:
        """Return the load of the test; `rate` is that of the warm-up in samples/s."""
        spec = self.spec
        expected = spec.get("expected_rate") or rate
        if spec["scenario"] == "offline":
            expected = (
                spec.get("expected_rate")
                or spec["target_rate"]
                or (rate if spec["fast"] else MARGIN * rate)
            )
        return Load(
            scenario=spec["scenario"],
            batch=spec["batch"],
            min_duration=spec["duration"],
            min_queries=spec["queries"],
            samples=spec["samples"],
            expected_rate=expected,
            target_rate=spec["target_rate"] or SHARE_OF_CAPACITY * rate,
            latency_bound=spec["latency_bound"],
            max_delay=spec["max_delay"],
            seed=spec.get("load_seed", spec["seed"]),
            workers=2 if spec["device"] == "cuda" and spec["scenario"] != "single-stream" else 1,
        )


def main() -> int:
    """Measure the input. Exit 0 with a result, even if INVALID, or 3 with an error in the JSON."""
    spec = json.loads(sys.stdin.readline())
    sys.stdout.flush()
    out = os.dup(1)
    os.dup2(2, 1)  # what libraries print goes to standard error
    program = Program(spec, out)
    try:
        program.measure()
    except Exception as error:
        program.fail(error)
    program.emit()
    return 0


if __name__ == "__main__":
    sys.exit(main())

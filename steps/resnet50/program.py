"""One measurement: set up, warm up, run LoadGen, and report one JSON object."""

import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, NoReturn

from perfdag.steps.resnet50 import loadgen, preload
from perfdag.steps.resnet50.errors import OutOfMemoryError, classify
from perfdag.steps.resnet50.inference.subjects import model_subject, pin
from perfdag.steps.resnet50.inference.system_under_test import StubSubject, System
from perfdag.steps.resnet50.inference.warming import warm_all
from perfdag.steps.resnet50.loadgen import Load
from perfdag.steps.resnet50.params import SHARE_OF_CAPACITY

PROGRAM = 2
MARGIN = 1.25
"""Factor of Offline's expected rate over the warm-up's.

With LoadGen's own tenth, it makes up for a warm-up that was a quarter too slow."""
_FATAL = 3


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
            os._exit(_FATAL)

    def measure(self) -> None:
        """Set up, warm up, run LoadGen."""
        spec = self.spec
        if spec["cpus"]:
            pin(spec["cpus"])
        self.result |= preload.inspect(spec["wrapper_env"])
        subject: Any = StubSubject(spec) if spec["system"] == "stub" else model_subject(spec)
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

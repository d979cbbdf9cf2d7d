"""Measure one workload in a process of its own: set up, warm up, run LoadGen.

It reads its input, a line of JSON on standard input, and prints one JSON object with LoadGen's
logs verbatim, so any wrapper that passes on the standard streams can precede it.

    python -m perfdag.steps.resnet50.program
"""

import json
import os
import re
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from perfdag.steps.resnet50 import loadgen
from perfdag.steps.resnet50.loadgen import Load, Stub, UnusableError
from perfdag.steps.resnet50.params import MARGIN, PROGRAM, SHARE_OF_CAPACITY

WINDOW = 5
WINDOWS = 3
TOLERANCE = 0.1
"""The warm-up ends when three windows of five batches have medians within 10 %.

The rule is perf_analyzer's. Windows are shorter if five batches would not fit three times."""
STRETCH = 16
"""Batches to wait for when they exceed the limit: three windows of five, and one."""
WARM_LIMIT, WARM_LIMIT_FAST = 60.0, 2.0
WARM_LEAST_CUDA = 1.0
"""Seconds that a GPU stays busy before its rate counts: its clocks rise meanwhile."""
_NO_MEMORY = re.compile(
    "out of memory|can't allocate memory|_STATUS_ALLOC_FAILED|Unable to allocate"
)


def classify(error: BaseException) -> tuple[str, str]:
    """Return kind and text of an error; kinds `device` and `missing` skip the sample."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0][:400]
    if isinstance(error, MemoryError) or _NO_MEMORY.search(text):
        return "memory", text
    if isinstance(error, ModuleNotFoundError):
        return (
            "missing",
            f"{text}: pip install 'perfdag[torch]' (with uv: uv pip install),"
            " or name an interpreter that has it with `python`",
        )
    if isinstance(error, UnusableError):
        return "device", text
    return "other", f"{type(error).__name__}: {text}"


@dataclass(frozen=True)
class Warmup:
    """A warm-up in seconds: `first` batch, and `steady` median of the last window.

    The first batch includes lazy initialisation, compilation and tuning.
    """

    first: float
    steady: float
    batches: int
    stable: bool


def warm_up(
    call: Callable[[], object],
    limit: float,
    clock: Callable[[], float] = time.perf_counter,
    stretch: int = STRETCH,
    least: float = 0.0,
) -> Warmup:
    """Call until three windows of five agree within 10 %.

    It takes between `least` and `limit` seconds after the first call. If `stretch` times the
    second call is more than the limit, that is the limit. At the limit it is not stable.
    """

    def timed() -> float:
        start = clock()
        call()
        return clock() - start

    first = timed()
    begun, seconds = clock(), [timed()]
    medians: list[float] = []
    window = max(1, min(WINDOW, int(limit / (WINDOWS * max(seconds[0], 1e-9)))))
    limit = max(limit, stretch * seconds[0])
    while True:
        while len(seconds) < window * (len(medians) + 1) and clock() - begun <= limit:
            seconds.append(timed())
        medians.append(statistics.median(seconds[-window:]))
        last = medians[-WINDOWS:]
        stable = len(last) == WINDOWS and max(last) <= (1 + TOLERANCE) * min(last)
        if (stable and clock() - begun >= least) or clock() - begun > limit:
            return Warmup(first, medians[-1], 1 + len(seconds), stable)


def warm_all(spec: Mapping[str, Any], system: loadgen.System) -> tuple[float, dict[str, Any]]:
    """Warm every batch size; return the rate (1/s) of the largest, and the facts of the warm-up.

    The largest and the smallest are warmed until they are steady, the others for two batches.
    """
    fast, warmups = spec["fast"], dict[int, Warmup]()
    *_, largest = sizes = system.sizes()
    for size in reversed(sizes):
        settle = size in (sizes[0], largest)
        indices = np.arange(size) % spec["samples"]
        limit = (WARM_LIMIT_FAST if fast else WARM_LIMIT) if settle else 0.0
        busy = settle and not fast and spec["device"] == "cuda"
        warmups[size] = warm_up(
            lambda indices=indices: system.infer(indices, time.monotonic()),  # type: ignore[misc]
            limit,
            stretch=0 if fast or not settle else STRETCH,
            least=WARM_LEAST_CUDA if busy else 0.0,
        )
    ends = [warmups[sizes[0]], warmups[largest]]
    return largest / max(warmups[largest].steady, 1e-6), {
        "first": warmups[largest].first,
        "steady": warmups[largest].steady,
        "stable": all(warmup.stable for warmup in ends),
        "batches": sum(warmup.batches for warmup in warmups.values()),
        "by_size": {size: [warmup.first, warmup.steady] for size, warmup in warmups.items()},
    }


class Program:
    """One measurement; `result` is the JSON to print."""

    def __init__(self, spec: Mapping[str, Any], out: int) -> None:
        self.spec, self._out = spec, out
        self.result: dict[str, Any] = {"program": PROGRAM, "spec": dict(spec)}
        self._once = threading.Lock()

    def emit(self) -> None:
        """Print the result."""
        with os.fdopen(self._out, "wb", closefd=False) as out:
            out.write(json.dumps(self.result, default=str).encode() + b"\n")

    def fail(self, error: BaseException) -> NoReturn:
        """Print the result with the error and end the process, from any thread.

        LoadGen would wait for answers for ever.
        """
        with self._once:
            kind, text = classify(error)
            if kind == "memory":
                text = (
                    "out of memory on {device} with batch {batch} and {samples} samples: lower "
                    "them, or stop what else uses it"
                ).format(**self.spec) + f" ({text})"
            self.result["error"] = {"kind": kind, "text": text}
            self.emit()
            sys.stderr.flush()
            os._exit(3)

    def measure(self) -> None:
        """Set up, warm up, run LoadGen."""
        spec = self.spec
        system: Any
        if spec["system"] == "stub":
            system = Stub(**spec["stub"], batch=spec["batch"])
        else:
            from perfdag.steps.resnet50.torch_backend import torch_system

            system = torch_system(dict(spec))
        self.result |= system.facts
        rate, self.result["warmup"] = warm_all(spec, system)
        load = self._load(rate)
        time.sleep(max(0.0, spec.get("start_at", 0.0) - time.time()))
        tested = loadgen.measure(system, load, self.fail)
        self.result["test"] = {"rate": load.target_rate, **tested}

    def _load(self, rate: float) -> Load:
        """Return the load of the test; `rate` is that of the warm-up in samples/s."""
        spec = self.spec
        expected = spec.get("expected_rate") or rate
        if spec["scenario"] == "offline" and "expected_rate" not in spec:
            expected = spec["target_rate"] or (rate if spec["fast"] else MARGIN * rate)
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

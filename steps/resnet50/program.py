"""One measurement: set up, check, warm up, run LoadGen, and report one JSON object."""

import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from perfdag.stats import peak
from perfdag.steps.resnet50 import imagenet, loadgen, loadgen_log, preload
from perfdag.steps.resnet50.errors import OutOfMemoryError, classify
from perfdag.steps.resnet50.inference.batcher import Batcher
from perfdag.steps.resnet50.inference.subjects import model_subject, pin
from perfdag.steps.resnet50.inference.system_under_test import StubSubject, System
from perfdag.steps.resnet50.inference.warming import warm_all
from perfdag.steps.resnet50.load import Load
from perfdag.steps.resnet50.mlperf import official

PROGRAM = 1
MARGIN = 1.25
"""Factor of Offline's expected rate over the warm-up's.

With LoadGen's own tenth, it makes up for a warm-up that was a quarter too slow."""
_FATAL = 3


class Program:
    """One measurement; `result` is the JSON to print."""

    def __init__(self, spec: Mapping[str, Any], out: int) -> None:
        self.spec, self._out = spec, out
        self.barrier: Callable[[], None] = lambda: None
        self.result: dict[str, Any] = {"program": PROGRAM, "spec": dict(spec), "tests": []}
        self._once = threading.Lock()
        self._advice = (
            "while the model was set up, before any batch: stop what else uses {device},"
            " or raise the memory limit"
        )

    def emit(self) -> None:
        """Print the result, once, as the last line."""
        self._print(self.result)

    def _print(self, what: Mapping[str, Any]) -> None:
        data = json.dumps(what, default=str).encode() + b"\n"
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
        """Set up, check, warm up, run LoadGen, check again."""
        if self.spec["cpus"]:
            pin(self.spec["cpus"])
        self.result |= preload.inspect(self.spec["wrapper_env"])
        subject: Any = (
            StubSubject(self.spec) if self.spec["system"] == "stub" else model_subject(self.spec)
        )
        self.result |= subject.facts
        system: System = subject.system
        self._advice = (
            "while {samples} samples were loaded for batch {batch}: lower samples,"
            " or raise the memory limit"
        )
        system.load(range(self.spec["samples"]) if self.spec["scenario"] != "accuracy" else [0])
        self._advice = "at batch {batch}: lower batch"
        woken = subject.wake() if self.spec["backend"] == "compile" else 0.0
        rate, self.result["warmup"] = warm_all(self.spec, system, woken)
        # The batch fitted alone. The checks need as much once more, or another program started.
        self._advice = (
            "at the checks of batch {batch}, which fitted in the warm-up: lower batch,"
            " or stop what else uses {device}"
        )
        if self.spec["check_logits"]:
            self.result["logits"] = subject.check_logits()
        self.result |= subject.timing(self.spec["batch"])
        self.barrier()
        self._advice = (
            "under LoadGen at batch {batch}, which fitted in the warm-up:"
            " lower batch or samples, or stop what else uses {device}"
        )
        if self.spec["scenario"] == "accuracy":
            self._accuracy(subject, rate)
        elif self.spec["scenario"] == "find-peak":
            self._find_peak(system, rate)
        else:
            expected = self.spec["target_rate"] or (rate if self.spec["fast"] else MARGIN * rate)
            # The images of mlperf's accuracy run are those of its other tests too.
            labelled = self.spec["mlperf"] and self.spec["imagenet"]
            labels = [label for _, label in self._use_imagenet(subject)] if labelled else []
            load = replace(
                self._load(expected if self.spec["scenario"] == "offline" else rate),
                total=len(labels),
            )
            self.result["answer"] = self.run_test(system, load, begin=subject.arm)
            if self.spec["mlperf"]:
                for test in official.further_tests(load, self.spec):
                    self.run_test(system, test)
                self.result["mlperf"] = official.summary(
                    load, loadgen.spare(load), self.result["tests"], labels
                )
        if self.spec["check_logits"]:
            # Memory that was corrupted during the run shows only now.
            self.result["logits_after"] = subject.check_logits()

    def _load(self, rate: float, **changes: Any) -> Load:
        spec = self.spec
        duration, queries = spec["duration"], spec["queries"]
        base: dict[str, Any] = {
            "scenario": spec["scenario"],
            "batch": spec["batch"],
            "min_duration": duration,
            "min_queries": queries,
            "samples": spec["samples"],
            "expected_rate": spec.get("expected_rate") or rate,
            "target_rate": spec["target_rate"] or 0.0,
            "latency_bound": spec["latency_bound"],
            "max_delay": spec["max_delay"],
            "max_queries": spec["max_queries"] or 0,
            "seed": spec.get("load_seed", spec["seed"]),
            "in_flight": spec["in_flight"],
            "mlperf": spec["mlperf"],
        }
        return Load(**(base | changes))

    def run_test(
        self,
        system: System,
        load: Load,
        begin: Callable[[], None] = lambda: None,
        batcher: Batcher | None = None,
    ) -> int:
        """Run one LoadGen test and return its index in `tests`."""
        tested = loadgen.measure(system, load, self.fail, begin, batcher)
        started, end = tested.span
        record = {
            "started": started,
            "ended": end,
            "name": load.audit or load.mode,
            "rate": load.target_rate,
            "batches": tested.batches,
            "logs": dict(tested.logs),
        }
        self.result["tests"].append(record)
        return len(self.result["tests"]) - 1

    def _find_peak(self, system: System, capacity: float) -> None:
        """Search with short trials, decide with full ones; `capacity` is a closed loop's rate."""
        spec = self.spec
        search = min(spec["search_duration"], spec["duration"])
        server = self._load(capacity, scenario="server")

        def sustains(rate: float, seconds: float) -> bool:
            load = replace(server, target_rate=rate, min_duration=seconds)
            test = self.result["tests"][self.run_test(system, load, batcher=batcher)]
            # Print the trial at once: a killed search keeps its trials.
            self._print({"test": test})
            logs = test["logs"]
            trial = loadgen_log.read(logs["summary"], logs["detail"])
            keys, whole = (
                trial.keys,
                trial.queries != spec["max_queries"]
                or trial.keys.get("result_min_duration_met") is not False,
            )
            if not (spec["fast"] or whole) and keys.get("result_perf_constraints_met") is not False:
                # No higher rate would hold either: the answer would be the peak of max_queries.
                raise peak.NoPeak(
                    f"max_queries {trial.queries} ended a trial at {rate:.4g}/s before it had"
                    f" lasted {seconds:g} s: raise it, or leave it out"
                )
            # Early stopping needs more queries than a smoke test has; its row is marked.
            return trial.valid or (spec["fast"] and keys.get("result_perf_constraints_met") is True)

        try:
            with loadgen.batching(system, server, self.fail) as batcher:
                answer = peak.find_peak(
                    lambda rate: sustains(rate, search),
                    lambda rate: sustains(rate, spec["duration"]),
                    spec["target_rate"] or 0.7 * capacity,
                    precision=spec["precision_of_peak"],
                    lowest=capacity / 1000,
                    highest=capacity * 2,
                )
        except peak.NoPeak as error:
            self.result["error"] = {"kind": "peak", "text": str(error)}
            return
        # Every trial is a test. The answer is the full trial at that rate.
        self.result["answer"] = next(
            at for at, p in enumerate(answer.probes) if p.validation and p.rate == answer.rate
        )
        self.result["peak"] = {
            "rate": answer.rate,
            "above": answer.above,
            "probes": [[p.rate, p.valid, p.validation] for p in answer.probes],
        }

    def _use_imagenet(self, subject: Any) -> list[tuple[Path, int]]:
        """Let the system read the images of `imagenet`; return them with their classes."""
        images = imagenet.labelled(self.spec["imagenet"])
        published = imagenet.published(self.result["model"].get("weights_sha256"))
        subject.system.files, subject.system.resize = [file for file, _ in images], published.resize
        return images

    def _accuracy(self, subject: Any, rate: float) -> None:
        images = self._use_imagenet(subject)
        published = imagenet.published(self.result["model"].get("weights_sha256"))
        samples = min(len(images), 1024)
        self.run_test(
            subject.system,
            self._load(
                rate, scenario="offline", mode="accuracy", samples=samples, total=len(images)
            ),
        )
        log = self.result["tests"][-1]["logs"]["accuracy"]
        share, count = imagenet.top1(log, [label for _, label in images])
        self.result["accuracy"] = {
            "top1": share,
            "images": count,
            "reference": published.top1,
            "resize": published.resize,
        }

"""The measured subject: a pipeline, its facts, and the checks before and after the timing."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from perfdag.hosts import cgroups
from perfdag.steps.resnet50.inference.images import CHECKED
from perfdag.steps.resnet50.inference.logits_check import compare_logits, worst
from perfdag.steps.resnet50.inference.pipeline import Pipeline

ITSELF = "its own first answers, one image at a time"
"""The reference where the model is known by its file or its name alone."""


class Subject:
    """A pipeline, its `facts` (model, device, versions), and the reference of its logits.

    `reference` has the logits (4, classes) of PyTorch in fp32 with the same weights, eager and on
    the CPU. Without it, the reference is what the pipeline answers one image at a time, now.
    """

    def __init__(
        self,
        spec: Mapping[str, Any],
        repetitions: int,
        system: Pipeline,
        facts: dict[str, Any],
        reference: np.ndarray | None = None,
    ) -> None:
        self._spec, self._repetitions, self.system, self.facts = spec, repetitions, system, facts
        self._against = {} if reference is not None else {"against": ITSELF}
        self._reference = system.alone() if reference is None else reference

    def arm(self) -> None:
        """Do nothing: only the stub has stalls."""

    def wake(self) -> float:
        """Return the seconds of the first batch of one image, before any compilation."""
        return self.system.wake()

    def check_logits(self) -> dict[str, Any]:
        """Compare the timed model's logits with the reference, at every batch size.

        Both have the same weights and use the fixed seeded images.
        """
        comparisons = {}
        for size in self.system.buckets(self._spec["batch"]):
            logits = self.system.fixed_logits(size)
            comparisons[size] = compare_logits(
                logits,
                self._reference[[at % CHECKED for at in range(len(logits))]],
                self._spec["precision"],
            )
        return worst(comparisons) | self._against

    def timing(self, batch: int) -> dict[str, Any]:
        """Return the clock's self-check and the seconds by phase."""
        check = self.system.check_clock(batch)
        return {
            "clock": {
                "host": check.host,
                "device": check.device,
                "honest": check.honest,
                "words": None if check.honest else check.text(),
            },
            "phases": self.system.phases(
                batch, self._repetitions, 3.0 if self._spec["fast"] else 10.0
            ),
        }


def cpu_facts() -> dict[str, Any]:
    """Return the facts of a CPU as a device: its name, and memory in bytes."""
    return {"name": f"CPU: {cpu_name()}", "cuda": None, "memory": cgroups.memory()}


def cpu_name() -> str:
    """Return the model name of /proc/cpuinfo."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"

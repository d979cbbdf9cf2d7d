"""The measured subject: a pipeline and its facts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfdag.hosts import cgroups
from perfdag.steps.resnet50.inference.pipeline import Pipeline


class Subject:
    """A pipeline and its `facts` (model, device, versions)."""

    def __init__(
        self, spec: Mapping[str, Any], repetitions: int, system: Pipeline, facts: dict[str, Any]
    ) -> None:
        self._spec, self._repetitions, self.system, self.facts = spec, repetitions, system, facts

    def arm(self) -> None:
        """Do nothing: only the stub has stalls."""

    def wake(self) -> float:
        """Return the seconds of the first batch of one image, before any compilation."""
        return self.system.wake()

    def timing(self, batch: int) -> dict[str, Any]:
        """Return the seconds by phase."""
        limit = 3.0 if self._spec["fast"] else 10.0
        return {"phases": self.system.phases(batch, self._repetitions, limit)}


def cpu_facts() -> dict[str, Any]:
    """Return the facts of a CPU as a device: its name, and memory in bytes."""
    return {"name": f"CPU: {cpu_name()}", "cuda": None, "memory": cgroups.memory()}


def cpu_name() -> str:
    """Return the model name of /proc/cpuinfo."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"

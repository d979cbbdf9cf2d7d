"""The model of one measurement: device, threads, logits check, clock check, phases, facts."""

from pathlib import Path
from typing import Any

import torch
import torchvision

from perfdag.hosts import cgroups
from perfdag.steps.resnet50.errors import UnusableError
from perfdag.steps.resnet50.inference.model import Resnet50, reference
from perfdag.steps.resnet50.inference.network import CHECKED, build, compare_logits, worst

TF32 = (8, 0)
"""Compute capability from which tf32 exists; below it PyTorch silently computes in fp32."""
_NO_GPU = ("no cuda-capable device", "no cuda gpus are available", "found no nvidia driver")
"""PyTorch's messages if a driver exists and no GPU is visible.

The last one comes from a container without the driver's libraries."""


class ModelSubject:
    """The system and its facts beside its times. Raises UnusableError if set-up fails."""

    def __init__(self, spec: dict[str, Any], repetitions: int) -> None:
        self._spec, self._repetitions = spec, repetitions
        if spec["device"] == "cuda" and not torch.cuda.is_available():
            raise UnusableError("device", no_cuda())
        if spec["precision"] == "tf32" and torch.cuda.get_device_capability(0) < TF32:
            name = torch.cuda.get_device_name(0)
            raise UnusableError(
                "device", f"precision tf32: {name} has none (Ampere or newer has); use fp32 or fp16"
            )
        torch.set_num_threads(spec["threads"] or cgroups.cpus())
        net, self._model = build(spec["weights"], spec["seed"], spec["weights_sha256"])
        self._reference = reference(net, spec["seed"])
        self.system = Resnet50(spec, net)
        self.facts = {
            "model": {**self._model, "system": "resnet50", "threads": torch.get_num_threads()},
            "device": device_facts(spec["device"]),
            "versions": {"torch": torch.__version__, "torchvision": torchvision.__version__},
        }

    def arm(self) -> None:
        """Do nothing: only the stub has stalls."""

    def wake(self) -> float:
        """Return the seconds of the first batch of one image, before any compilation."""
        return self.system.wake()

    def check_logits(self) -> dict[str, Any]:
        """Compare the timed model's logits with fp32 eager on the CPU, at every batch size.

        Both have the same weights and use the fixed seeded images.
        """
        comparisons = {}
        for size in self.system.buckets(self._spec["batch"]):
            got = self.system.fixed_logits(size)
            comparisons[size] = compare_logits(
                got,
                self._reference[[at % CHECKED for at in range(len(got))]],
                self._spec["precision"],
            )
        return worst(comparisons)

    def timing(self, batch: int) -> dict[str, Any]:
        """Return the clock's self-check and the seconds by phase."""
        check = self.system.check_clock(batch)
        return {
            "clock": {
                "host": check.host,
                "device": check.device,
                "honest": check.honest,
                "words": None if check.honest else check.words(),
            },
            "phases": self.system.phases(
                batch, self._repetitions, 3.0 if self._spec["fast"] else 10.0
            ),
        }


def no_cuda() -> str:
    """Return why there is no CUDA device, and what to do."""
    if torch.version.cuda is None:
        return (
            "device cuda: this PyTorch is built for the CPU only; install one with CUDA,"
            " or device: cpu"
        )
    if not Path("/proc/driver/nvidia/version").exists():
        return (
            "device cuda: no NVIDIA driver on this host; install it (on a cluster:"
            " the driver and nvidia-device-plugin), or device: cpu"
        )
    message = ""
    try:
        torch.cuda.init()
    except RuntimeError as error:  # a driver that is too old, a fabric manager that is down
        message = " ".join(str(error).split())[:300]
    if message and not any(words in message.lower() for words in _NO_GPU):
        return f"device cuda: the driver is there but PyTorch cannot use it: {message}"
    return (
        "device cuda: the driver is there but no GPU is visible;"
        " ask for nvidia.com/gpu in resources, or check CUDA_VISIBLE_DEVICES"
    )


def device_facts(device: str) -> dict[str, Any]:
    """Return name, uuid, compute capability, CUDA version, and visible memory in bytes."""
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        free, total = torch.cuda.mem_get_info(0)
        return {
            "name": properties.name,
            "uuid": f"GPU-{properties.uuid}",  # as nvidia-smi writes it
            "capability": f"{properties.major}.{properties.minor}",
            "cuda": torch.version.cuda,
            "memory": total,
            "free": free,
            "visible": torch.cuda.device_count(),
        }
    return {"name": f"CPU: {cpu_name()}", "cuda": None, "memory": cgroups.memory()}


def cpu_name() -> str:
    """Return the model name of /proc/cpuinfo."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"

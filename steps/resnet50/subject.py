"""The model set up and checked for one measurement: device, threads, logits against fp32 eager, clock, phases, device facts."""

from pathlib import Path
from typing import Any

import torch
import torchvision

from perfdag import cgroups
from perfdag.steps.resnet50.logits import compare_logits, worst
from perfdag.steps.resnet50.model import CHECKED, Resnet50, UnusableError, build, reference


class ModelSubject:
    """The system with what is said of it beside its times. Raises UnusableError where it cannot be set up."""

    def __init__(self, spec: dict[str, Any], repetitions: int) -> None:
        self._spec, self._repetitions = spec, repetitions
        if spec["device"] == "cuda" and not torch.cuda.is_available():
            raise UnusableError("device", no_cuda())
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
        """Nothing to arm: only the stub has stalls."""

    def wake(self) -> float:
        """Seconds of the first batch, of one image, before anything is compiled: what a device and its libraries take once."""
        return self.system.wake()

    def check_logits(self) -> dict[str, Any]:
        """The timed model's logits at every batch size that may be timed against fp32 eager on the CPU with the same weights, on the fixed
        seeded set."""
        found = {}
        for size in self.system.buckets(self._spec["batch"]):
            got = self.system.fixed_logits(size)
            found[size] = compare_logits(got, self._reference[[at % CHECKED for at in range(len(got))]], self._spec["precision"])
        return worst(found)

    def timing(self, batch: int) -> dict[str, Any]:
        """The clock's self-check and seconds by phase."""
        check = self.system.check_clock(batch)
        return {
            "clock": {"host": check.host, "device": check.device, "honest": check.honest, "words": None if check.honest else check.words()},
            "phases": self.system.phases(batch, self._repetitions, 3.0 if self._spec["fast"] else 10.0),
        }


def no_cuda() -> str:
    """Why there is no CUDA device, as far as one can tell, and what to do."""
    if torch.version.cuda is None:
        return "device cuda: this PyTorch is built for the CPU only; install one with CUDA, or device: cpu"
    if not Path("/proc/driver/nvidia/version").exists():
        return "device cuda: no NVIDIA driver on this host; install it (on a cluster: the driver and nvidia-device-plugin), or device: cpu"
    return "device cuda: the driver is there but no GPU is visible; ask for nvidia.com/gpu in resources, or check CUDA_VISIBLE_DEVICES"


def device_facts(device: str) -> dict[str, Any]:
    """Name, uuid, CUDA version, and bytes of memory this process can see."""
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        free, total = torch.cuda.mem_get_info(0)
        return {
            "name": properties.name,
            "uuid": f"GPU-{properties.uuid}",  # as nvidia-smi writes it
            "cuda": torch.version.cuda,
            "memory": total,
            "free": free,
            "visible": torch.cuda.device_count(),
        }
    return {"name": f"CPU: {cpu_name()}", "cuda": None, "memory": cgroups.memory()}


def cpu_name() -> str:
    """Model name of /proc/cpuinfo."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"

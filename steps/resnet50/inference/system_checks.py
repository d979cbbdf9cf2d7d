"""The torch subject: device, threads, weights, facts, and why CUDA cannot be used."""

from pathlib import Path
from typing import Any

import torch
import torchvision

from perfdag.hosts import cgroups
from perfdag.steps.resnet50.errors import UnusableError
from perfdag.steps.resnet50.inference.device import DeviceResnet50
from perfdag.steps.resnet50.inference.model import Resnet50
from perfdag.steps.resnet50.inference.network import build
from perfdag.steps.resnet50.inference.subject import Subject, cpu_facts

TF32 = (8, 0)
"""Compute capability from which tf32 exists; below it PyTorch silently computes in fp32."""
_NO_GPU = ("no cuda-capable device", "no cuda gpus are available", "found no nvidia driver")
"""PyTorch's messages if a driver exists and no GPU is visible.

The last one comes from a container without the driver's libraries."""


class ModelSubject(Subject):
    """torchvision's model on CPU or CUDA. Raises UnusableError if set-up fails."""

    def __init__(self, spec: dict[str, Any], repetitions: int) -> None:
        if spec["device"] == "cuda" and not torch.cuda.is_available():
            raise UnusableError("device", no_cuda())
        if spec["precision"] == "tf32" and torch.cuda.get_device_capability(0) < TF32:
            name = torch.cuda.get_device_name(0)
            raise UnusableError(
                "device", f"precision tf32: {name} has none (Ampere or newer has); use fp32 or fp16"
            )
        torch.set_num_threads(spec["threads"] or cgroups.cpus())
        net, weights = build(spec["weights"], spec["seed"], spec["weights_sha256"])
        facts = {
            "model": {
                **weights,
                "system": "resnet50",
                "runtime": "torch",
                "threads": torch.get_num_threads(),
            },
            "device": device_facts(spec["device"]),
            "versions": {"torch": torch.__version__, "torchvision": torchvision.__version__},
        }
        kind = DeviceResnet50 if spec["device"] == "cuda" else Resnet50
        super().__init__(spec, repetitions, kind(spec, net), facts)


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
    if message and not any(phrase in message.lower() for phrase in _NO_GPU):
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
    return cpu_facts()

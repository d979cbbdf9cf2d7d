"""torchvision's ResNet-50 on a CPU or GPU: weights, images, batches. Only the program needs it."""

import bisect
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision

from perfdag.benchmark.contract import Skip
from perfdag.hosts import facts

IMAGE = (224, 224, 3)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and deviation of ImageNet's channels (torchvision.models.ResNet50_Weights)."""
STEPS = 32
"""Most sizes of an eager batch."""
_TYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
TF32 = (8, 0)
"""Compute capability from which tf32 exists; below it PyTorch silently computes in fp32."""


def images(seed: int, indices: Sequence[int]) -> np.ndarray:
    """Return seeded images (n, 224, 224, 3), uint8; image i is the same on any machine (PCG64)."""
    sample = [
        np.random.Generator(np.random.PCG64([seed, index])).integers(0, 256, IMAGE, dtype=np.uint8)
        for index in indices
    ]
    return np.stack(sample)


def preprocess(raw: np.ndarray) -> np.ndarray:
    """Normalise (n, 224, 224, 3) uint8 pixels to (n, 3, 224, 224) float32.

    The result is a view whose channels lie together in memory, as convolutions like it.
    """
    pixels = raw.astype(np.float32) / np.float32(255)
    pixels -= np.array(MEAN, np.float32)
    pixels /= np.array(STD, np.float32)
    return pixels.transpose(0, 3, 1, 2)


def build(seed: int) -> torch.nn.Module:
    """Return an fp32 model in eval mode on the CPU; seeded weights are as fast as trained ones."""
    torch.manual_seed(seed)
    net = torchvision.models.resnet50(weights=None)
    # With the untrained statistics 0 and 1, the activations of 16 blocks overflow fp16.
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 1.0
        if isinstance(module, torchvision.models.resnet.Bottleneck):
            # Untrained blocks would amplify every rounding tenfold. Trained ones add little.
            torch.nn.init.constant_(module.bn3.weight, 0.2)
    with torch.no_grad():
        net.train()(torch.from_numpy(preprocess(images(seed, range(4)))))
    built: torch.nn.Module = net.eval()
    return built


class Resnet50:
    """A system that runs batches of up to `batch` of preprocessed images in host memory.

    Images lie in memory as (n, 224, 224, 3), as convolutions like it. See `System`.
    """

    facts: dict[str, Any]

    def __init__(self, spec: dict[str, Any], net: torch.nn.Module) -> None:
        compiling = spec["backend"] == "compile"
        self.padded = padded_sizes(spec["batch"], spec["scenario"], compiling or spec["fast"])
        self.device, self.dtype = torch.device(spec["device"]), _TYPES[spec["precision"]]
        self.net: Any = net.to(self.device, self.dtype, memory_format=torch.channels_last)
        if compiling:
            with torch.inference_mode():  # lazy initialisation is no part of compile_time
                self.net(torch.zeros(1, 3, 224, 224, device=self.device, dtype=self.dtype))
            self.net = compiled(self.net, len(self.padded))
        samples = range(spec["samples"])
        parts = (images(spec["seed"], samples[at : at + 64]) for at in samples[::64])
        pixels = (torch.from_numpy(preprocess(part).transpose(0, 2, 3, 1)) for part in parts)
        self.store = torch.cat([part.to(self.dtype) for part in pixels])

    def gather(self, indices: Sequence[int] | np.ndarray) -> torch.Tensor:
        """Return a batch in host memory, padded with its first sample to one of the sizes."""
        rows = np.asarray(indices, np.intp)
        size = self.padded[bisect.bisect_left(self.padded, len(rows))]
        rows = np.append(rows, rows[:1].repeat(size - len(rows)))
        return torch.index_select(self.store, 0, torch.from_numpy(rows))

    def copy(self, batch: torch.Tensor) -> torch.Tensor:
        """Return a batch where it is computed; on a CPU that is where it is."""
        return batch

    def logits(self, batch: torch.Tensor) -> torch.Tensor:
        """Run the network; on a device it may return early."""
        with torch.inference_mode():
            out: torch.Tensor = self.net(batch.permute(0, 3, 1, 2))
            return out

    def answers(self, logits: torch.Tensor) -> np.ndarray:
        """Return the class of each sample; it waits for the device."""
        classes: np.ndarray = logits.argmax(1).cpu().numpy()
        return classes

    def sizes(self) -> Sequence[int]:
        """Return the sizes to which batches are padded; all are warmed beforehand."""
        return self.padded

    def infer(self, indices: Sequence[int] | np.ndarray, ready: float = 0.0) -> np.ndarray:
        """Return the classes of a batch."""
        return self.answers(self.logits(self.copy(self.gather(indices))))[: len(indices)]


def padded_sizes(largest: int, scenario: str, few: bool) -> list[int]:
    """Return the batch sizes of a scenario, up to the largest.

    In Server any number of queries may wait. With `few` the sizes
    are powers of two, since each is compiled. Else they are every size up to 32, and at most 32
    of larger batches, since padding costs time.
    """
    if scenario != "server":
        return [largest]
    if few:
        return [*(2**power for power in range(largest.bit_length()) if 2**power < largest), largest]
    step = -(-largest // STEPS)
    return [*range(step, largest, step), largest]


def compiled(net: torch.nn.Module, count: int) -> Any:
    """Compile the network anew for each of `count` sizes.

    Beyond its own limit, torch.compile would silently run the other sizes eagerly.
    """
    from torch._dynamo import config

    config.recompile_limit = max(config.recompile_limit, count)
    config.fail_on_recompile_limit_hit = True
    return torch.compile(net, dynamic=False)


class DeviceResnet50(Resnet50):
    """PyTorch's pipeline on CUDA; `infer` serves two threads at once."""

    def __init__(self, spec: dict[str, Any], net: torch.nn.Module) -> None:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = (
            spec["precision"] == "tf32"
        )
        super().__init__(spec, net)
        self._copying, self._computing = torch.cuda.Stream(), torch.cuda.Stream()
        self._launching = threading.Lock()  # kernels of two batches must not mix in the stream

    def gather(self, indices: Sequence[int] | np.ndarray) -> torch.Tensor:
        return super().gather(indices).pin_memory()

    def copy(self, batch: torch.Tensor) -> torch.Tensor:
        """Return a batch on the device; the computing stream waits for it."""
        with torch.cuda.stream(self._copying):
            there = batch.to(self.device, non_blocking=True)
        self._computing.wait_stream(self._copying)
        there.record_stream(self._computing)
        return there

    def logits(self, batch: torch.Tensor) -> torch.Tensor:
        with self._launching, torch.cuda.stream(self._computing):
            return super().logits(batch)

    def answers(self, logits: torch.Tensor) -> np.ndarray:
        with torch.cuda.stream(self._computing):
            return super().answers(logits)


def torch_system(spec: dict[str, Any]) -> Resnet50:
    """Return torchvision's model on CPU or CUDA, with its `facts` (model, device, versions).

    Raises Skip if there is no device that computes so.
    """
    cuda = spec["device"] == "cuda"
    if cuda and not torch.cuda.is_available():
        raise Skip(f"device cuda: {no_cuda()}")
    if spec["precision"] == "tf32" and torch.cuda.get_device_capability(0) < TF32:
        name = torch.cuda.get_device_name(0)
        raise Skip(
            f"device: precision tf32: {name} has none (Ampere or newer has); use fp32 or fp16"
        )
    torch.set_num_threads(spec["threads"] or facts.cpus())
    system = (DeviceResnet50 if cuda else Resnet50)(spec, build(spec["seed"]))
    system.facts = {
        "model": {
            "system": "resnet50",
            "runtime": "torch",
            "threads": torch.get_num_threads(),
            "weights": f"random, seed {spec['seed']}",
        },
        "device": device_facts(spec["device"]),
        "versions": {"torch": torch.__version__, "torchvision": torchvision.__version__},
    }
    return system


def no_cuda() -> str:
    """Return why PyTorch sees no CUDA device, in its own words."""
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:  # a driver that is too old, or none
        return " ".join(str(error).split())[:300]
    return "no GPU is visible; ask for nvidia.com/gpu in resources"


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
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return {"name": f"CPU: {next(models, 'unknown')}", "cuda": None, "memory": facts.memory()}

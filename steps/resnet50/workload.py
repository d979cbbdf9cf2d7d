"""The common base of the benchmarks: checks, estimates, required tools and facts."""

import contextlib
import json
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, TypeVar

from perfdag.benchmark.contract import Benchmark, Gang, Output, Tool
from perfdag.outcome import SampleError
from perfdag.shape import Shape
from perfdag.steps.resnet50 import launch, result
from perfdag.steps.resnet50.params import Workload
from perfdag.steps.resnet50.program import MARGIN

W = TypeVar("W", bound=Workload)
DRIVER = Tool(
    "the NVIDIA driver (nvidia-smi)",
    {"apt": "nvidia-driver", "dnf": "nvidia-driver", "zypper": "nvidia-driver-G06"},
)


class WorkloadBenchmark(Benchmark[W], Generic[W]):
    """The base of the benchmarks of a workload; each starts the program in its own way."""

    image: ClassVar[str] = "resnet50"
    canaries: ClassVar[tuple[str, ...]] = ("cpu", "memory")

    def check(self, params: W, shape: Shape) -> list[str]:
        wanted = [name for name in shape.resources.both if "gpu" in name or "mig" in name]
        if wanted and params.device == "cpu" and params.system == "resnet50":
            return [
                f"resources ask for {wanted[0]} but device is cpu:"
                " set device: cuda, or leave the resource out"
            ]
        return []

    def seconds(self, params: W) -> float:
        return expected(params)

    def least_seconds(self, params: W) -> float:
        """Return the seconds that LoadGen runs; 0 where its samples may end sooner."""
        if params.scenario == "offline":
            # A device faster than target_rate completes its samples sooner.
            return 0.0 if params.fast else params.duration()
        return params.lasts(params.duration())

    def missing(self, gang: Gang, params: W) -> list[Tool]:
        return missing(gang, params)

    def require(self, gang: Gang, params: W) -> None:
        launch.require(gang.hosts, params)

    def series(self, output: Output) -> str:
        """Return PyTorch's and LoadGen's versions, which separate series."""
        return output.tool


def expected(params: Workload) -> float:
    """Return the seconds of one measurement: set-up, warm-up, LoadGen."""
    # Without target_rate, Offline's query is sized by the warm-up's rate and a margin.
    margin = (
        MARGIN
        if params.scenario == "offline" and params.target_rate is None and not params.fast
        else 1.0
    )
    setup = 5.0 if params.system == "stub" else 60.0 if params.fast else launch.SETUP
    return setup + 1.2 * params.lasts(params.duration()) * margin


def missing(gang: Gang, params: Workload, wrapped: bool = True) -> list[Tool]:
    """Return what is missing: the wrapper's program, Python packages, the driver.

    Packages are searched behind the wrapper and in its environment if the program is `wrapped`.
    """
    if params.wrapper and (
        without := [host.name for host in gang.hosts if host.which(params.wrapper[0]) is None]
    ):
        return [
            Tool(
                params.wrapper[0],
                {},
                f"`wrapper` begins with it: install it on {without[0]}, or correct its path",
            )
        ]
    before = launch.wrapper_argv(params) if wrapped else []
    behind = f" behind {params.wrapper[0]}" if wrapped and params.wrapper else ""
    lacking = {
        tool.program: tool
        for host in gang.hosts
        for tool in launch.missing_packages(host, params, behind, wrapped=before)
    }
    tools = [lacking[name] for name in sorted(lacking)]
    if params.device == "cuda" and any(host.which("nvidia-smi") is None for host in gang.hosts):
        tools.append(DRIVER)
    return tools


def texts(result_text: str, stderr: str) -> dict[str, str]:
    """Return the texts to keep: the program's JSON, and LoadGen's logs."""
    texts_by_name = {"result": result_text, "stderr": stderr[-4000:]}
    with contextlib.suppress(ValueError, KeyError, TypeError):
        logs = json.loads(result_text)["test"]["logs"]
        texts_by_name |= {f"mlperf_log_{name}": text for name, text in logs.items()}
    return texts_by_name


def program_facts(texts: Mapping[str, str]) -> dict[str, Any]:
    """Return what the first program of a sample reports of its model, device and versions."""
    for text in texts.values():
        with contextlib.suppress(ValueError):
            raw = json.loads(text)
            if isinstance(raw, dict):
                return {key: raw[key] for key in ("model", "device", "versions") if key in raw}
    return {}


def versions(text: str) -> str:
    """Return `torch 2.9.0, LoadGen 6.0.17` of a result, or an empty string."""
    try:
        measured = result.read(text)
    except SampleError:
        return ""
    loadgen = measured.tested.version.split()[0]
    versions = {"torch": measured.raw.get("versions", {}).get("torch"), "LoadGen": loadgen}
    return ", ".join(f"{name} {version}" for name, version in versions.items() if version)

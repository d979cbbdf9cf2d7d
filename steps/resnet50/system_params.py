"""Parameters of the system under test: its runtime, device, precision and weights."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from perfdag.benchmark import contract
from perfdag.benchmark.rules import refuse
from perfdag.quantities import CpuList
from perfdag.units import Duration, PositiveDuration

Text = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Url = Annotated[str, StringConstraints(pattern=r"^(https?|grpc)://[^\s/?#@]+(/[^\s?#@]*)?$")]
PRECISIONS = {"onnxruntime": {"fp32"}, "openvino": {"fp32", "bf16"}}
"""Precisions in which a runtime computes an fp32 model on a CPU."""


class StubParams(contract.Params):
    """A system of known service time: a batch of b takes `base + each * b` seconds."""

    base: PositiveDuration = Field(0.01, description="seconds of a batch")
    each: Duration = Field(0.0, description="seconds a sample adds")
    lock: Text | None = Field(
        None,
        description="a file locked while serving, so that copies that share it wait for each other",
    )
    stalled: int = Field(0, ge=0, description="number of the query that stalls (1 is the first)")
    stall: Duration = Field(0.0, description="seconds that this query takes longer")


class SystemParams(contract.Params):
    """The system under test. A parameter that is not set leaves the id of a point as it was."""

    runtime: Literal["torch", "onnxruntime", "openvino", "endpoint"] = Field(
        "torch",
        exclude_if=lambda value: value == "torch",
        description="what computes: PyTorch, ONNX Runtime or OpenVINO on the CPU, or a server that"
        " speaks the Open Inference Protocol (Triton, KServe, OVMS)",
    )
    endpoint: Url | None = Field(
        None,
        exclude_if=lambda value: value is None,
        description="the server: http://HOST:8000 or grpc://HOST:8001",
    )
    model: Text | None = Field(
        None,
        exclude_if=lambda value: value is None,
        description="name of the endpoint's model",
    )
    in_flight: int | None = Field(
        None,
        ge=1,
        le=256,
        exclude_if=lambda value: value is None,
        description="batches at once, for a server, a GPU or a CPU with many cores, whose threads"
        " are shared; unset: 1, on cuda 2, of which one is copied while the other is computed",
    )
    resident: bool = Field(
        False,
        exclude_if=lambda value: not value,
        description="cuda: samples lie in the device's memory, so that their copy is not in the"
        " time; MLPerf counts it",
    )
    graphs: bool = Field(
        True,
        exclude_if=lambda value: value,
        description="cuda: each batch size is captured as a CUDA graph; false: its kernels are"
        " launched one by one",
    )
    device: Literal["cpu", "cuda"] = "cpu"
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    backend: Literal["eager", "compile"] = Field(
        "eager", description="compile: torch.compile; its time is reported separately"
    )
    threads: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="threads of one operator; unset: one for each allowed CPU,"
        " within a pod's CPU limit",
    )
    cpus: CpuList | None = Field(None, description="CPUs to run on, as taskset takes them: 0-3")
    weights: Text = Field(
        "random",
        description="a file of torchvision's state dict, or `random`: a seeded initialisation"
        " (as fast, not accurate); onnxruntime and openvino also take a model file (.onnx, .xml)",
    )
    weights_sha256: Sha256 | None = Field(None, description="expected SHA-256 of the weights file")
    system: Literal["resnet50", "stub"] = Field(
        "resnet50", description="stub: a known service time, to measure the harness itself"
    )
    stub: StubParams = StubParams()

    @model_validator(mode="after")
    def _runs(self) -> "SystemParams":
        served = self.runtime == "endpoint"
        refuse(
            (
                served and (self.endpoint is None or self.model is None),
                "runtime endpoint needs endpoint, the server's URL, and model, a name it serves",
            ),
            (
                not served and (self.endpoint is not None or self.model is not None),
                "endpoint and model belong to runtime: endpoint; leave them out, or set it",
            ),
            (
                self.runtime != "torch" and (self.device != "cpu" or self.backend != "eager"),
                f"device {self.device} with backend {self.backend} is PyTorch's: leave both out"
                f" with runtime {self.runtime}",
            ),
            (
                self.precision not in PRECISIONS.get(self.runtime, {self.precision}),
                f"runtime {self.runtime} computes here in"
                f" {' or '.join(sorted(PRECISIONS.get(self.runtime, ())))}, not {self.precision}",
            ),
            (
                served and self.weights != "random",
                "weights are the server's own with runtime endpoint: leave weights out",
            ),
            (
                self.runtime == "torch" and self.device == "cpu" and (self.in_flight or 1) > 1,
                "in_flight does nothing with runtime torch on a CPU, where a batch has all threads:"
                " leave it out",
            ),
            (
                self.device == "cpu" and (self.resident or not self.graphs),
                "resident and graphs are settings of device: cuda: leave them out",
            ),
            (
                self.model_file and self.runtime in ("torch", "endpoint"),
                f"weights {self.weights} is a model file: runtime onnxruntime or openvino",
            ),
            (
                self.system == "stub" and self.runtime != "torch",
                "system stub has no runtime: leave one of them out",
            ),
            (
                self.precision == "tf32" and self.device != "cuda",
                "precision tf32 is a mode of NVIDIA GPUs: device: cuda, or precision fp32,"
                " bf16 or fp16",
            ),
            (
                self.weights_sha256 is not None and self.weights == "random",
                "weights_sha256 needs a weights file; random weights are identified by seed",
            ),
        )
        return self

    @property
    def model_file(self) -> bool:
        """Whether the weights come with their graph, so that nothing needs to be exported."""
        return self.weights.endswith((".onnx", ".xml"))

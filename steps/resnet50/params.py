"""Parameters of one measurement, which overhead and interference runs extend."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, StringConstraints, model_validator

from perfdag.benchmark import contract
from perfdag.benchmark.contract import refuse
from perfdag.units import Duration, PositiveDuration

Scenario = Literal["offline", "server", "single-stream"]
Text = Annotated[str, StringConstraints(min_length=1, max_length=4096)]

MLPERF_DURATION = 600.0
"""Minimum duration in seconds of MLPerf's own rules (mlperf.conf of mlcommons/inference)."""
FAST_DURATION = 2.0
QUERIES = {"offline": 24576, "server": 100, "single-stream": 100}
"""Fewest queries (Offline: samples) by mlperf.conf; early stopping may need more."""
FAST_QUERIES = {"offline": 16, "server": 64, "single-stream": 64}
FEWEST_BATCHES = 2
PROGRAM = 2
"""Version of the program's result."""
MARGIN = 1.25
"""Factor of Offline's expected rate over the warm-up's.

With LoadGen's own tenth, it makes up for a warm-up that was a quarter too slow."""
SHARE_OF_CAPACITY = 0.5
"""Server's rate over Offline's of a warm-up at that batch, where no rate is given."""


class StubParams(contract.Params):
    """A system of known service time: a batch of b takes `base + each * b` seconds."""

    base: PositiveDuration = Field(0.01, description="seconds of a batch")
    each: Duration = Field(0.0, description="seconds a sample adds")


class Workload(contract.Params):
    """One measurement of ResNet-50 under LoadGen."""

    retired: ClassVar[Mapping[str, Any]] = {
        "max_queries": None,
        "precision_of_peak": 0.01,
        "search_duration": 10.0,
        "check_logits": True,
        "imagenet": None,
        "weights_sha256": None,
        "weights": "random",
        "cpus": None,
        "stub": {"lock": None, "stalled": 0, "stall": 0.0},
    }

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
    system: Literal["resnet50", "stub"] = Field(
        "resnet50", description="stub: a known service time, to measure the harness itself"
    )
    stub: StubParams = StubParams()
    scenario: Scenario = Field(
        "offline",
        description="offline: samples/s; server: Poisson arrivals at target_rate; single-stream",
    )
    batch: int = Field(
        1,
        ge=1,
        le=65536,
        description="samples in a batch; in server the most that a batch may hold",
    )
    target_rate: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="server: queries/s that arrive, by default half of the rate of the warm-up;"
        " offline: expected samples/s, by default those of the warm-up",
    )
    latency_bound: PositiveDuration = Field(0.015, description="server: seconds that p99 may take")
    max_delay: Duration = Field(
        0.002, description="server: seconds the oldest query waits for a batch to fill"
    )
    seed: int = Field(
        0,
        ge=0,
        lt=2**31,
        description="seed of the weights, the images, LoadGen's order and schedule",
    )
    samples: int = Field(64, ge=1, le=50000, description="different images held in memory")
    min_duration: PositiveDuration = Field(
        MLPERF_DURATION, description="shortest run; MLPerf's rules ask for 600 s"
    )
    min_queries: int | None = Field(
        None, ge=1, description="fewest queries; unset: 100, in offline 24576 samples"
    )
    fast: bool = Field(
        False, description="a smoke test of seconds; its rows are marked as not comparable"
    )
    price_per_hour: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="price of the machine, for the cost of a million samples",
    )
    currency: Annotated[str, StringConstraints(pattern=r"^[A-Z]{3}$")] = "USD"
    python: Text | None = Field(
        None, description="interpreter that has torch and LoadGen; unset: perfdag's own"
    )
    wrapper: list[Text] = Field(
        [],
        max_length=64,
        description="argv before the program; it must pass on the three standard streams:"
        " nice -n 5, kubectl exec -i POD --",
    )
    wrapper_env: dict[Text, str] = Field(
        {},
        description="environment of the program, set behind the wrapper:"
        " LD_PRELOAD of a vGPU layer; the wrapper's own: [env, NAME=VALUE, ...]",
    )

    @model_validator(mode="after")
    def _fits(self) -> "Workload":
        refuse(
            (
                self.precision == "tf32" and self.device != "cuda",
                "tf32-without-cuda",
                "precision tf32 is a mode of NVIDIA GPUs: device: cuda, or precision fp32,"
                " bf16 or fp16",
            ),
            (
                self.target_rate is not None and self.scenario == "single-stream",
                "unused-rate",
                "target_rate does nothing in scenario single-stream,"
                " which sends as fast as it is answered: leave it out",
            ),
            (
                self.scenario == "single-stream" and self.batch != 1,
                "single-batch",
                f"scenario single-stream sends one sample at a time: batch 1, not {self.batch}",
            ),
        )
        return self

    def duration(self) -> float:
        """Return the shortest LoadGen run in seconds."""
        return min(FAST_DURATION, self.min_duration) if self.fast else self.min_duration

    def queries(self) -> int:
        """Return the fewest queries, in Offline samples."""
        if self.min_queries is not None:
            return self.min_queries
        least = (FAST_QUERIES if self.fast else QUERIES)[self.scenario]
        # A shorter Offline query would measure a batch that is never full.
        return max(least, FEWEST_BATCHES * self.batch) if self.scenario == "offline" else least

    def lasts(self, duration: float) -> float:
        """Return the seconds of a LoadGen test of at least `duration`.

        At target_rate its fewest queries may take longer to arrive, or Offline's samples to end.
        """
        if self.target_rate is None:
            return duration
        return max(duration, self.queries() / self.target_rate)

    def spec(self) -> dict[str, Any]:
        """Return the program's input: all parameters except those that start it."""
        started = {"python", "wrapper", "price_per_hour", "currency", "stub"}
        return {
            **{name: getattr(self, name) for name in Workload.model_fields if name not in started},
            "stub": self.stub.model_dump(),
            "duration": self.duration(),
            "queries": self.queries(),
        }

"""Parameters of one measurement, which overhead and interference runs extend."""

import math
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from perfdag.benchmark.rules import refuse
from perfdag.steps.resnet50.load import SAMPLES_PER_QUERY, STREAMS
from perfdag.steps.resnet50.system_params import SystemParams, Text
from perfdag.units import Duration, PositiveDuration

Scenario = Literal["offline", "server", "single-stream", "multi-stream", "find-peak", "accuracy"]

MLPERF_DURATION = 600.0
"""Minimum duration in seconds of MLPerf's own rules (mlperf.conf of mlcommons/inference)."""
FAST_DURATION = 2.0
QUERIES = {
    "offline": 24576,
    "server": 100,
    "find-peak": 100,
    "single-stream": 100,
    "multi-stream": 662,
    "accuracy": 1,
}
"""Fewest queries (Offline: samples) by mlperf.conf; early stopping may need more."""
FAST_QUERIES = {
    "offline": 16,
    "server": 64,
    "find-peak": 20,
    "single-stream": 64,
    "multi-stream": 16,
    "accuracy": 1,
}
FEWEST_BATCHES = 2
OFFICIAL = ("single-stream", "multi-stream", "server", "offline")
DEFAULT_SAMPLES, LIBRARY, MLPERF_BOUND = 64, 1024, 0.015
"""Samples in memory by default and by mlperf.conf, and its bound of Server in seconds."""
VERDICT_QUERIES = {"server": 459, "single-stream": 64, "multi-stream": 662, "find-peak": 662}
"""Fewest queries with which LoadGen's early stopping can call a run valid.

They are for p99 with none late, its estimates of p90 and p99, and for a trial of find-peak p99
with one late."""


def _sufficient_queries(mean: float) -> int:
    """Return the fewest queries of a Poisson schedule that surely last as long as `mean` do."""
    return math.ceil(((3 + math.sqrt(9 + 4 * mean)) / 2) ** 2 - 1e-6)


class Workload(SystemParams):
    """One measurement of ResNet-50 under LoadGen."""

    scenario: Scenario = Field(
        "offline",
        description="offline: samples/s; server: Poisson arrivals at target_rate; single-stream;"
        " multi-stream: 8 samples a query; find-peak; accuracy",
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
        description="server: queries/s that arrive; find-peak: where the search starts;"
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
    samples: int = Field(
        DEFAULT_SAMPLES,
        ge=1,
        le=50000,
        description="different images held in memory (mlperf: 1024)",
    )
    mlperf: bool = Field(
        False,
        exclude_if=lambda value: not value,
        description="use LoadGen's own mlperf.conf: its seeds, durations, queries and bounds, and a"
        " library of 1024 samples",
    )
    audits: list[Literal["TEST01", "TEST04"]] = Field(
        [],
        exclude_if=lambda value: not value,
        description="with mlperf: audits to run after it, which double the time each",
    )
    min_duration: PositiveDuration = Field(
        MLPERF_DURATION, description="shortest run; MLPerf's rules ask for 600 s"
    )
    min_queries: int | None = Field(
        None,
        ge=1,
        description="fewest queries; unset: mlperf.conf's, 100, in offline 24576 samples",
    )
    max_queries: int | None = Field(
        None,
        ge=1,
        description="all but offline: stop after so many queries; unset: no limit",
    )
    fast: bool = Field(
        False, description="a smoke test of seconds; its rows are marked as not comparable"
    )
    precision_of_peak: float = Field(
        0.01, gt=0, lt=0.5, description="find-peak: relative width of the last bracket"
    )
    search_duration: PositiveDuration = Field(
        10.0,
        description="find-peak: seconds of a trial before the full ones at the edge,"
        " or more if 662 queries take longer",
    )
    check_logits: bool = Field(
        True, description="false: logits are not checked, and every row is marked"
    )
    imagenet: Text | None = Field(
        None,
        description="accuracy: a folder of validation images, one folder a class,"
        " or with val_map.txt",
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

    @field_validator("wrapper_env")
    @classmethod
    def _names(cls, value: dict[str, str]) -> dict[str, str]:
        bad = [
            name
            for name in value
            if "=" in name or name.startswith("-") or "\0" in name + value[name]
        ]
        if bad:
            raise ValueError(f"{bad[0]!r} cannot be the name of an environment variable")
        return value

    @model_validator(mode="after")
    def _fits(self) -> "Workload":
        scenario, verdict = self.scenario, VERDICT_QUERIES.get(self.scenario, 0)
        needed = self.queries() if self.fast else max(self.queries(), verdict)
        queries = f"its {needed} queries" if self.fast else f"the {needed} queries of a verdict"
        hint = "lower min_queries" if self.fast else "say fast: true"
        too_few = self.max_queries is not None and self.max_queries < needed
        refuse(
            (
                scenario == "server" and self.target_rate is None,
                "scenario server needs target_rate, queries/s that arrive;"
                " find-peak finds the highest that holds latency_bound",
            ),
            (
                self.target_rate is not None and scenario in (*STREAMS, "accuracy"),
                f"target_rate does nothing in scenario {scenario},"
                " which sends as fast as it is answered: leave it out",
            ),
            (
                self.max_queries is not None and scenario in ("offline", "accuracy"),
                f"max_queries does nothing in scenario {scenario},"
                " whose one query holds all samples: use min_duration",
            ),
            (
                too_few,
                f"max_queries {self.max_queries} ends a run before {queries}: raise it, or {hint}",
            ),
        )
        if scenario == "server" and self.max_queries and self.target_rate:
            arrive = _sufficient_queries(self.target_rate * self.duration())
            refuse(
                (
                    self.max_queries < arrive,
                    f"max_queries {self.max_queries} at {self.target_rate:g}/s (Poisson) may end"
                    f" a run before min_duration ({self.duration():g} s), which LoadGen calls"
                    f" INVALID: raise it to {arrive}, three standard deviations over the mean,"
                    " lower min_duration, or leave it out",
                )
            )
        refuse(
            (
                scenario == "accuracy" and self.imagenet is None,
                "scenario accuracy needs imagenet, a folder of validation images;"
                " none is shipped with perfdag",
            ),
            (
                scenario == "single-stream" and self.batch != 1,
                f"scenario single-stream sends one sample at a time: batch 1, not {self.batch}",
            ),
            (
                scenario == "multi-stream" and self.batch != SAMPLES_PER_QUERY,
                f"scenario multi-stream sends {SAMPLES_PER_QUERY} samples at a time:"
                f" set batch: {SAMPLES_PER_QUERY}",
            ),
            (
                scenario in STREAMS and (self.in_flight or 1) != 1,
                f"scenario {scenario} has one query in flight: leave in_flight out",
            ),
            (
                self.mlperf and scenario not in OFFICIAL,
                f"mlperf runs {', '.join(OFFICIAL)}, not {scenario}: with imagenet, each has an"
                " accuracy run",
            ),
            (
                self.mlperf and self.samples not in (LIBRARY, DEFAULT_SAMPLES),
                f"mlperf has a library of {LIBRARY} samples: leave samples out",
            ),
            (
                self.mlperf and self.resident,
                "mlperf counts the copy of samples to the device: leave resident out",
            ),
            (
                self.mlperf and self.latency_bound != MLPERF_BOUND,
                f"mlperf has the latency bound of mlperf.conf, {MLPERF_BOUND * 1e3:g} ms:"
                " leave latency_bound out",
            ),
            (
                bool(self.audits) and not self.mlperf,
                "audits repeat a run with MLPerf's settings: set mlperf: true",
            ),
        )
        return self

    def duration(self) -> float:
        """Return the shortest LoadGen run in seconds."""
        return min(FAST_DURATION, self.min_duration) if self.fast else self.min_duration

    def queries(self) -> int:
        """Return the fewest queries, in Offline samples.

        In find-peak, early stopping can pass a trial with them although one query is late.
        """
        least = (
            (FAST_QUERIES if self.fast else QUERIES)[self.scenario]
            if self.min_queries is None
            else self.min_queries
        )
        if self.scenario == "find-peak" and not self.fast:
            return max(least, VERDICT_QUERIES["find-peak"])
        # A shorter Offline query would measure a batch that is never full.
        return (
            max(least, FEWEST_BATCHES * self.batch)
            if self.scenario == "offline" and self.min_queries is None
            else least
        )

    def lasts(self, duration: float) -> float:
        """Return the seconds of a LoadGen test of at least `duration`.

        At target_rate its fewest queries may take longer to arrive, or Offline's samples to end.
        """
        if self.scenario not in ("server", "find-peak", "offline") or self.target_rate is None:
            return duration
        most = math.inf if self.max_queries is None else self.max_queries / self.target_rate
        return min(max(duration, self.queries() / self.target_rate), most)

    def spec(self) -> dict[str, Any]:
        """Return the program's input: all parameters except those that start it."""
        started = {"python", "wrapper", "price_per_hour", "currency", "stub"}
        return {
            **{name: getattr(self, name) for name in Workload.model_fields if name not in started},
            "stub": self.stub.model_dump(),
            "duration": self.duration(),
            "queries": self.queries(),
            "samples": LIBRARY if self.mlperf else self.samples,
            "in_flight": self.in_flight
            or (2 if self.device == "cuda" and self.scenario not in STREAMS else 1),
        }

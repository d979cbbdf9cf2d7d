"""The load of one LoadGen test."""

from dataclasses import dataclass

SCENARIOS = {
    "offline": "Offline",
    "server": "Server",
    "single-stream": "SingleStream",
    "multi-stream": "MultiStream",
}
"""LoadGen's name of each scenario."""
STREAMS, SAMPLES_PER_QUERY = ("single-stream", "multi-stream"), 8
"""Scenarios that send a query when the last is answered, and the samples of MultiStream's."""


@dataclass(frozen=True)
class Load:
    """Settings of one LoadGen test. Times in seconds, rates in 1/s.

    `expected_rate` sizes Offline's one query and SingleStream's schedule. A wrong rate makes a
    run longer, or INVALID if Offline's query ends before the minimum duration. `in_flight` is the
    number of batches at once. With `mlperf`, LoadGen's mlperf.conf sets what else there is, and
    `audit` is a test of it (TEST01, TEST04).
    """

    scenario: str
    batch: int
    min_duration: float
    min_queries: int
    samples: int
    expected_rate: float
    target_rate: float = 0.0
    latency_bound: float = 0.015
    max_delay: float = 0.0
    max_queries: int = 0
    seed: int = 0
    mode: str = "performance"
    total: int = 0
    in_flight: int = 1
    mlperf: bool = False
    audit: str = ""

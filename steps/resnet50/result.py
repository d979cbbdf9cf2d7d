"""Read the result that the program prints."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perfdag.outcome import Failed, Skip
from perfdag.stats.percentiles import needed
from perfdag.steps.resnet50 import loadgen_log
from perfdag.steps.resnet50.program import PROGRAM

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
TAIL = {"server": "p99", "single-stream": "p90"}
UNUSABLE = {"device", "missing"}
"""Errors of a missing device or package, which skip the sample."""


@dataclass(frozen=True)
class Result:
    """The program's JSON, and LoadGen's summary of its test."""

    raw: Mapping[str, Any]
    tested: loadgen_log.Summary

    @property
    def span(self) -> tuple[float, float]:
        """Return start and end of the test, in epoch seconds of the measuring host."""
        return float(self.raw["test"]["started"]), float(self.raw["test"]["ended"])

    @property
    def rate(self) -> float:
        """Return samples/s: Offline's throughput, Server's completions, a stream's by its mean."""
        return self.tested.rate or (1 / self.tested.mean if self.tested.mean else math.nan)

    def p99(self, scenario: str) -> float:
        """Return p99 latency in seconds.

        It is not-a-number with too few queries, and in Offline, which has one query.
        """
        if scenario == "offline" or self.tested.queries < needed(0.99):
            return math.nan
        return self.tested.percentiles[0.99]

    def tail(self, scenario: str) -> float:
        """Return `cost`, or not-a-number with too few queries for the percentile."""
        if scenario in TAIL and self.tested.queries < needed(PERCENTILES[TAIL[scenario]]):
            return math.nan
        return self.cost(scenario)

    def cost(self, scenario: str) -> float:
        """Return p99 of Server, p90 of SingleStream, Offline's seconds a sample."""
        return (
            self.tested.percentiles[PERCENTILES[TAIL[scenario]]]
            if scenario in TAIL
            else 1 / self.rate
        )


def read(text: str) -> Result:
    """Read what the program printed.

    Raises Skip if a device or package is missing, Failed if it failed or the text is cut.
    """
    try:
        raw = json.loads(text)
    except ValueError:
        raise Failed("the program printed no result: its output is cut", {"result": text}) from None
    if not isinstance(raw, dict) or raw.get("program") != PROGRAM:
        raise Failed(
            f"the result is not of this program: version {PROGRAM} expected", {"result": text}
        )
    if error := raw.get("error"):
        kind = Skip if error["kind"] in UNUSABLE else Failed
        raise kind(error["text"], {"result": text})
    try:
        logs = raw["test"]["logs"]
        return Result(raw, loadgen_log.read(logs["summary"], logs["detail"]))
    except (KeyError, loadgen_log.UnreadableError) as error:
        raise Failed(f"no finished LoadGen test in the result: {error}", {"result": text}) from None

"""Read the result that the program prints, and judge whether it is what it claims."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfdag.outcome import Failed, Skip
from perfdag.stats.robust import needed
from perfdag.steps.resnet50 import loadgen_log
from perfdag.steps.resnet50.params import PROGRAM, Workload

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
TAIL = {"server": "p99", "single-stream": "p90"}
UNUSABLE = {"device", "missing"}
"""Errors of a missing device or package, which skip the sample."""
MARKS = ("fast", "loadgen", "weights")
"""Coordinates of `caveats`."""


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


def result_fault(result: Result, params: Workload) -> str | None:
    """Return why the figures are not what they claim, with LoadGen's reasons, or None."""
    warm = result.raw.get("warmup", {})
    if warm.get("stable") is False and not params.fast:
        return (
            f"too few batches fit into the warm-up to tell whether their time is steady:"
            f" the last took {warm['steady']:.3g} s"
            if warm.get("few")
            else "batch times still differed by more than 10 % at the end of the warm-up:"
            " something else uses the device"
        )
    tested = result.tested
    if not tested.valid and not _is_only_short(tested, params):
        return invalid(tested, params)
    if params.scenario == "offline" and tested.queries < params.queries():
        return (
            f"LoadGen requested {tested.queries} samples, fewer than the {params.queries()} of"
            " min_queries"
        )
    return None


def invalid(tested: loadgen_log.Summary, params: Workload) -> str:
    """Return LoadGen's reasons for INVALID, with Offline's rate."""
    text = "LoadGen says INVALID: " + "; ".join(tested.reasons)
    if (
        params.scenario == "offline"
        and tested.keys.get("result_min_duration_met") is False
        and tested.rate
    ):
        text += f"; target_rate is the expected QPS: set it to {tested.rate:.4g} or more"
    return text


def is_only_late(run: Result, reason: str) -> bool:
    """Whether LoadGen's latency verdict is the only reason against a run.

    A run that is too short or has too few queries is no effect of its neighbours or wrapper.
    """
    if not reason.startswith("LoadGen says INVALID"):
        return False
    return all(
        run.tested.keys.get(f"result_{name}") is not False
        for name in ("min_duration_met", "min_queries_met")
    )


def _is_only_short(tested: loadgen_log.Summary, params: Workload) -> bool:
    """Whether a fast run is INVALID only because it is short, as a smoke test is.

    Its few queries show no percentile, and Offline's one query may end early.
    """
    constraints = {
        name
        for name in ("perf_constraints_met", "min_duration_met", "min_queries_met")
        if tested.keys.get(f"result_{name}") is not False
    }
    if params.scenario == "offline":
        return params.fast and "min_queries_met" in constraints
    return (
        params.fast
        and len(constraints) == 3
        and tested.queries < needed(PERCENTILES[TAIL.get(params.scenario, "p90")])
    )


def weights_of(result: Result) -> str:
    """Return what the weights were: the digest of a file, or the seed of random ones."""
    model = result.raw.get("model", {})
    return str(model.get("weights_sha256") or model.get("weights"))


def caveats(results: Sequence[Result], params: Workload) -> dict[str, Any]:
    """Return coordinates that mark figures as fast, or of unverified weights."""
    coords: dict[str, Any] = {}
    if params.fast:
        coords["fast"] = "not comparable"
        if not all(run.tested.valid for run in results):
            coords["loadgen"] = "INVALID"
    if any(run.raw.get("model", {}).get("weights_verified") is False for run in results):
        coords["weights"] = "unverified"
    return coords

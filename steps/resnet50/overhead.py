"""resnet50-overhead: the cost of a wrapper, library or pod, as paired interleaved runs."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import Field, model_validator

from perfdag.benchmark import contract
from perfdag.benchmark.contract import Gang, Metric, Output
from perfdag.outcome import Failed, Invalid, Measurement, VerdictWord, verdict
from perfdag.stats.design import blocks
from perfdag.stats.robust import student_t
from perfdag.steps.resnet50.benchmark import (
    MARKS,
    Result,
    Watch,
    WorkloadBenchmark,
    caveats,
    differences,
    expected,
    keeping_texts,
    program_argv,
    program_input,
    read,
)
from perfdag.steps.resnet50.params import Text, Workload

SIDES = {"A": "baseline", "B": "treatment"}


@dataclass(frozen=True)
class Overhead:
    """Relative cost of the treatment with its 95 % interval; 0.03 is 3 % more time a sample.

    `needed` is the number of pairs for a verdict.
    """

    mean: float
    low: float
    high: float
    pairs: int
    limit: float
    needed: int

    @property
    def verdict(self) -> VerdictWord:
        """Return passed if the interval is below the limit, failed if above, else inconclusive."""
        if self.high < self.limit:
            return "passed"
        return "failed" if self.low > self.limit else "inconclusive"


def overhead(costs: Sequence[float], limit: float) -> Overhead:
    """Analyse pairs: a cost is log(treatment / baseline), in seconds or 1 / rate.

    Use Student's t interval of the mean log ratio (n - 1 degrees of freedom). Raises ValueError
    below two pairs or if a value is not finite.
    """
    n = len(costs)
    if n < 2 or not all(math.isfinite(cost) for cost in costs):
        raise ValueError(f"{n} pairs: at least two with finite values are needed")
    mean, sigma = statistics.fmean(costs), statistics.stdev(costs)
    half = student_t(0.975, n - 1) * sigma / math.sqrt(n)
    return Overhead(
        math.expm1(mean),
        math.expm1(mean - half),
        math.expm1(mean + half),
        n,
        limit,
        _needed(mean, sigma, n, math.log1p(limit)),
    )


def _needed(mean: float, sigma: float, n: int, limit: float) -> int:
    """Return the pairs after which this mean and spread give a verdict; at most 9999."""
    gap = abs(mean - limit)
    for pairs in range(max(2, n), 10000):
        if student_t(0.975, pairs - 1) * sigma / math.sqrt(pairs) < gap:
            return pairs
    return 9999


class OverheadParams(Workload):
    """Baseline (plain) against treatment (wrapper, wrapper_env), in ABBA blocks."""

    pairs: int = Field(6, ge=2, le=200, description="pairs of one baseline and one treatment each")
    limit: float = Field(
        0.05, gt=0, lt=1, description="relative overhead that the treatment must stay under"
    )
    treatment_python: Text | None = Field(
        None,
        description="interpreter of the treatment if its path differs there,"
        " as in the pod that a wrapper enters; unset: python",
    )

    @model_validator(mode="after")
    def _treated(self) -> "OverheadParams":
        if not (self.wrapper or self.wrapper_env):
            raise ValueError("the treatment is not named: give wrapper (an argv) or wrapper_env")
        return self


class Resnet50Overhead(WorkloadBenchmark[OverheadParams]):
    """Overhead of a treatment on ResNet-50 inference, paired with the plain program in ABBA blocks.

    The treatment is an argv before the program, or an environment. The argv may be a runtime or
    `kubectl exec -i POD --`, with treatment_python if its interpreter has another path. The
    environment may be LD_PRELOAD of a vGPU layer. A runtime class is a key of the shape instead:
    `perfdag ab A.yaml B.yaml --submit` interleaves `resnet50` in both shapes. Their pods exist
    side by side, so each needs a device. Each run is a process of its own.

    Clock: LoadGen's, as in resnet50. It starts at a query's scheduled time and stops when its
    classes are known. The cost of a run is its tail latency (Server p99, SingleStream p90); in
    Offline it is the seconds of a sample.
    """

    name: ClassVar[str] = "resnet50-overhead"
    verdict: ClassVar[str] = "the 95 % interval of the overhead is below `limit`"
    Params: ClassVar[type[contract.Params]] = OverheadParams
    coords: ClassVar[tuple[str, ...]] = ("pair", "side", *MARKS)
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric(
            "overhead",
            "1",
            "lower",
            "relative cost of the treatment: 0.03 is 3 %",
            headline=True,
            lowest=-math.inf,
        ),
        Metric(
            "kept",
            "1",
            "higher",
            "what the program keeps under the treatment: cost of the"
            " baseline over that of the treatment",
        ),
        Metric(
            "overhead_bound", "1", "lower", "ends of its 95 % interval: low, high", lowest=-math.inf
        ),
        Metric(
            "pairs_needed",
            "1",
            "lower",
            "pairs that a verdict needs at this spread; with a verdict, at most the pairs measured",
        ),
        Metric("cost", "s", "lower", "cost of one run: tail latency, in Offline seconds a sample"),
        Metric(
            "valid",
            "1",
            "higher",
            "1: LoadGen reports VALID for a run; 0: INVALID. The treatment may be INVALID only"
            " for a broken latency bound",
            highest=1,
        ),
    )

    def seconds(self, params: OverheadParams) -> float:
        return 2 * params.pairs * expected(params)

    def argvs(self, params: OverheadParams) -> list[list[str]]:
        return [program_argv(params, wrapped=False), program_argv(params, params.treatment_python)]

    def measure(self, gang: Gang, params: OverheadParams, watch: Watch) -> list[Result]:
        host, spec, texts = gang.hosts[0], program_input(params), gang.output.texts
        argvs = dict(zip("AB", self.argvs(params), strict=True))
        order = "".join(blocks(math.ceil(params.pairs / 2), params.seed))[: 2 * params.pairs]
        texts["order"], runs = order, list[Result]()
        for number, side in enumerate(order):
            with keeping_texts(texts, f"run {number + 1} of {len(order)} ({SIDES[side]})"):
                finished = host.run(argvs[side], timeout=gang.timeout, stdin=spec)
                runs.append(watch.keep(texts, f"{number:03}{side}", host, finished))
        return runs

    def parse(self, output: Output, params: OverheadParams) -> list[Measurement]:
        order = output.texts.get("order", "")
        if len(order) != 2 * params.pairs or order.count("A") != params.pairs:
            raise Failed(
                f"{params.pairs} pairs were requested,"
                f" the order of the runs is {order or 'absent'}",
                output.texts,
            )
        runs = [read(output.texts.get(f"{n:03}{side}", "")) for n, side in enumerate(order)]
        by_side = {
            side: [run for run, own in zip(runs, order, strict=True) if own == side]
            for side in SIDES
        }
        costs = {side: [run.cost(params.scenario) for run in own] for side, own in by_side.items()}
        ratios = [math.log(b / a) for a, b in zip(costs["A"], costs["B"], strict=True)]
        judged, coords = overhead(ratios, params.limit), caveats(runs, params)
        n = judged.pairs
        values = [
            Measurement("overhead", judged.mean, "mean", coords, n),
            Measurement("kept", 1 / (1 + judged.mean), "mean", coords, n),
            Measurement("overhead_bound", judged.low, "low", coords, n),
            Measurement("overhead_bound", judged.high, "high", coords, n),
            Measurement("pairs_needed", judged.needed, coords=coords, n=n),
        ]
        for side, own in by_side.items():
            for pair, run in enumerate(own):
                at = {"side": SIDES[side], "pair": pair, **coords}
                values.append(Measurement("cost", costs[side][pair], coords=at))
                values.append(Measurement("valid", float(run.tested.valid), coords=at))
        reasons = [*_faults(runs, order, params), *differences(runs)]
        if reason := output.facts.get("against"):
            reasons.append(str(reason))
        if reasons:
            raise Invalid("; ".join(reasons[:3]), output.texts, values)
        return [*values, _verdict(judged, coords)]


def _faults(runs: Sequence[Result], order: str, params: OverheadParams) -> list[str]:
    """Return why single runs are not what they claim."""
    reasons = []
    for number, (side, run) in enumerate(zip(order, runs, strict=True), 1):
        reason = run.fault(params)
        # A bound that the treatment breaks is part of its cost.
        if reason and not (side == "B" and run.only_late(reason)):
            reasons.append(f"run {number} ({SIDES[side]}): {reason}")
    return reasons


def _verdict(judged: Overhead, coords: Mapping[str, Any]) -> Measurement:
    note = (
        f"{judged.mean:.1%}, 95 % interval {judged.low:.1%} to {judged.high:.1%}, "
        f"{judged.pairs} pairs"
    )
    if judged.verdict == "inconclusive":
        note += f"; about {judged.needed} pairs would tell"
    return verdict(judged.verdict, f"overhead < {judged.limit:.3g}", note, coords)

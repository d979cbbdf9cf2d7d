"""resnet50-overhead: the cost of a wrapper, library or pod, as paired interleaved runs."""

import math
import statistics
from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field, model_validator

from perfdag.benchmark.contract import (
    Gang,
    Host,
    Invalid,
    Measurement,
    Metric,
    Output,
    VerdictWord,
    own_verdict,
    verdict,
)
from perfdag.stats.robust import blocks, student_t
from perfdag.steps.resnet50.benchmark import MARKS, WorkloadBenchmark, naming
from perfdag.steps.resnet50.workload import Result, Text, Workload, caveats, kept, read

SIDES = {"A": "baseline", "B": "treatment"}


def overhead(costs: Sequence[float], limit: float) -> tuple[float, float, float, int]:
    """Return mean, low and high of the treatment's relative cost, and the pairs for a verdict.

    A cost is log(treatment / baseline) of a pair, in seconds or 1 / rate; 0.03 is 3 % more time a
    sample. The 95 % interval is Student's t of the mean log ratio (n - 1 degrees of freedom). After
    that many pairs, at most 9999, this mean and spread give a verdict. Raises ValueError below two
    pairs.
    """
    n, mean, sigma = len(costs), statistics.fmean(costs), statistics.stdev(costs)

    def half(pairs: int) -> float:
        return student_t(pairs - 1) * sigma / math.sqrt(pairs)

    gap = abs(mean - math.log1p(limit))
    needed = next((pairs for pairs in range(n, 9999) if half(pairs) < gap), 9999)
    ends = (math.expm1(mean - half(n)), math.expm1(mean + half(n)))
    return math.expm1(mean), *ends, needed


def differences(results: Sequence[Result]) -> list[str]:
    """Return why runs differ by more than the treatment: device, versions, threads or weights."""
    known = dict[str, set[str]]()
    for run in results:
        model = run.raw.get("model", {})
        what = {
            "device": " ".join(filter(None, map(run.device.get, ("name", "uuid")))),
            **run.raw.get("versions", {}),
            "LoadGen": run.loadgen,
            "threads": model.get("threads"),
            "weights": model.get("weights"),
        }
        for name, value in what.items():
            known.setdefault(name, set()).add(str(value))
    return [
        f"{name} differs between the runs: {' and '.join(sorted(values))}"
        + (": set threads" if name == "threads" else "")
        for name, values in known.items()
        # gVisor, and Linux on ARM, do not name their CPU.
        if len(values - {"CPU: unknown"}) > 1
    ]


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

    coords: ClassVar[tuple[str, ...]] = ("pair", "side", *MARKS)
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric(
            "overhead",
            "1",
            "lower",
            "relative cost of the treatment: 0.03 is 3 %",
            headline=True,
            lowest=-math.inf,
            counts="share",
        ),
        Metric(
            "kept",
            "1",
            "higher",
            "what the program keeps under the treatment: cost of the"
            " baseline over that of the treatment",
            counts="share",
            label="speed kept",
        ),
        Metric(
            "overhead_bound",
            "1",
            "lower",
            "ends of its 95 % interval: low, high",
            lowest=-math.inf,
            counts="share",
            label="overhead",
        ),
        Metric(
            "pairs_needed",
            "1",
            "lower",
            "pairs that a verdict needs at this spread; with a verdict, at most the pairs measured",
        ),
        Metric(
            "cost",
            "s",
            "lower",
            "cost of one run: tail latency, in Offline seconds a sample",
            label="cost of a run",
        ),
        Metric(
            "valid",
            "1",
            "higher",
            "1: LoadGen reports VALID for a run; 0: INVALID. The treatment may be INVALID only"
            " for a broken latency bound",
            highest=1,
            label="valid by LoadGen",
        ),
        own_verdict("the 95 % interval of the overhead is below `limit`"),
    )

    def seconds(self, params: OverheadParams) -> float:
        return 2 * params.pairs * params.seconds()

    def argvs(self, params: OverheadParams) -> list[list[str]]:
        return [params.argv(wrapped=False), params.argv(params.treatment_python)]

    def measure(self, gang: Gang, params: OverheadParams) -> list[tuple[Host, Result]]:
        texts = gang.output.texts
        load = dict[str, float]()
        argvs = dict(zip("AB", self.argvs(params), strict=True))
        order = "".join(blocks(math.ceil(params.pairs / 2), params.seed))[: 2 * params.pairs]
        texts["order"] = order
        runs: list[tuple[Host, Result]] = []
        for number, side in enumerate(order):
            with naming(f"run {number + 1} of {len(order)} ({SIDES[side]})"):
                spec = params.stdin(**load)
                finished = gang.lead.run(argvs[side], timeout=gang.timeout, stdin=spec)
                result = kept(texts, f"{number:03}{side}", finished, params)
            runs.append((gang.lead, result))
            load = load or result.load(params)  # all runs get the load of the first one
        return runs

    def parse(self, output: Output, params: OverheadParams) -> list[Measurement]:
        order = output.texts["order"]
        runs = [read(output.texts[f"{n:03}{side}"]) for n, side in enumerate(order)]
        by_side: dict[str, list[Result]] = {side: [] for side in SIDES}
        for run, side in zip(runs, order, strict=True):
            by_side[side].append(run)
        pairs = zip(by_side["A"], by_side["B"], strict=True)
        scenario = params.scenario
        ratios = [math.log(b.cost(scenario) / a.cost(scenario)) for a, b in pairs]
        mean, low, high, needed = overhead(ratios, params.limit)
        n = params.pairs
        coords = caveats(runs, params)
        values = [
            Measurement("overhead", mean, "mean", coords, n),
            Measurement("kept", 1 / (1 + mean), "mean", coords, n),
            Measurement("overhead_bound", low, "low", coords, n),
            Measurement("overhead_bound", high, "high", coords, n),
            Measurement("pairs_needed", needed, coords=coords, n=n),
        ]
        for side, of_side in by_side.items():
            for pair, run in enumerate(of_side):
                at = {"side": SIDES[side], "pair": pair, **coords}
                values += [
                    Measurement("cost", run.cost(scenario), coords=at),
                    Measurement("valid", float(run.valid), coords=at),
                ]
        reasons = [
            f"run {number} ({SIDES[side]}): {reason}"
            for number, (side, run) in enumerate(zip(order, runs, strict=True), 1)
            # A bound that the treatment breaks is part of its cost.
            if (reason := run.fault(params)) and not (side == "B" and run.only_late(reason))
        ]
        reasons += [*differences(runs), *filter(None, [output.facts.get("against")])]
        if reasons:
            raise Invalid("; ".join(reasons[:3]), output.texts, values)
        note = f"{mean:.1%}, 95 % interval {low:.1%} to {high:.1%}, {n} pairs"
        decided: VerdictWord = "passed" if high < params.limit else "failed"
        if low <= params.limit <= high:
            decided = "inconclusive"
            note += f"; about {needed} pairs would tell"
        return [*values, verdict(decided, f"overhead < {params.limit:.3g}", note, coords)]

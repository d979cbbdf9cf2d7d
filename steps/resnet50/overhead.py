"""resnet50-overhead: what a wrapper, a preloaded library or a pod costs: baseline against treatment, paired and interleaved."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from perfdag import benchmark
from perfdag.benchmark import Benchmark, Failed, Gang, Invalid, Measurement, Metric, Output, Tool
from perfdag.shape import Shape
from perfdag.stats.paired import blocks
from perfdag.steps.resnet50 import preload, result, start
from perfdag.steps.resnet50.benchmark import check, expected, missing, said, shortest, versions
from perfdag.steps.resnet50.params import OverheadParams

CONFIDENCE = 0.95
UNNAMED = "CPU: unknown"


@dataclass(frozen=True)
class Overhead:
    """Relative cost of the treatment (0.03: 3 % less rate, or 3 % more latency) with its 95 % interval; `needed` pairs for a verdict."""

    mean: float
    low: float
    high: float
    pairs: int
    limit: float
    needed: int

    @property
    def verdict(self) -> str:
        """passes: the whole interval is below the limit; fails: it is above; else inconclusive, with the pairs it would take."""
        if self.high < self.limit:
            return "passes"
        if self.low > self.limit:
            return "fails"
        return f"inconclusive: about {self.needed} pairs would tell"


def overhead(costs: Sequence[float], limit: float) -> Overhead:
    """Analyse pairs: `costs` are log(cost of treatment / cost of baseline), a pair each (cost: seconds, or 1 / rate).

    Student's t interval of the mean log ratio (n - 1 degrees of freedom). Raises ValueError below two pairs or for a value not finite.
    """
    n = len(costs)
    if n < 2 or not all(math.isfinite(cost) for cost in costs):
        raise ValueError(f"{n} pairs: at least two with finite values are needed")
    mean, sigma = statistics.fmean(costs), statistics.stdev(costs)
    half = student(n - 1) * sigma / math.sqrt(n)
    return Overhead(
        math.expm1(mean),
        math.expm1(mean - half),
        math.expm1(mean + half),
        n,
        limit,
        _needed(mean, sigma, n, math.log1p(limit)),
    )


def _needed(mean: float, sigma: float, n: int, limit: float) -> int:
    """Pairs at which the interval of this mean and spread would leave the limit; at most 9999."""
    gap = abs(mean - limit)
    for pairs in range(max(2, n), 10000):
        if student(pairs - 1) * sigma / math.sqrt(pairs) < gap:
            return pairs
    return 9999


def student(freedom: int) -> float:
    """97.5 % quantile of Student's t: a table up to 8 degrees of freedom, then the Cornish-Fisher expansion (error below 0.1 %).

    Source: Abramowitz and Stegun 26.7.5.
    """
    table = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060)
    if freedom <= len(table):
        return table[freedom - 1]
    z, v = 1.959964, freedom
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / v + second / v**2 + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384 / v**3


class Resnet50Overhead(Benchmark[OverheadParams]):
    """Overhead of a treatment (wrapper or environment) on ResNet-50 inference, paired with the plain program in ABBA blocks.

    The treatment is an argv before the program (a runtime, `kubectl exec -i POD --`, with treatment_python where its interpreter lies
    elsewhere) or an environment (LD_PRELOAD of a vGPU layer). A runtime class is a key of the shape: `perfdag ab A.yaml B.yaml --submit` interleaves
    `resnet50` in both shapes, whose pods stand side by side and so need a device each. Each run is a process of its own.

    Clock: LoadGen's, as in resnet50: it starts with a query's scheduled time and stops when its classes are known. The cost of a run is its
    tail latency (Server p99, SingleStream p90), or in Offline seconds a sample.
    """

    name: ClassVar[str] = "resnet50-overhead"
    image: ClassVar[str] = "resnet50"
    canaries: ClassVar[tuple[str, ...]] = ("cpu", "memory")
    Params: ClassVar[type[benchmark.Params]] = OverheadParams
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric(
            "overhead", "1", "lower", "relative cost of the treatment: 0.03 is 3 %", headline=True
        ),
        Metric("overhead_bound", "1", "lower", "ends of its 95 % interval: low, high"),
        Metric(
            "pairs_needed",
            "1",
            "lower",
            "pairs that a verdict takes at this spread; at most the pairs measured where there is one",
        ),
        Metric(
            "passes",
            "1",
            "higher",
            "1: the interval is below the limit; 0: above; 0.5: inconclusive",
        ),
        Metric("cost", "s", "lower", "of one run: tail latency, in Offline seconds a sample"),
        Metric(
            "valid",
            "1",
            "higher",
            "1: LoadGen says VALID of a run; 0: INVALID, which of the treatment a broken latency bound alone may be",
        ),
    )

    def check(self, params: OverheadParams, shape: Shape) -> list[str]:
        return check(params, shape)

    def seconds(self, params: OverheadParams) -> float:
        return 2 * params.pairs * expected(params)

    def least_seconds(self, params: OverheadParams) -> float:
        return shortest(params)

    def longest(self, params: OverheadParams, timeout: float) -> float:
        return 2 * params.pairs * timeout  # each run has the whole timeout

    def missing(self, gang: Gang, params: OverheadParams) -> list[Tool]:
        tools = missing(gang, params, wrapped=False)
        if not tools:
            behind = f" behind {params.wrapper[0] if params.wrapper else 'wrapper_env'}"
            tools = start.absent(
                gang.hosts[0], params, behind, params.treatment_python, start.before(params)
            )
        return tools

    def run(self, gang: Gang, params: OverheadParams) -> Output:
        host, given, plain = gang.hosts[0], start.spec(params), start.plain(params)
        wrapped = [*start.before(params), *start.plain(params, params.treatment_python)]
        order = "".join(blocks(math.ceil(params.pairs / 2), params.seed))[: 2 * params.pairs]
        texts: dict[str, str] = {"order": order}
        runs: list[result.Result] = []
        with start.watched([host], params) as watch:
            for number, side in enumerate(order):
                treated = side == "B"
                with start.kept(
                    texts,
                    f"run {number + 1} of {len(order)} ({'treatment' if treated else 'baseline'})",
                ):
                    finished = host.run(
                        wrapped if treated else plain, timeout=gang.timeout, stdin=given
                    )
                    texts |= start.stderr(f"{number:03}{side}", finished)
                    texts[f"{number:03}{side}"] = watch.ran(host, finished)
                    runs.append(result.read(texts[f"{number:03}{side}"]))
        facts = {**said(texts), **watch.facts, "sides": sides(runs, order)}
        return Output(texts, [plain, wrapped], versions(texts["000" + order[0]]), facts)

    def parse(self, output: Output, params: OverheadParams) -> list[Measurement]:
        order = output.texts.get("order", "")
        if len(order) != 2 * params.pairs or order.count("A") != params.pairs:
            raise Failed(
                f"{params.pairs} pairs were asked, the order of what ran is {order or 'absent'}",
                output.texts,
            )
        runs = [
            result.read(output.texts.get(f"{number:03}{side}", ""))
            for number, side in enumerate(order)
        ]
        costs: dict[str, list[float]] = {"A": [], "B": []}
        valid: dict[str, list[bool]] = {"A": [], "B": []}
        for side, found in zip(order, runs, strict=True):
            costs[side].append(found.cost(params.scenario))
            valid[side].append(found.valid)
        reasons = _against(runs, order, params)
        if reason := output.facts.get("against"):
            reasons.append(str(reason))
        judged = overhead(
            [math.log(b / a) for a, b in zip(costs["A"], costs["B"], strict=True)], params.limit
        )
        values = _values(judged, costs, valid, result.marks(runs, params))
        if reasons:
            raise Invalid("; ".join(reasons[:3]), output.texts, values)
        return values

    def series(self, output: Output) -> str:
        return output.tool


def _against(runs: Sequence[result.Result], order: str, params: OverheadParams) -> list[str]:
    """Why the figures are not what the treatment costs."""
    reasons: list[str] = []
    for number, (side, found) in enumerate(zip(order, runs, strict=True), 1):
        reason = result.wrong(found, params, treated=side == "B")
        # a bound that the treatment breaks is what it costs
        if reason and not (side == "B" and result.merely_late(found, reason)):
            reasons.append(f"run {number} ({'treatment' if side == 'B' else 'baseline'}): {reason}")
    plain, treated = (
        [each.raw for side, each in zip(order, runs, strict=True) if side == which]
        for which in "AB"
    )
    reasons += _layers(plain, treated, params)
    if len(weights := {result.weights(each) for each in runs}) > 1:
        reasons.append(
            f"baseline and treatment ran different weights: {', '.join(sorted(weights))}"
        )
    return reasons + _apart(sides(runs, order))


def _layers(
    plain: Sequence[Mapping[str, Any]], treated: Sequence[Mapping[str, Any]], params: OverheadParams
) -> list[str]:
    """Why libraries of LD_PRELOAD do not part the sides: the baseline has them too, or a wrapper names one that no run has."""
    named = preload.entries(params.wrapper_env.get("LD_PRELOAD", ""))
    both = [entry for entry in named if any(raw.get("preloaded", {}).get(entry) for raw in plain)]
    reasons = [
        f"the baseline has {entry} too, by an LD_PRELOAD of perfdag's own environment: take it out there"
        for entry in both
    ]
    lost = sorted(preload.ignored(treated) - preload.ignored(plain) - set(named))
    return reasons + [
        f"LD_PRELOAD {entry} was not loaded into the treatment: mend its path as the program sees it"
        for entry in lost
    ]


def sides(runs: Sequence[result.Result], order: str) -> dict[str, dict[str, list[str]]]:
    """On what the runs of each side ran: the device by name and uuid, versions, threads; several texts where its runs differ."""
    found: dict[str, dict[str, set[str]]] = {}
    for side, run in zip(order, runs, strict=True):
        device, raw = run.raw.get("device", {}), run.raw
        what = {
            "device": " ".join(str(device[name]) for name in ("name", "uuid") if device.get(name)),
            "torch": raw.get("versions", {}).get("torch"),
            "torchvision": raw.get("versions", {}).get("torchvision"),
            "LoadGen": run.tested.version.split()[0] if run.tested else None,
            "threads": raw.get("model", {}).get("threads"),
        }
        for name, text in what.items():
            found.setdefault("baseline" if side == "A" else "treatment", {}).setdefault(
                name, set()
            ).add(str(text))
    return {
        side: {name: sorted(texts) for name, texts in each.items()} for side, each in found.items()
    }


def _apart(found: Mapping[str, Mapping[str, list[str]]]) -> list[str]:
    """Why the sides differ by more than the treatment."""
    reasons = []
    for name, plain in found["baseline"].items():
        treated = found["treatment"][name]
        # gVisor, and Linux on ARM, do not name their CPU
        if len({*plain, *treated} - {UNNAMED}) > 1:
            mend = ": set threads" if name == "threads" else ""
            reasons.append(
                f"{name} is {' and '.join(plain)} in the baseline and {' and '.join(treated)} in the treatment{mend}"
            )
    return reasons


def _values(
    judged: Overhead,
    costs: dict[str, list[float]],
    valid: dict[str, list[bool]],
    marks: dict[str, Any],
) -> "list[Measurement]":
    passes = {"passes": 1.0, "fails": 0.0}.get(judged.verdict, 0.5)
    return [
        Measurement("overhead", judged.mean, "mean", marks, judged.pairs),
        Measurement("overhead_bound", judged.low, "low", marks, judged.pairs),
        Measurement("overhead_bound", judged.high, "high", marks, judged.pairs),
        Measurement("pairs_needed", judged.needed, coords=marks, n=judged.pairs),
        Measurement("passes", passes, coords=marks, n=judged.pairs),
        *(
            Measurement(metric, float(value), coords={"side": name, "pair": number, **marks})
            for metric, found in (("cost", costs), ("valid", valid))
            for side, name in (("A", "baseline"), ("B", "treatment"))
            for number, value in enumerate(found[side])
        ),
    ]

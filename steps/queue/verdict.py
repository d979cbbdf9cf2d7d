"""The result of a validation: steps, work by node and device, fitted laws, and all as text."""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any

import numpy as np

from perfdag.hosts.gpu_use import DeviceUse
from perfdag.outcome import VERDICT_VALUES, Measurement, VerdictWord, verdict
from perfdag.steps.queue.steady_state import Rate, Stats, ratio

_COLUMNS: tuple[Callable[[float], float], ...] = (
    lambda n: 1.0,
    lambda n: n - 1,
    lambda n: n * (n - 1),
)
SATURATED = 0.95
"""Utilisation from which a device counts as saturated."""
SLOW = 1.25
"""Seconds of an item, relative to the other devices or to the step before, that are named."""


@dataclass(frozen=True)
class ScalabilityLaw:
    """Parameters of a fit.

    `rate`: items a second of one replica; `error`: rms of the relative residuals.
    """

    rate: float
    sigma: float
    kappa: float
    error: float

    def as_json(self) -> dict[str, float]:
        """Return the parameters as plain numbers."""
        return {
            "rate_per_second": self.rate,
            "sigma": self.sigma,
            "kappa": self.kappa,
            "relative_error": self.error,
        }


def fit(points: Sequence[tuple[int, float]], coherence: bool = True) -> ScalabilityLaw | None:
    """Fit a law to (replicas, items a second); without `coherence`, Amdahl's.

    Return None with fewer distinct numbers of replicas than parameters.
    """
    points = [(n, x) for n, x in points if n > 0 and x > 0]
    count = 3 if coherence else 2
    if len({n for n, _ in points}) < count:
        return None
    best, rest = np.zeros(count), math.inf
    # The best fit without a negative parameter is that of the parameters that are not zero.
    for size in range(1, count + 1):
        for free in combinations(range(count), size):
            rows = np.array([[_COLUMNS[i](n) * x / n for i in free] for n, x in points])
            solved, _, rank, _ = np.linalg.lstsq(rows, np.ones(len(points)))
            squares = float(((1 - rows @ solved) ** 2).sum())
            if rank == size and solved.min() >= 0 and squares < rest:
                best, rest = np.zeros(count), squares
                best[list(free)] = solved
    a, b, c = (*map(float, best), 0.0)[:3]
    return ScalabilityLaw(1 / a, b / a, c / a, math.sqrt(rest / len(points)))


def subject(node: str, device: str) -> str:
    """Return the subject of a row: a node, or one of its devices."""
    return f"{node}/{device}" if device else node


def item_seconds(nodes: Mapping[str, Any]) -> dict[str, float]:
    """Return the mean seconds of an item by subject. Clients of older versions have none."""
    return {
        subject(name, device): seconds / node["devices"][device]
        for name, node in sorted(nodes.items())
        for device, seconds in node.get("run_seconds", {}).items()
        if node["devices"].get(device)
    }


def limits(
    items: Mapping[str, float], before: Mapping[str, float], uses: Mapping[str, DeviceUse]
) -> str:
    """Name the devices that limit a step: saturated, slower than others, or than before.

    `items` and `before`: seconds of an item by subject, in the step and in the one before.
    Return "" if no device stands out.
    """
    texts = [
        f"{name} is saturated ({100 * use.utilisation:.0f} % busy)"
        for name, use in uses.items()
        if use.utilisation is not None and use.utilisation >= SATURATED
    ]
    for name, seconds in items.items():
        others = [other for key, other in items.items() if key != name]
        if others and seconds > SLOW * (usual := statistics.median(others)):
            texts.append(
                f"{name} is slow (an item takes {seconds:.3g} s, on the others {usual:.3g} s)"
            )
    if not texts:
        texts = [
            f"an item takes {seconds / before[name]:.2f} times as long on {name} as in the step "
            "before"
            for name, seconds in items.items()
            if name in before and seconds > SLOW * before[name]
        ]
    return "; ".join(texts)


def failures_by_subject(nodes: Mapping[str, Any]) -> dict[str, int]:
    """Return failed requests by subject, most first.

    Requests that reached no backend have no subject.
    """
    counts = {
        subject(name, device): count
        for name, node in nodes.items()
        for device, count in node["failed_devices"].items()
    }
    return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))


def failure_hint(stats: Stats) -> str:
    """Return the most frequent error of backends and the suspect devices, as text."""
    errors: Counter[str] = Counter()
    for node in stats["nodes"].values():
        errors.update(node["errors"])
    hint = f": {errors.most_common(1)[0][0]}" if errors else ""
    return hint + (f"; most on {' and '.join(stats['suspects'])}" if stats["suspects"] else "")


def count_pods(stats: Stats) -> int:
    """Return the number of backends that completed an item."""
    return sum(len(node["pods"]) for node in stats["nodes"].values())


def work_by_node(stats: Stats) -> dict[str, Any]:
    """Return completed and failed items by node and device."""
    return {
        name: {
            "success": node["success"],
            "failure": node["failure"],
            "devices": node["devices"],
            "failed_devices": node["failed_devices"],
            "pods": len(node["pods"]),
        }
        for name, node in sorted(stats["nodes"].items())
    }


@dataclass(frozen=True)
class ReplicaMeasurement:
    """One measurement of a number of replicas.

    `lost`: replicas that ended by themselves, "" for none. `problems`: why it does not count.
    `devices`: their use meanwhile, as far as it is known.
    """

    replicas: int
    rate: Rate
    lost: str
    problems: list[str]
    devices: Mapping[str, DeviceUse] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """One number of replicas: its measurements as one rate.

    `ratio`: to the next lower step, with its 95 % interval. `needed`: the least ratio.
    `lost`: replicas that ended by themselves, "" for none. `devices`: their use.
    `items`: seconds of an item by node or device. `limits`: which devices limit the step.
    """

    replicas: int
    rate: Rate
    efficiency: float
    ratio: tuple[float, float, float] | None
    needed: float
    failures: int
    failed: dict[str, int]
    lost: str
    problems: list[str]
    devices: Mapping[str, DeviceUse]
    items: dict[str, float]
    limits: str

    @property
    def word(self) -> VerdictWord:
        """Return the verdict on the interval of the ratio; without one the step passes."""
        if self.problems or (self.ratio and self.ratio[2] < self.needed):
            return "failed"
        return "inconclusive" if self.ratio and self.ratio[1] < self.needed else "passed"

    def as_json(self) -> dict[str, Any]:
        """Return the step with rates in items a second and times in seconds."""
        return {
            "replicas": self.replicas,
            "per_second": self.rate.per_second,
            "standard_error": self.rate.error if math.isfinite(self.rate.error) else None,
            "windows": list(self.rate.windows),
            "steady": self.rate.steady,
            "seconds": self.rate.seconds,
            "efficiency": self.efficiency,
            "ratio": [value if math.isfinite(value) else None for value in self.ratio]
            if self.ratio
            else None,
            "needed": self.needed,
            "latency": self.rate.stats["latency"],
            "failures": self.failures,
            "lost": self.lost,
            "failed": self.failed,
            "problems": self.problems,
            "devices": {name: asdict(use) for name, use in self.devices.items()},
            "item_seconds": self.items,
            "limits": self.limits,
            "verdict": self.word,
        }


def steps_of(measured: Sequence[ReplicaMeasurement], factor: float) -> list[Step]:
    """Return the steps in the order of their replicas.

    A step whose lower neighbour did no work has no ratio.
    """
    steps: list[Step] = []
    for one in sorted(measured, key=lambda one: one.replicas):
        below = steps[-1] if steps else None
        rate, nodes = one.rate, one.rate.stats["nodes"]
        items = item_seconds(nodes)
        base = steps[0].rate.per_second if steps else rate.per_second
        steps.append(
            Step(
                one.replicas,
                rate,
                rate.per_second / (one.replicas * base) if base else 0.0,
                ratio(rate, below.rate) if below and below.rate.per_second else None,
                factor ** math.log2(one.replicas / below.replicas) if below else 0.0,
                int(rate.stats["failure"]),
                failures_by_subject(nodes),
                one.lost,
                one.problems,
                one.devices,
                items,
                limits(items, below.items if below else {}, one.devices),
            )
        )
    return steps


@dataclass
class Verdict:
    """All measurements in their order; `factor` as in the plan."""

    factor: float
    measured: list[ReplicaMeasurement] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def steps(self) -> list[Step]:
        return steps_of(self.measured, self.factor)

    @property
    def word(self) -> VerdictWord:
        steps = self.steps
        if not steps or any(step.problems for step in steps):
            return "failed"
        return min((step.word for step in steps), key=VERDICT_VALUES.__getitem__)

    @property
    def nodes(self) -> dict[str, Any]:
        """Return the work by node of the first measurement of the most replicas."""
        most = max(self.measured, key=lambda one: one.replicas, default=None)
        return work_by_node(most.rate.stats) if most else {}

    def laws(self) -> dict[str, ScalabilityLaw | None]:
        """Return the laws fitted to all measurements, None with too few steps."""
        points = [(one.replicas, one.rate.per_second) for one in self.measured]
        return {"amdahl": fit(points, coherence=False), "usl": fit(points)}

    def as_json(self) -> dict[str, Any]:
        """Return the verdict, its steps, all rates in the order measured, and the laws."""
        return {
            "verdict": self.word,
            "seconds": self.seconds,
            "steps": [step.as_json() for step in self.steps],
            "measured": [[one.replicas, one.rate.per_second] for one in self.measured],
            **{name: law.as_json() if law else None for name, law in self.laws().items()},
            "nodes": self.nodes,
        }


def measured_line(one: ReplicaMeasurement) -> str:
    """Return a measurement as one line."""
    text = f"{one.replicas:>4} replicas: {one.rate.per_second:.4g}/s"
    if math.isfinite(one.rate.error):
        text += f" +- {one.rate.error:.2g}"
    text += f" after {one.rate.seconds:.1f} s"
    return text + (f"  FAIL: {'; '.join(one.problems)}" if one.problems else "")


def step_line(step: Step) -> str:
    """Return a step and its verdict as one line."""
    text = f"{step.replicas:>4} replicas: {step.rate.per_second:.4g}/s"
    text += f", efficiency {100 * step.efficiency:.1f} %"
    if step.ratio:
        value, low, high = step.ratio
        text += (
            f", {value:.3f} times the step before (95 % {low:.3f} to {high:.3f}; "
            f"{step.needed:.3f} needed)"
        )
    if step.word == "passed":
        return text
    why = [*step.problems, *([step.limits] if step.limits else [])]
    return f"{text}  {step.word.upper()}" + (f": {'; '.join(why)}" if why else "")


def law_line(name: str, law: ScalabilityLaw | None) -> str:
    """Return a fitted law as one line."""
    if law is None:
        return f"{name}: too few steps to fit"
    return (
        f"{name}: serial share {law.sigma:.4f}, coherence {law.kappa:.6f} "
        f"(residual {100 * law.error:.2f} %)"
    )


def summary(verdict: Verdict) -> str:
    """Return steps, laws, work by node and verdict as text."""
    steps, laws = verdict.steps, verdict.laws()
    lines = [step_line(step) for step in steps]
    lines += [law_line("Amdahl", laws["amdahl"]), law_line("USL", laws["usl"])]
    for name, node in verdict.nodes.items():
        done, failed = Counter(node["devices"]), Counter(node["failed_devices"])
        shares = ", ".join(
            f"{device or '-'} {done[device]}"
            + (f" ({failed[device]} failed)" if failed[device] else "")
            for device in sorted({*done, *failed})
        )
        lines.append(
            f"node {name}: {node['success']} done, {node['failure']} failed, "
            f"{node['pods']} pods; devices: {shares}"
        )
    word = verdict.word
    count = sum(step.word == word for step in steps)
    where = "" if word == "passed" or not count else f" ({count} of {len(steps)} steps)"
    lines.append(word.upper() + where)
    return "\n".join(lines)


def scaling_verdict(result: Any, factor: float) -> Measurement:
    """Return the validator's verdict, with the step that decided it."""
    rule = f"throughput grows {factor:g} times with each doubling"
    steps = result["steps"]
    if failed := [step for step in steps if step["problems"]]:
        note = f"at {failed[0]['replicas']} replicas {'; '.join(failed[0]['problems'])}"
        return verdict("failed", rule, f"{note} ({len(failed)} of {len(steps)} steps)")
    grown = [step for step in steps if step["ratio"]]
    if not grown:
        return verdict("inconclusive", rule, "one step has nothing to compare with: raise limit")
    # The step whose interval leaves the least room decides.
    step = min(grown, key=lambda step: step["ratio"][1] / step["needed"])
    ratio, low, high = step["ratio"]
    note = (
        f"{ratio:.3f} times at {step['replicas']} replicas (95 % {low:.3f} to "
        f"{high:.3f}), {step['needed']:.3f} needed"
    )
    if result["verdict"] != "passed" and step.get("limits"):
        note += f"; {step['limits']}"
    return verdict(result["verdict"], rule, note)


def measurements_of(result: Any) -> list[Measurement]:
    """Return the measurements of all steps, and those of the fitted laws."""
    measurements = []
    for step in result["steps"]:
        at = {"replicas": step["replicas"]}
        measurements.append(
            Measurement("throughput", step["per_second"], coords=at, n=len(step["windows"]))
        )
        measurements.append(Measurement("efficiency", step["efficiency"], coords=at))
        latency = step["latency"]
        measurements += [
            Measurement("latency", latency[p], p, at, latency["count"])
            for p in ("p50", "p95", "p99")
            if latency.get(p) is not None
        ]
        if step["ratio"]:
            stats = zip(("value", "lower", "upper"), step["ratio"], strict=True)
            measurements += [
                Measurement("gain", value, stat, at) for stat, value in stats if value is not None
            ]
        measurements += [
            Measurement("item_time", seconds, coords=at, subject=where)
            for where, seconds in step.get("item_seconds", {}).items()
        ]
        measurements += [
            Measurement(f"device_{figure}", value, coords=at, subject=device)
            for device, use in step.get("devices", {}).items()
            for figure, value in use.items()
            if value is not None
        ]
        if step["failures"]:
            measurements += [
                Measurement("failures", float(count), coords=at, subject=where)
                for where, count in step["failed"].items()
            ]
    for node, spread in result["nodes"].items():
        for device, count in spread["devices"].items():
            measurements.append(Measurement("items", float(count), subject=subject(node, device)))
    if amdahl := result["amdahl"]:
        measurements.append(Measurement("amdahl_share", amdahl["sigma"]))
    if usl := result["usl"]:
        measurements.append(Measurement("single_rate", usl["rate_per_second"]))
        measurements.append(Measurement("serial_share", usl["sigma"]))
        measurements.append(Measurement("coherence", usl["kappa"]))
    return measurements

"""The result of a validation: steps, work by node and device, fitted laws, and all as text."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from perfdag.hosts.device_use import DeviceUse
from perfdag.outcome import VERDICT_VALUES, VerdictWord
from perfdag.steps.queue.validate.devices import item_seconds, limits, subject
from perfdag.steps.queue.validate.scalability_laws import ScalabilityLaw, fit
from perfdag.steps.queue.validate.steady_state import Rate, Stats, ratio


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

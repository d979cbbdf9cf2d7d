"""The result of a validation: steps, work by node and device, fitted laws, and all as text."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from perfdag.steps.queue.validate import scalability_laws
from perfdag.steps.queue.validate.steady_state import Rate, Stats


def subject(node: str, device: str) -> str:
    """Return the subject of a row: a node, or one of its devices."""
    return f"{node}/{device}" if device else node


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
class Step:
    """The measurement of one number of replicas.

    ``ratio``: to the previous step, with its 95 % interval. ``needed``: the least ratio.
    ``lost``: replicas that ended by themselves, "" for none.
    """

    replicas: int
    rate: Rate
    efficiency: float
    ratio: tuple[float, float, float] | None
    needed: float
    failures: int
    lost: str
    problems: list[str]

    @property
    def passed(self) -> bool:
        return not self.problems

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
            "failed": failures_by_subject(self.rate.stats["nodes"]),
            "problems": self.problems,
        }


@dataclass
class Verdict:
    """All steps, and the work by node of the last step."""

    steps: list[Step] = field(default_factory=list)
    spread: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return bool(self.steps) and all(step.passed for step in self.steps)

    def points(self) -> list[tuple[int, float]]:
        return [(step.replicas, step.rate.per_second) for step in self.steps]

    def as_json(self) -> dict[str, Any]:
        amdahl, usl = (
            scalability_laws.fit(self.points(), coherence=False),
            scalability_laws.fit(self.points()),
        )
        return {
            "verdict": "PASS" if self.passed else "FAIL",
            "seconds": self.seconds,
            "steps": [step.as_json() for step in self.steps],
            "amdahl": amdahl.as_json() if amdahl else None,
            "usl": usl.as_json() if usl else None,
            "nodes": self.spread,
        }


def step_line(step: Step) -> str:
    """Return a step as one line."""
    text = f"{step.replicas:>4} replicas: {step.rate.per_second:.4g}/s"
    if math.isfinite(step.rate.error):
        text += f" +- {step.rate.error:.2g}"
    text += f" after {step.rate.seconds:.1f} s, efficiency {100 * step.efficiency:.1f} %"
    if step.ratio:
        value, low, high = step.ratio
        text += (
            f", {value:.3f} times the step before (95 % {low:.3f} to {high:.3f}; "
            f"{step.needed:.3f} needed)"
        )
        if step.passed and low < step.needed:
            text += " [interval reaches below]"
    return text + (f"  FAIL: {'; '.join(step.problems)}" if step.problems else "")


def summary(verdict: Verdict) -> str:
    """Return laws, work by node and verdict as text."""
    lines = []
    for name, fitted in (
        ("Amdahl", scalability_laws.fit(verdict.points(), coherence=False)),
        ("USL", scalability_laws.fit(verdict.points())),
    ):
        if fitted is None:
            lines.append(f"{name}: too few steps to fit")
            continue
        knee = f"knee at {fitted.knee:.0f} replicas" if fitted.knee else "no knee"
        most = f"at most {fitted.ceiling:.4g}/s" if fitted.ceiling else "no ceiling"
        lines.append(
            f"{name}: serial share {fitted.sigma:.4f}, coherence {fitted.kappa:.6f}, "
            f"{knee}, {most} (residual {100 * fitted.error:.2f} %)"
        )
    for name, node in verdict.spread.items():
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
    fails = sum(not step.passed for step in verdict.steps)
    lines.append("PASS" if verdict.passed else f"FAIL ({fails} of {len(verdict.steps)} steps)")
    return "\n".join(lines)

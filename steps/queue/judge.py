"""The verdict on measured steps, the fitted laws of scaling, and both as rows and as text."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from perfdag.outcome import VERDICT_VALUES, Measurement, VerdictWord, verdict
from perfdag.stats.robust import student_t

Step = dict[str, Any]
"""One number of replicas: `replicas`, `per_second`, `windows` (their rates), `steady`, `problems`
(why it does not count), `failures`, `lost` and what else `validate.measure` returns."""
Result = dict[str, Any]
"""The judged steps in the order of their replicas, the verdict and the fitted laws, as JSON."""


def judge(measured: Iterable[Step], factor: float) -> Result:
    """Return the verdict on steps: a step needs `factor` times the rate for each doubling.

    A step fails with a problem, or if the whole 95 % interval of its rate over the step before lies
    below what is needed. It is inconclusive if a part does. The first step, and one whose lower
    neighbour did no work, have no ratio and pass. The worst step decides.
    """
    steps, nodes = list[Step](), dict[str, Any]()
    for one in sorted(measured, key=lambda step: step["replicas"]):
        step, below = {**one}, steps[-1] if steps else one
        nodes = step.pop("nodes", {})
        rate, base = one["per_second"], steps[0]["per_second"] if steps else one["per_second"]
        step["efficiency"] = rate / (one["replicas"] * base) if base else 0.0
        step["needed"] = factor ** math.log2(one["replicas"] / below["replicas"]) if steps else 0.0
        low, high, step["ratio"] = math.inf, math.inf, None
        if steps and below["per_second"]:
            value, low, high = ratio(one["windows"], below["windows"])
            step["ratio"] = [value, low, high if math.isfinite(high) else None]
        failed = step["problems"] or high < step["needed"]
        step["verdict"] = (
            "failed" if failed else "inconclusive" if low < step["needed"] else "passed"
        )
        steps.append(step)
    words: list[VerdictWord] = [step["verdict"] for step in steps]
    points = [(step["replicas"], step["per_second"]) for step in steps]
    return {
        "verdict": min(words, key=VERDICT_VALUES.__getitem__, default="failed"),
        "steps": steps,
        "amdahl": fit(points, coherence=False),
        "usl": fit(points),
        "nodes": nodes,
    }


def ratio(later: Sequence[float], earlier: Sequence[float]) -> tuple[float, float, float]:
    """Return the ratio of the mean rates of windows with its 95 % interval.

    The interval comes from the windows' spread, by the delta method on the logarithm.
    """
    value = statistics.fmean(later) / statistics.fmean(earlier) if later else 0.0
    freedom = min(len(later), len(earlier)) - 1
    if freedom < 1:
        return value, 0.0, math.inf
    errors = [
        statistics.stdev(rates) / math.sqrt(len(rates)) / statistics.fmean(rates)
        for rates in (later, earlier)
    ]
    width = min(50.0, student_t(0.975, freedom) * math.hypot(*errors))
    return value, value * math.exp(-width), value * math.exp(width)


def fit(points: Sequence[tuple[int, float]], coherence: bool = True) -> dict[str, float] | None:
    """Fit the Universal Scalability Law to (replicas, items a second); else Amdahl's.

    Return the rate of one replica, sigma, kappa, and the rms of the relative residuals; None with
    fewer distinct numbers of replicas than parameters.
    """
    points = [(n, x) for n, x in points if x > 0]
    count = 3 if coherence else 2
    if len({n for n, _ in points}) < count:
        return None
    # n/x is linear in 1, n - 1 and n (n - 1). The best fit without a negative parameter is that of
    # the parameters that are not zero.
    rows = np.array([[x / n, (n - 1) * x / n, (n - 1) * x][:count] for n, x in points])
    best, rest = np.zeros(3), math.inf
    for size in range(1, count + 1):
        for free in map(list, combinations(range(count), size)):
            solved, _, rank, _ = np.linalg.lstsq(rows[:, free], np.ones(len(points)))
            squares = float(((1 - rows[:, free] @ solved) ** 2).sum())
            if rank == size and solved.min() >= 0 and squares < rest:
                best, rest = np.zeros(3), squares
                best[free] = solved
    a, b, c = map(float, best)
    error = math.sqrt(rest / len(points))
    return {"rate_per_second": 1 / a, "sigma": b / a, "kappa": c / a, "relative_error": error}


def device_name(node: str, device: str) -> str:
    """Return the subject of a row: a node, or one of its devices."""
    return f"{node}/{device}" if device else node


def measurements_of(result: Result) -> list[Measurement]:
    """Return the measurements of all steps, and those of the fitted laws."""
    rows = list[Measurement]()
    for step in result["steps"]:
        at, latency = {"replicas": step["replicas"]}, step["latency"]

        def by_subject(
            metric: str, values: Mapping[str, float], at: dict[str, int] = at
        ) -> list[Measurement]:
            return [
                Measurement(metric, float(value), coords=at, subject=subject)
                for subject, value in values.items()
                if value is not None
            ]

        windows = len(step["windows"])
        rows.append(Measurement("throughput", step["per_second"], coords=at, n=windows))
        rows.append(Measurement("efficiency", step["efficiency"], coords=at))
        rows += [
            Measurement("latency", latency[p], p, at, latency["count"])
            for p in ("p50", "p95", "p99")
            if latency.get(p) is not None
        ]
        rows += [
            Measurement("gain", value, stat, at)
            for stat, value in zip(("value", "lower", "upper"), step["ratio"] or (), strict=False)
            if value is not None
        ]
        rows += by_subject("item_time", step.get("item_seconds", {}))
        for device, use in step.get("devices", {}).items():
            for figure, value in use.items():
                rows += by_subject(f"device_{figure}", {device: value})
        rows += by_subject("failures", step["failed"])
    rows += [
        Measurement("items", float(count), subject=device_name(node, device))
        for node, of in result["nodes"].items()
        for device, count in of["devices"].items()
    ]
    if amdahl := result["amdahl"]:
        rows.append(Measurement("amdahl_share", amdahl["sigma"]))
    if usl := result["usl"]:
        rows.append(Measurement("single_rate", usl["rate_per_second"]))
        rows.append(Measurement("serial_share", usl["sigma"]))
        rows.append(Measurement("coherence", usl["kappa"]))
    return rows


def scaling_verdict(result: Result, factor: float) -> Measurement:
    """Return the verdict as a row, with the step whose interval leaves the least room."""
    rule = f"throughput grows {factor:g} times with each doubling"
    steps = result["steps"]
    if failed := [step for step in steps if step["problems"]]:
        note = f"at {failed[0]['replicas']} replicas {'; '.join(failed[0]['problems'])}"
        return verdict("failed", rule, f"{note} ({len(failed)} of {len(steps)} steps)")
    grown = [step for step in steps if step["ratio"]]
    if not grown:
        return verdict("inconclusive", rule, "one step has nothing to compare with: raise limit")
    step = min(grown, key=lambda step: step["ratio"][1] / step["needed"])
    value, low, high = step["ratio"]
    note = (
        f"{value:.3f} times at {step['replicas']} replicas (95 % {low:.3f} to "
        f"{high or math.inf:.3f}), {step['needed']:.3f} needed"
    )
    return verdict(result["verdict"], rule, note)


def summary(result: Result) -> str:
    """Return steps, laws, work by node and verdict as text."""
    lines = []
    for step in result["steps"]:
        text = f"{step['replicas']:>4} replicas: {step['per_second']:.4g}/s"
        text += f", efficiency {100 * step['efficiency']:.1f} %"
        if step["ratio"]:
            value, low, high = step["ratio"]
            text += (
                f", {value:.3f} times the step before (95 % {low:.3f} to {high or math.inf:.3f}; "
                f"{step['needed']:.3f} needed)"
            )
        if step["verdict"] != "passed":
            text += f"  {': '.join([step['verdict'].upper(), *step['problems']])}"
        lines.append(text)
    for name, law in (("Amdahl", result["amdahl"]), ("USL", result["usl"])):
        lines.append(
            f"{name}: serial share {law['sigma']:.4f}, coherence {law['kappa']:.6f} "
            f"(residual {100 * law['relative_error']:.2f} %)"
            if law
            else f"{name}: too few steps to fit"
        )
    for name, node in sorted(result["nodes"].items()):
        devices = {device: [count, 0] for device, count in node["devices"].items()}
        for device, count in node["failed_devices"].items():
            devices.setdefault(device, [0, 0])[1] = count
        shares = ", ".join(
            f"{device or '-'} {done}" + (f" ({failed} failed)" if failed else "")
            for device, (done, failed) in sorted(devices.items())
        )
        lines.append(
            f"node {name}: {node['success']} done, {node['failure']} failed, "
            f"{len(node['pods'])} pods; devices: {shares}"
        )
    return "\n".join([*lines, result["verdict"].upper()])

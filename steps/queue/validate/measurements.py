"""From the result of the validator to measurements and a verdict."""

from typing import Any

from perfdag.outcome import Measurement, VerdictWord, verdict
from perfdag.steps.queue.validate.verdict import subject


def scaling_verdict(steps: list[Any], factor: float) -> Measurement:
    """Return the validator's verdict.

    It is inconclusive where a step passed, but its interval reaches below what is needed.
    """
    rule = f"throughput grows {factor:g} times with each doubling"
    if failed := [step for step in steps if step["problems"]]:
        note = f"at {failed[0]['replicas']} replicas {'; '.join(failed[0]['problems'])}"
        return verdict("failed", rule, f"{note} ({len(failed)} of {len(steps)} steps)")
    grown = [step for step in steps if step["ratio"]]
    if not grown:
        return verdict("inconclusive", rule, "one step has nothing to compare with: raise limit")
    # The step whose interval leaves the least room decides.
    step = min(grown, key=lambda step: step["ratio"][1] / step["needed"])
    ratio, low, _ = step["ratio"]
    word: VerdictWord = "passed" if low >= step["needed"] else "inconclusive"
    note = f"{ratio:.3f} times at {step['replicas']} replicas (95 % from {low:.3f})"
    return verdict(word, rule, f"{note}, {step['needed']:.3f} needed")


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
        if step["failures"]:
            measurements += [
                Measurement("failures", float(count), coords=at, subject=where)
                for where, count in step["failed"].items()
            ]
    for node, spread in result["nodes"].items():
        for device, count in spread["devices"].items():
            measurements.append(Measurement("items", float(count), subject=subject(node, device)))
    if result["amdahl"]:
        measurements.append(Measurement("amdahl_share", result["amdahl"]["sigma"]))
    usl = result["usl"]
    if usl:
        measurements += [
            Measurement("single_rate", usl["rate_per_second"]),
            Measurement("serial_share", usl["sigma"]),
        ]
        measurements.append(Measurement("coherence", usl["kappa"]))
        if usl["knee_replicas"]:
            measurements.append(Measurement("knee", usl["knee_replicas"]))
    return measurements

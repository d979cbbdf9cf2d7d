"""From the result of the validator to measurements and a verdict."""

from typing import Any

from perfdag.outcome import Measurement, verdict
from perfdag.steps.queue.validate.devices import subject


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

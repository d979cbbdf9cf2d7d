"""From the trace of a queue to measurements, and to reasons why a trace is no result."""

from typing import Any

from perfdag.outcome import Measurement, verdict
from perfdag.steps.queue.autoscale.params import QueueAutoscaleParams
from perfdag.steps.queue.autoscale.scores import Sample, score
from perfdag.steps.queue.validate.verdict import failures_by_subject
from perfdag.units import plural

GRID = 60
"""Moments of a trace that become rows, for the chart."""


def failure_text(queue: str, client: Any) -> str:
    """Say how many requests failed, with their causes and devices."""
    causes = ", ".join(f"{count} {cause}" for cause, count in client["causes"].items())
    where = ", ".join(
        f"{count} on {name}" for name, count in failures_by_subject(client["nodes"]).items()
    )
    return f"{queue}: {plural(client['failure'], 'request')} failed ({causes})" + (
        f": {where}" if where else ""
    )


def invalid_reasons(queue: str, result: Any, params: QueueAutoscaleParams) -> list[str]:
    """Return why a trace is no result, or an empty list.

    Reasons are unanswered requests, items of other seconds than `item`, a height never reached,
    and backends never released.
    """
    client, reasons = result["client"], scaling_faults(result)
    unanswered = client["scheduled"] - client["success"] - client["failure"]
    mean = client["run"].get("mean", params.item)
    if params.deployments and not 0.8 <= mean / params.item <= 1.25:
        reasons.insert(
            0,
            f"an item took {mean:.3g} s, so the backends needed are not those of item "
            f"{params.item:g} s",
        )
    if unanswered:
        reasons.insert(
            0,
            f"{unanswered} of {client['scheduled']} requests were not answered "
            f"{params.duration:g} s after the load ended",
        )
    return [f"{queue}: {reason}" for reason in reasons]


def scaling_verdict(queue: str, result: Any) -> Measurement:
    """Return whether the scaler followed the load of a queue, with its times."""
    rule, reasons = "covers the height of the load, and releases it", scaling_faults(result)
    if reasons:
        return verdict("failed", rule, "; ".join(reasons), {"queue": queue})
    scored = score([Sample(*sample) for sample in result["trace"]])
    times = {"covered after": scored.reaction, "released after": scored.release}
    parts = [f"{name} {value:.3g} s" for name, value in times.items() if value is not None]
    return verdict("passed", rule, ", ".join(parts), {"queue": queue})


def scaling_faults(result: Any) -> list[str]:
    """Return how the scaler did not follow the load of a trace, or an empty list."""
    trace, reasons = [Sample(*sample) for sample in result["trace"]], []
    scored, peak = score(trace), max(sample.needed for sample in trace)
    if peak > trace[0].needed and scored.reaction is None:
        most = max(sample.have for sample in trace)
        reasons.append(
            f"at most {most} of the {peak} backends needed were ready: raise duration, or the "
            "limit of the scaler"
        )
    if trace[-1].needed < peak and scored.release is None:
        reasons.append(
            f"{trace[-1].have} backends were left at the end, {trace[-1].needed} needed: raise "
            "duration, or shorten the window"
        )
    return reasons


def measurements_of(queue: str, one: Any, params: QueueAutoscaleParams) -> list[Measurement]:
    """Return the measurements of one queue: scores, latencies, the trace and failures."""
    trace = [Sample(*fields) for fields in one["trace"]]
    result = score(trace)
    at = {"queue": queue}
    values = {"reaction": result.reaction, "release": result.release, "overshoot": result.overshoot}
    values |= {
        "oscillations": float(result.oscillations),
        "wasted": result.wasted,
        "missing": result.missing,
    }
    measurements = [
        Measurement(name, value, coords=at) for name, value in values.items() if value is not None
    ]
    latency = one["client"]["latency"]
    measurements += [
        Measurement("latency", latency[p], stat=p, coords=at, n=latency["count"])
        for p in ("p50", "p95")
        if latency.get(p) is not None
    ]
    for k in range(GRID):  # the same moments in every repetition
        moment = params.duration * k / GRID
        sample = next((fields for fields in trace if fields.at >= moment), trace[-1])
        when = {**at, "elapsed": round(moment, 3)}
        levels = {
            "replicas": sample.have,
            "needed": sample.needed,
            "depth": sample.depth,
            "wait": sample.wait,
        }
        measurements += [
            Measurement(name, float(value), coords=when, subject=f"at {moment:g} s")
            for name, value in levels.items()
            if value is not None
        ]
    failures = failures_by_subject(one["client"]["nodes"])
    return measurements + [
        Measurement("failures", float(count), coords=at, subject=where)
        for where, count in failures.items()
    ]

"""Metrics of resnet50, and the measurements of one result."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from perfdag.benchmark.contract import Metric
from perfdag.outcome import Measurement
from perfdag.stats.percentiles import needed
from perfdag.steps.resnet50 import loadgen_log
from perfdag.steps.resnet50.imagenet import reached
from perfdag.steps.resnet50.params import Workload
from perfdag.steps.resnet50.result import PERCENTILES, TAIL, Result

METRICS = (
    Metric("throughput", "1/s", "higher", "samples completed per second in Offline", headline=True),
    Metric(
        "tail_latency",
        "s",
        "lower",
        "the scenario's own result: p99 in Server and MultiStream, p90 in SingleStream",
        headline=True,
    ),
    Metric(
        "peak_rate",
        "1/s",
        "higher",
        "highest Poisson rate that holds the latency bound, validated",
        headline=True,
    ),
    Metric("top1", "1", "higher", "share of the images classified correctly", headline=True),
    Metric("images", "1", "none", "images of the accuracy run; published figures use 50,000"),
    Metric(
        "top1_reference",
        "1",
        "none",
        "top1 published for these weights on all images; for unknown weights MLPerf's fp32"
        " reference",
    ),
    Metric(
        "top1_reached",
        "1",
        "higher",
        "1: top1 is at least 99 % of top1_reference, 0: less; absent for fewer than all images",
    ),
    Metric("latency", "s", "lower", "time from the schedule to the answer, by percentile and mean"),
    Metric(
        "estimated_latency",
        "s",
        "lower",
        "a stream's p90 or p99 at 99 % confidence (early stopping)",
    ),
    Metric(
        "audit",
        "1",
        "higher",
        "1: an audit passes by MLPerf's rule, 0: it fails; the coordinate names the test",
    ),
    Metric("completed_rate", "1/s", "none", "queries completed per second"),
    Metric("scheduled_rate", "1/s", "none", "queries that LoadGen scheduled per second"),
    Metric("batch_size", "1", "none", "mean samples in a batch of the dynamic batcher"),
    Metric(
        "phase_time",
        "s",
        "lower",
        "time of one full batch by phase, with an idle device before and after: preprocess, copy,"
        " compute (on CUDA by events), postprocess",
    ),
    Metric(
        "first_batch",
        "s",
        "lower",
        "time of the first batch: lazy initialisation, compilation, tuning",
    ),
    Metric(
        "compile_time",
        "s",
        "lower",
        "torch.compile: first minus steady batch of a size (coordinate batch), and their total;"
        " without lazy initialisation",
    ),
    Metric(
        "warm_batch", "s", "lower", "median time of a batch at the end of the warm-up, closed loop"
    ),
    Metric(
        "logit_error",
        "1",
        "lower",
        "||logits - fp32 eager|| / ||fp32 eager||, the worst of the fixed images at any timed"
        " batch size",
    ),
    Metric(
        "cost_per_million",
        "currency",
        "lower",
        "price of a million samples at this rate; the coordinates name the currency",
    ),
)
COORDS = ("audit", "batch", "bound", "currency", "phase", "when")
MARKS = ("fast", "loadgen", "logits_checked", "weights")
"""Coordinates of `caveats`."""
SMOKE = {"fast": "not comparable"}
"""Coordinate of every value of a smoke test."""


def caveats(results: Sequence[Result], params: Workload) -> dict[str, Any]:
    """Return coordinates that mark figures as fast, unchecked, or of unverified weights."""
    coords: dict[str, Any] = {}
    if params.fast:
        coords |= SMOKE
        if not all(run.valid for run in results):
            coords["loadgen"] = "INVALID"
    if not params.check_logits:
        coords["logits_checked"] = False
    elif any("against" in (run.raw.get("logits") or {}) for run in results):
        coords["logits_checked"] = "against itself"
    if any(run.raw.get("model", {}).get("weights_verified") is False for run in results):
        coords["weights"] = "unverified"
    return coords


def measurements(result: Result, params: Workload, timed: bool = True) -> list[Measurement]:
    """Return all values, with the caveats in the coordinates; `timed` includes batch times."""
    marked = caveats([result], params)
    return [
        replace(row, coords={**row.coords, **marked})
        for row in _all(result, params, timed)
        if math.isfinite(row.value)
    ]


def _all(result: Result, params: Workload, timed: bool) -> Iterator[Measurement]:
    raw, tested = result.raw, result.tested
    if accuracy := raw.get("accuracy"):
        yield Measurement("top1", accuracy["top1"], n=accuracy["images"])
        yield Measurement("images", accuracy["images"])
        yield Measurement("top1_reference", accuracy["reference"])
        verdict = reached(accuracy["top1"], accuracy["images"], accuracy["reference"])
        if verdict is not None:
            yield Measurement("top1_reached", float(verdict))
    if tested is not None:
        yield from _of_test(tested, result, params)
    for audit, (passed, text) in raw.get("mlperf", {}).get("audits", {}).items():
        yield Measurement("audit", float(passed), coords={"audit": audit}, note=text)
    if timed:
        yield from _batches(raw, params)
    for name, when in (("logits", "before"), ("logits_after", "after")):
        if (check := raw.get(name)) and check["error"] is not None:
            yield Measurement(
                "logit_error", check["error"], "max", {"when": when}, check.get("images")
            )


def _batches(raw: Mapping[str, Any], params: Workload) -> Iterator[Measurement]:
    for phase, seconds in raw.get("phases", {}).items():
        yield Measurement(
            "phase_time",
            statistics.median(seconds),
            "p50",
            {"phase": phase, "batch": params.batch},
            len(seconds),
        )
    if warm := raw.get("warmup"):
        yield Measurement("first_batch", warm["first"], n=1)
        yield Measurement("warm_batch", warm["steady"], "p50", {"batch": params.batch})
        yield from _compiled(warm, params)


def _compiled(warm: Mapping[str, Any], params: Workload) -> Iterator[Measurement]:
    if params.backend != "compile" or params.system == "stub":
        return
    seconds = {
        int(size): max(0.0, first - steady) for size, (first, steady) in warm["by_size"].items()
    }
    for size, extra in sorted(seconds.items()):
        yield Measurement("compile_time", extra, coords={"batch": size}, n=1)
    yield Measurement("compile_time", sum(seconds.values()), "total", n=len(seconds))


def _of_test(
    tested: loadgen_log.Summary, result: Result, params: Workload
) -> Iterator[Measurement]:
    queries = tested.queries
    if params.scenario == "offline":
        yield Measurement("throughput", result.rate, n=queries)
    else:
        if params.scenario == "find-peak":
            # If no rate failed, the search ended at its limit, and the peak may be higher.
            bound = {} if result.raw["peak"]["above"] is not None else {"bound": "at least"}
            yield Measurement("peak_rate", result.raw["peak"]["rate"], coords=bound, n=queries)
        tail = TAIL[params.scenario]
        if queries >= needed(PERCENTILES[tail]) and params.scenario != "find-peak":
            yield Measurement(
                "tail_latency", tested.percentiles[PERCENTILES[tail]], tail, n=queries
            )
        for stat, p in PERCENTILES.items():
            if queries >= needed(p):
                yield Measurement("latency", tested.percentiles[p], stat, n=queries)
        if tested.mean is not None:
            yield Measurement("latency", tested.mean, "mean", n=queries)
    if tested.estimate is not None:
        yield Measurement("estimated_latency", tested.estimate, TAIL[params.scenario], n=queries)
    for metric, value in (
        ("completed_rate", tested.rate),
        ("scheduled_rate", tested.scheduled_rate),
    ):
        if value is not None and params.scenario != "offline":
            yield Measurement(metric, value, n=queries)
    sizes = {
        int(size): count
        for size, count in result.raw["tests"][result.raw["answer"]]["batches"].items()
    }
    if sizes and params.scenario in ("server", "find-peak"):
        yield Measurement(
            "batch_size",
            sum(s * c for s, c in sizes.items()) / sum(sizes.values()),
            "mean",
            n=sum(sizes.values()),
        )
    if params.price_per_hour is not None:
        yield Measurement(
            "cost_per_million",
            cost_per_million(params.price_per_hour, result.rate),
            coords={"currency": params.currency},
        )


def cost_per_million(price_per_hour: float, rate: float) -> float:
    """Return the price of a million samples: price / 3600 s / rate * 10^6."""
    return price_per_hour / 3600 / rate * 1e6

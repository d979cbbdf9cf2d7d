"""Metrics of resnet50, and the measurements of one result."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from perfdag.benchmark.contract import Metric
from perfdag.outcome import Measurement
from perfdag.stats.percentiles import needed
from perfdag.steps.resnet50.params import Workload
from perfdag.steps.resnet50.result import PERCENTILES, TAIL, Result

METRICS = (
    Metric("throughput", "1/s", "higher", "samples completed per second in Offline", headline=True),
    Metric(
        "tail_latency",
        "s",
        "lower",
        "the scenario's own result: p99 in Server, p90 in SingleStream",
        headline=True,
    ),
    Metric("latency", "s", "lower", "time from the schedule to the answer, by percentile and mean"),
    Metric(
        "estimated_latency",
        "s",
        "lower",
        "SingleStream's p90 at 99 % confidence (early stopping)",
    ),
    Metric("completed_rate", "1/s", "none", "queries completed per second"),
    Metric("scheduled_rate", "1/s", "none", "queries that LoadGen scheduled per second"),
    Metric(
        "target_rate",
        "1/s",
        "none",
        "queries per second that Server asked for, given or by default",
    ),
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
        "cost_per_million",
        "currency",
        "lower",
        "price of a million samples at this rate; the coordinates name the currency",
    ),
)
COORDS = ("batch", "currency", "phase")
MARKS = ("fast", "loadgen", "weights")
"""Coordinates of `caveats`."""
SMOKE = {"fast": "not comparable"}
"""Coordinate of every value of a smoke test."""


def caveats(results: Sequence[Result], params: Workload) -> dict[str, Any]:
    """Return coordinates that mark figures as fast, or of unverified weights."""
    coords: dict[str, Any] = {}
    if params.fast:
        coords |= SMOKE
        if not all(run.tested.valid for run in results):
            coords["loadgen"] = "INVALID"
    if any(run.raw.get("model", {}).get("weights_verified") is False for run in results):
        coords["weights"] = "unverified"
    return coords


def measurements(result: Result, params: Workload) -> list[Measurement]:
    """Return all values, with the caveats in the coordinates."""
    marked = caveats([result], params)
    return [
        replace(row, coords={**row.coords, **marked})
        for row in (*_of_test(result, params), *_batches(result.raw, params))
        if math.isfinite(row.value)
    ]


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


def _of_test(result: Result, params: Workload) -> Iterator[Measurement]:
    tested, test = result.tested, result.raw["test"]
    queries = tested.queries
    if params.scenario == "offline":
        yield Measurement("throughput", result.rate, n=queries)
    else:
        tail = TAIL[params.scenario]
        if queries >= needed(PERCENTILES[tail]):
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
    if params.scenario == "server":
        yield Measurement("target_rate", float(test["rate"]))
        sizes = {int(size): count for size, count in test["batches"].items()}
        batches = sum(sizes.values())
        if batches:
            mean = sum(size * count for size, count in sizes.items()) / batches
            yield Measurement("batch_size", mean, "mean", n=batches)
    if params.price_per_hour is not None:
        yield Measurement(
            "cost_per_million",
            cost_per_million(params.price_per_hour, result.rate),
            coords={"currency": params.currency},
        )


def cost_per_million(price_per_hour: float, rate: float) -> float:
    """Return the price of a million samples: price / 3600 s / rate * 10^6."""
    return price_per_hour / 3600 / rate * 1e6

"""What the program printed becomes measurements with their validity. Pure: JSON in, values out."""

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfdag.benchmark import Failed, Measurement, Metric, Skip
from perfdag.stats.percentiles import needed
from perfdag.steps.resnet50 import preload, summary
from perfdag.steps.resnet50.imagenet import reached
from perfdag.steps.resnet50.params import Workload
from perfdag.steps.resnet50.program import PROGRAM

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
TAIL = {"server": "p99", "find-peak": "p99", "single-stream": "p90"}
METRICS = (
    Metric("throughput", "1/s", "higher", "samples completed a second, Offline", headline=True),
    Metric(
        "tail_latency",
        "s",
        "lower",
        "the scenario's own result: p99 in Server, p90 in SingleStream",
        headline=True,
    ),
    Metric(
        "peak_rate",
        "1/s",
        "higher",
        "highest Poisson rate that holds the latency bound, validated",
        headline=True,
    ),
    Metric("top1", "1", "higher", "share of the images whose first class is right", headline=True),
    Metric(
        "images", "1", "none", "images that top1 is a share of; published figures are of 50,000"
    ),
    Metric(
        "top1_reference",
        "1",
        "none",
        "published for these weights on all images; of weights of another digest MLPerf's fp32 reference",
    ),
    Metric(
        "top1_reached",
        "1",
        "higher",
        "1: top1 is 99 % of top1_reference or more, 0: less; absent of fewer than all images",
    ),
    Metric(
        "latency", "s", "lower", "from the scheduled time to the answer, by percentile and mean"
    ),
    Metric(
        "estimated_latency", "s", "lower", "SingleStream's p90 at 99 % confidence (early stopping)"
    ),
    Metric("completed_rate", "1/s", "none", "queries completed a second"),
    Metric("scheduled_rate", "1/s", "none", "queries that LoadGen scheduled a second"),
    Metric("batch_size", "1", "none", "mean samples a batch that the dynamic batcher made"),
    Metric(
        "phase_time",
        "s",
        "lower",
        "of one full batch, the device idle before and after: preprocess, copy, compute (on CUDA by events), postprocess",
    ),
    Metric(
        "first_batch", "s", "lower", "the first batch: lazy initialisation, compilation, tuning"
    ),
    Metric(
        "compile_time",
        "s",
        "lower",
        "torch.compile: first less steady batch of a size (coordinate batch), and their total; nothing lazy in it",
    ),
    Metric("warm_batch", "s", "lower", "median batch at the end of the warm-up, closed loop"),
    Metric(
        "logit_error",
        "1",
        "lower",
        "||logits - fp32 eager|| / ||fp32 eager|| of the worst of the fixed images at any batch size timed",
    ),
    Metric(
        "cost_per_million",
        "currency",
        "lower",
        "price of a million samples at this rate; the coordinates name the currency",
    ),
)
SMOKE = {"fast": "not comparable"}
"""Coordinate of every value of a smoke test."""
UNUSABLE = {"device", "missing"}
"""Errors that are nobody's fault: a device or a package is not there."""


@dataclass(frozen=True)
class Result:
    """The program's JSON, and LoadGen's summary of the test that counts (None: accuracy)."""

    raw: Mapping[str, Any]
    tested: summary.Summary | None

    @property
    def span(self) -> tuple[float, float]:
        """Start and end of the test that counts, seconds since the epoch, on the clock of the host that measured."""
        counts = self.raw["tests"][self.raw.get("answer", -1)]
        return float(counts["started"]), float(counts["ended"])

    @property
    def rate(self) -> float:
        """Samples a second: Offline's throughput, Server's completed rate, SingleStream's 1 / mean latency."""
        if self.tested is None:
            return math.nan
        return self.tested.rate or (1 / self.tested.mean if self.tested.mean else math.nan)

    @property
    def valid(self) -> bool:
        """Whether LoadGen says VALID; an accuracy run has no such verdict and passes for it."""
        return self.tested is None or self.tested.valid

    def p99(self, scenario: str) -> float:
        """p99 latency in seconds; not a number below the queries that it needs, and in Offline, whose latencies count from the one query."""
        if self.tested is None or scenario == "offline" or self.tested.queries < needed(0.99):
            return math.nan
        return self.tested.percentiles[0.99]

    def tail(self, scenario: str) -> float:
        """As `cost`; not a number below the queries that the percentile needs."""
        if self.tested is None or (
            scenario in TAIL and self.tested.queries < needed(PERCENTILES[TAIL[scenario]])
        ):
            return math.nan
        return self.cost(scenario)

    def cost(self, scenario: str) -> float:
        """p99 of Server, p90 of SingleStream, in a smoke test of however few queries; in Offline seconds a sample."""
        if self.tested is None:
            return math.nan
        return (
            self.tested.percentiles[PERCENTILES[TAIL[scenario]]]
            if scenario in TAIL
            else 1 / self.rate
        )


def read(text: str) -> Result:
    """Read what the program printed. Raises Skip where a device or package is missing, Failed where it failed or the text is cut."""
    try:
        raw = json.loads(text)
    except ValueError:
        raise Failed("the program printed no result: its output is cut", {"result": text}) from None
    if not isinstance(raw, dict) or raw.get("program") != PROGRAM:
        raise Failed(
            f"the result is not of this program: version {PROGRAM} expected", {"result": text}
        )
    if error := raw.get("error"):
        kind = Skip if error["kind"] in UNUSABLE else Failed
        raise kind(error["text"], {"result": text})
    if "accuracy" in raw:
        return Result(raw, None)
    try:
        logs = raw["tests"][raw["answer"]]["logs"]
        return Result(raw, summary.read(logs["summary"], logs["detail"]))
    except (KeyError, IndexError, summary.UnreadableError) as error:
        raise Failed(f"no finished LoadGen test in the result: {error}", {"result": text}) from None


def wrong(result: Result, params: Workload, treated: bool = True) -> str | None:
    """Why the figures are not what they claim, LoadGen's reasons included; None where they are. `treated`: whether the program was to run in
    wrapper_env."""
    raw = result.raw
    if treated and (reason := preload.untreated(raw, params.wrapper_env)):
        return reason
    for name, when in (("logits", "before"), ("logits_after", "after")):
        found = raw.get(name)
        if found and not found["ok"]:
            return f"logits {_differ(found)} fp32 eager {when} the measurement: weights or arithmetic are corrupted"
        if found is None and params.check_logits:
            return f"logits were not checked {when} the measurement, though check_logits is set"
    if params.scenario != "accuracy" and (reasons := _against_times(raw, params)):
        return next(iter(reasons.values()))
    tested = result.tested
    if tested is not None and not tested.valid and not _merely_short(tested, params):
        return invalid(tested, params)
    if tested is not None and params.scenario == "offline" and tested.queries < params.queries():
        return f"LoadGen asked {tested.queries} samples, fewer than the {params.queries()} of min_queries"
    return None


def _against_times(raw: Mapping[str, Any], params: Workload) -> dict[str, str]:
    """Why times are not what they claim, by what is wrong."""
    found: dict[str, str] = {}
    clock, warm = raw.get("clock"), raw.get("warmup", {})
    if clock and not clock["honest"]:
        found["clock"] = str(clock["words"])
    if warm.get("stable") is False and not params.fast:
        found["warm-up"] = (
            "batch times were still moving by more than 10 % when the warm-up's time was over: something else uses the device"
        )
        if warm.get("few"):
            last = f"{warm['steady']:.3g} s"
            found["warm-up"] = (
                f"too few batches fit into the warm-up to tell whether their time is steady: the last took {last}"
            )
    return found


def unsteady(result: Result, params: Workload, facts: Mapping[str, Any]) -> str | None:
    """Why an accuracy run has no times beside its result, which is none: what would make a row of them invalid. `facts`: what the GPU did."""
    if params.scenario != "accuracy":
        return None
    gpu = facts.get("slowed") or (
        f"what the GPU's clocks did is not known: {facts['error']}" if facts.get("error") else None
    )
    return (
        "; ".join([*_against_times(result.raw, params).values(), *([str(gpu)] if gpu else [])])
        or None
    )


def invalid(tested: summary.Summary, params: Workload) -> str:
    """LoadGen's reasons for INVALID, what sets the rate that it expects in Offline, and whether max_queries ended it."""
    said = "LoadGen says INVALID: " + "; ".join(tested.reasons)
    if cut(tested, params):
        said += f"; max_queries ended it at {tested.queries}, before min_duration: raise it, or lower min_duration"
    if (
        params.scenario == "offline"
        and tested.keys.get("result_min_duration_met") is False
        and tested.rate
    ):
        said += f"; target_rate is the expected QPS: set it to {tested.rate:.4g} or more"
    return said


def cut(tested: summary.Summary, params: Workload) -> bool:
    """Whether max_queries ended a test before its minimum duration."""
    return (
        tested.keys.get("result_min_duration_met") is False and tested.queries == params.max_queries
    )


def _differ(found: Mapping[str, Any]) -> str:
    """How logits that are not ok differ, at which batch size."""
    where = f" at batch {found['batch']}" if "batch" in found else ""
    if not found.get("finite", True):
        return f"are not finite{where}, unlike those of"
    if found["error"] > found["tolerance"]:
        return f"differ by {found['error']:.2g} (allowed {found['tolerance']:g}){where} from"
    return f"put {found['images'] - found['same_class']} of {found['images']} images into another class than"


def merely_late(found: Result, reason: str) -> bool:
    """Whether all that is held against a run is LoadGen's word on its latency: too short a run or too few queries are no effect of what stands
    beside it or before it."""
    if not reason.startswith("LoadGen says INVALID") or found.tested is None:
        return False
    return all(
        found.tested.keys.get(f"result_{name}") is not False
        for name in ("min_duration_met", "min_queries_met")
    )


def _merely_short(tested: summary.Summary, params: Workload) -> bool:
    """Whether a fast run is INVALID only because it is short: its few queries cannot show a percentile, or Offline's one query, sized by
    a short warm-up, was done early. That is what a smoke test is, and marked."""
    held = {
        name
        for name in ("perf_constraints_met", "min_duration_met", "min_queries_met")
        if tested.keys.get(f"result_{name}") is not False
    }
    if params.scenario == "offline":
        return params.fast and "min_queries_met" in held
    return (
        params.fast
        and len(held) == 3
        and tested.queries < needed(PERCENTILES[TAIL.get(params.scenario, "p90")])
    )


def marks(results: Sequence[Result], params: Workload) -> dict[str, Any]:
    """Coordinates of figures that are not comparable (fast), not checked (check_logits: false) or of weights that nothing vouches for."""
    made: dict[str, Any] = {}
    if params.fast:
        made |= SMOKE
        if not all(each.valid for each in results):
            made["loadgen"] = "INVALID"
    if not params.check_logits:
        made["logits_checked"] = False
    if any(each.raw.get("model", {}).get("weights_verified") is False for each in results):
        made["weights"] = "unverified"
    return made


def weights(result: Result) -> str:
    """What the model's weights were: the digest of a file, or the seed of random ones."""
    model = result.raw.get("model", {})
    return str(model.get("weights_sha256") or model.get("weights"))


def measurements(result: Result, params: Workload, timed: bool = True) -> list[Measurement]:
    """All values, with their `marks` in the coordinates. `timed`: with the times of batches and their phases."""
    marked = marks([result], params)
    return [
        Measurement(
            each.metric, each.value, each.stat, {**each.coords, **marked}, each.n, each.subject
        )
        for each in _all(result, params, timed)
        if math.isfinite(each.value)
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
    if timed:
        yield from _batches(raw, params)
    for name, when in (("logits", "before"), ("logits_after", "after")):
        if (found := raw.get(name)) and found["error"] is not None:
            yield Measurement(
                "logit_error", found["error"], "max", {"when": when}, found.get("images")
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
    for size, each in sorted(seconds.items()):
        yield Measurement("compile_time", each, coords={"batch": size}, n=1)
    yield Measurement("compile_time", sum(seconds.values()), "total", n=len(seconds))


def _of_test(tested: summary.Summary, result: Result, params: Workload) -> Iterator[Measurement]:
    queries = tested.queries
    if params.scenario == "offline":
        yield Measurement("throughput", result.rate, n=queries)
    else:
        if params.scenario == "find-peak":
            # without a rate that failed the search ended at its own limit: the peak is this or more
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
        yield Measurement("estimated_latency", tested.estimate, "p90", n=queries)
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
    """Price of a million samples, in the price's currency, at `rate` samples a second: price / 3600 s / rate * 10^6."""
    return price_per_hour / 3600 / rate * 1e6

"""Turn what the program printed into measurements with their validity."""

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfdag.benchmark.contract import Metric
from perfdag.outcome import Failed, Measurement, Skip
from perfdag.stats.percentiles import needed
from perfdag.steps.resnet50 import loadgen_log, preload
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
        "published for these weights on all images; of weights of another digest MLPerf's fp32"
        " reference",
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
        "of one full batch, the device idle before and after: preprocess, copy,"
        " compute (on CUDA by events), postprocess",
    ),
    Metric(
        "first_batch", "s", "lower", "the first batch: lazy initialisation, compilation, tuning"
    ),
    Metric(
        "compile_time",
        "s",
        "lower",
        "torch.compile: first less steady batch of a size (coordinate batch), and their total;"
        " nothing lazy in it",
    ),
    Metric("warm_batch", "s", "lower", "median batch at the end of the warm-up, closed loop"),
    Metric(
        "logit_error",
        "1",
        "lower",
        "||logits - fp32 eager|| / ||fp32 eager|| of the worst of the fixed images at any batch"
        " size timed",
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
"""Errors of a missing device or package, which skip the sample."""


@dataclass(frozen=True)
class Result:
    """The program's JSON, and LoadGen's summary of the deciding test (None: accuracy)."""

    raw: Mapping[str, Any]
    tested: loadgen_log.Summary | None

    @property
    def span(self) -> tuple[float, float]:
        """Return start and end of the deciding test, in epoch seconds of the measuring host."""
        counts = self.raw["tests"][self.raw.get("answer", -1)]
        return float(counts["started"]), float(counts["ended"])

    @property
    def rate(self) -> float:
        """Return samples/s: Offline's throughput, Server's completions, SingleStream's 1 / mean."""
        if self.tested is None:
            return math.nan
        return self.tested.rate or (1 / self.tested.mean if self.tested.mean else math.nan)

    @property
    def valid(self) -> bool:
        """Whether LoadGen says VALID; an accuracy run has no verdict and passes."""
        return self.tested is None or self.tested.valid

    def p99(self, scenario: str) -> float:
        """Return p99 latency in seconds.

        It is not-a-number with too few queries, and in Offline, which has one query.
        """
        if self.tested is None or scenario == "offline" or self.tested.queries < needed(0.99):
            return math.nan
        return self.tested.percentiles[0.99]

    def tail(self, scenario: str) -> float:
        """Return `cost`, or not-a-number with too few queries for the percentile."""
        if self.tested is None or (
            scenario in TAIL and self.tested.queries < needed(PERCENTILES[TAIL[scenario]])
        ):
            return math.nan
        return self.cost(scenario)

    def cost(self, scenario: str) -> float:
        """Return p99 of Server, p90 of SingleStream, and in Offline the seconds of a sample."""
        if self.tested is None:
            return math.nan
        return (
            self.tested.percentiles[PERCENTILES[TAIL[scenario]]]
            if scenario in TAIL
            else 1 / self.rate
        )


def read(text: str) -> Result:
    """Read what the program printed.

    Raises Skip if a device or package is missing, Failed if it failed or the text is cut.
    """
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
        return Result(raw, loadgen_log.read(logs["summary"], logs["detail"]))
    except (KeyError, IndexError, loadgen_log.UnreadableError) as error:
        raise Failed(f"no finished LoadGen test in the result: {error}", {"result": text}) from None


def wrong(result: Result, params: Workload, treated: bool = True) -> str | None:
    """Return why the figures are not what they claim, with LoadGen's reasons, or None.

    `treated` says that the program was to run in wrapper_env.
    """
    raw = result.raw
    if treated and (reason := preload.untreated(raw, params.wrapper_env)):
        return reason
    for name, when in (("logits", "before"), ("logits_after", "after")):
        check = raw.get(name)
        if check and not check["ok"]:
            return (
                f"logits {_differ(check)} fp32 eager {when} the measurement:"
                " weights or arithmetic are corrupted"
            )
        if check is None and params.check_logits:
            return f"logits were not checked {when} the measurement, though check_logits is set"
    if params.scenario != "accuracy" and (reasons := _against_times(raw, params)):
        return next(iter(reasons.values()))
    tested = result.tested
    if tested is not None and not tested.valid and not _merely_short(tested, params):
        return invalid(tested, params)
    if tested is not None and params.scenario == "offline" and tested.queries < params.queries():
        return (
            f"LoadGen asked {tested.queries} samples, fewer than the {params.queries()} of"
            " min_queries"
        )
    return None


def _against_times(raw: Mapping[str, Any], params: Workload) -> dict[str, str]:
    """Return why times are not what they claim, by cause."""
    found: dict[str, str] = {}
    clock, warm = raw.get("clock"), raw.get("warmup", {})
    if clock and not clock["honest"]:
        found["clock"] = str(clock["words"])
    if warm.get("stable") is False and not params.fast:
        found["warm-up"] = (
            "batch times were still moving by more than 10 % when the warm-up's time was over:"
            " something else uses the device"
        )
        if warm.get("few"):
            last = f"{warm['steady']:.3g} s"
            found["warm-up"] = (
                "too few batches fit into the warm-up to tell whether their time is steady:"
                f" the last took {last}"
            )
    return found


def unsteady(result: Result, params: Workload, facts: Mapping[str, Any]) -> str | None:
    """Return why an accuracy run reports no times; `facts` has what the GPU did."""
    if params.scenario != "accuracy":
        return None
    gpu = facts.get("slowed") or (
        f"what the GPU's clocks did is not known: {facts['error']}" if facts.get("error") else None
    )
    return (
        "; ".join([*_against_times(result.raw, params).values(), *([str(gpu)] if gpu else [])])
        or None
    )


def invalid(tested: loadgen_log.Summary, params: Workload) -> str:
    """Return LoadGen's reasons for INVALID, with Offline's rate and an end by max_queries."""
    text = "LoadGen says INVALID: " + "; ".join(tested.reasons)
    if cut(tested, params):
        text += (
            f"; max_queries ended it at {tested.queries}, before min_duration: raise it,"
            " or lower min_duration"
        )
    if (
        params.scenario == "offline"
        and tested.keys.get("result_min_duration_met") is False
        and tested.rate
    ):
        text += f"; target_rate is the expected QPS: set it to {tested.rate:.4g} or more"
    return text


def cut(tested: loadgen_log.Summary, params: Workload) -> bool:
    """Whether max_queries ended a test before its minimum duration."""
    return (
        tested.keys.get("result_min_duration_met") is False and tested.queries == params.max_queries
    )


def _differ(check: Mapping[str, Any]) -> str:
    """Return how logits that fail the check differ, and at which batch size."""
    where = f" at batch {check['batch']}" if "batch" in check else ""
    if not check.get("finite", True):
        return f"are not finite{where}, unlike those of"
    if check["error"] > check["tolerance"]:
        return f"differ by {check['error']:.2g} (allowed {check['tolerance']:g}){where} from"
    return (
        f"put {check['images'] - check['same_class']} of {check['images']} images into another"
        " class than"
    )


def merely_late(run: Result, reason: str) -> bool:
    """Whether LoadGen's latency verdict is the only reason against a run.

    A run that is too short or has too few queries is no effect of its neighbours or wrapper.
    """
    if not reason.startswith("LoadGen says INVALID") or run.tested is None:
        return False
    return all(
        run.tested.keys.get(f"result_{name}") is not False
        for name in ("min_duration_met", "min_queries_met")
    )


def _merely_short(tested: loadgen_log.Summary, params: Workload) -> bool:
    """Whether a fast run is INVALID only because it is short, as a smoke test is.

    Its few queries show no percentile, and Offline's one query may end early.
    """
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
    """Return coordinates that mark figures as fast, unchecked, or of unverified weights."""
    coords: dict[str, Any] = {}
    if params.fast:
        coords |= SMOKE
        if not all(run.valid for run in results):
            coords["loadgen"] = "INVALID"
    if not params.check_logits:
        coords["logits_checked"] = False
    if any(run.raw.get("model", {}).get("weights_verified") is False for run in results):
        coords["weights"] = "unverified"
    return coords


def weights(result: Result) -> str:
    """Return what the weights were: the digest of a file, or the seed of random ones."""
    model = result.raw.get("model", {})
    return str(model.get("weights_sha256") or model.get("weights"))


def measurements(result: Result, params: Workload, timed: bool = True) -> list[Measurement]:
    """Return all values, with `marks` in the coordinates; `timed` includes batch times."""
    marked = marks([result], params)
    return [
        Measurement(row.metric, row.value, row.stat, {**row.coords, **marked}, row.n, row.subject)
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
    """Return the price of a million samples: price / 3600 s / rate * 10^6."""
    return price_per_hour / 3600 / rate * 1e6

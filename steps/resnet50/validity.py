"""Judge whether a result is what it claims, and explain why not."""

from collections.abc import Mapping
from typing import Any

from perfdag.stats.percentiles import needed
from perfdag.steps.resnet50 import loadgen_log, preload
from perfdag.steps.resnet50.params import Workload
from perfdag.steps.resnet50.result import PERCENTILES, TAIL, Result


def result_fault(result: Result, params: Workload, treated: bool = True) -> str | None:
    """Return why the figures are not what they claim, with LoadGen's reasons, or None.

    `treated` says that the program was to run in wrapper_env.
    """
    raw = result.raw
    if treated and (reason := preload.missing_environment(raw, params.wrapper_env)):
        return reason
    for name, when in (("logits", "before"), ("logits_after", "after")):
        check = raw.get(name)
        if check and not check["ok"]:
            return (
                f"logits {_differ(check)} {check.get('against', 'fp32 eager')} {when} the"
                " measurement: weights or arithmetic are corrupted"
            )
        if check is None and params.check_logits:
            return f"logits were not checked {when} the measurement, though check_logits is set"
    if params.scenario != "accuracy" and (reasons := _against_times(raw, params)):
        return next(iter(reasons.values()))
    tested = result.tested
    if tested is not None and not tested.valid and not _is_only_short(tested, params):
        return invalid(tested, params)
    if tested is not None and params.scenario == "offline" and tested.queries < params.queries():
        return (
            f"LoadGen requested {tested.queries} samples, fewer than the {params.queries()} of"
            " min_queries"
        )
    return None


def _against_times(raw: Mapping[str, Any], params: Workload) -> dict[str, str]:
    """Return why times are not what they claim, by cause."""
    reasons: dict[str, str] = {}
    clock, warm = raw.get("clock"), raw.get("warmup", {})
    if clock and not clock["honest"]:
        reasons["clock"] = str(clock["words"])
    if warm.get("stable") is False and not params.fast:
        reasons["warm-up"] = (
            "batch times still differed by more than 10 % at the end of the warm-up:"
            " something else uses the device"
        )
        if warm.get("few"):
            last = f"{warm['steady']:.3g} s"
            reasons["warm-up"] = (
                "too few batches fit into the warm-up to tell whether their time is steady:"
                f" the last took {last}"
            )
    return reasons


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
    if ended_by_max_queries(tested, params):
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


def ended_by_max_queries(tested: loadgen_log.Summary, params: Workload) -> bool:
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


def is_only_late(run: Result, reason: str) -> bool:
    """Whether LoadGen's latency verdict is the only reason against a run.

    A run that is too short or has too few queries is no effect of its neighbours or wrapper.
    """
    if not reason.startswith("LoadGen says INVALID") or run.tested is None:
        return False
    return all(
        run.tested.keys.get(f"result_{name}") is not False
        for name in ("min_duration_met", "min_queries_met")
    )


def _is_only_short(tested: loadgen_log.Summary, params: Workload) -> bool:
    """Whether a fast run is INVALID only because it is short, as a smoke test is.

    Its few queries show no percentile, and Offline's one query may end early.
    """
    constraints = {
        name
        for name in ("perf_constraints_met", "min_duration_met", "min_queries_met")
        if tested.keys.get(f"result_{name}") is not False
    }
    if params.scenario == "offline":
        return params.fast and "min_queries_met" in constraints
    return (
        params.fast
        and len(constraints) == 3
        and tested.queries < needed(PERCENTILES[TAIL.get(params.scenario, "p90")])
    )


def weights(result: Result) -> str:
    """Return what the weights were: the digest of a file, or the seed of random ones."""
    model = result.raw.get("model", {})
    return str(model.get("weights_sha256") or model.get("weights"))

"""Judge whether a result is what it claims, and explain why not."""

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
    warm = raw.get("warmup", {})
    if warm.get("stable") is False and not params.fast:
        return (
            f"too few batches fit into the warm-up to tell whether their time is steady:"
            f" the last took {warm['steady']:.3g} s"
            if warm.get("few")
            else "batch times still differed by more than 10 % at the end of the warm-up:"
            " something else uses the device"
        )
    tested = result.tested
    if not tested.valid and not _is_only_short(tested, params):
        return invalid(tested, params)
    if params.scenario == "offline" and tested.queries < params.queries():
        return (
            f"LoadGen requested {tested.queries} samples, fewer than the {params.queries()} of"
            " min_queries"
        )
    return None


def invalid(tested: loadgen_log.Summary, params: Workload) -> str:
    """Return LoadGen's reasons for INVALID, with Offline's rate."""
    text = "LoadGen says INVALID: " + "; ".join(tested.reasons)
    if (
        params.scenario == "offline"
        and tested.keys.get("result_min_duration_met") is False
        and tested.rate
    ):
        text += f"; target_rate is the expected QPS: set it to {tested.rate:.4g} or more"
    return text


def is_only_late(run: Result, reason: str) -> bool:
    """Whether LoadGen's latency verdict is the only reason against a run.

    A run that is too short or has too few queries is no effect of its neighbours or wrapper.
    """
    if not reason.startswith("LoadGen says INVALID"):
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

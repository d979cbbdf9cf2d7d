"""KubeVirt's own histograms of phase transitions, beside our times of the same VMIs.

KubeVirt observes whole seconds by the clocks of its components, for all VMIs of the cluster.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfdag.kube.prometheus import Prometheus
from perfdag.stats.percentiles import needed
from perfdag.steps.scale.figures.api_metrics import quantile
from perfdag.steps.scale.figures.percentiles import Summary

HISTOGRAMS = {
    "creation_to_running": ("creation", "Running"),
    "deletion_to_succeeded": ("deletion", "Succeeded"),
    "deletion_to_failed": ("deletion", "Failed"),
}
"""Our stage -> since when KubeVirt counts, and the phase. Stages of a VM begin with `vmi_`."""
SECOND = 1.0
"""Error of a difference between two truncated seconds."""
OTHERS = 0.1
"""Share of other VMIs in a histogram above which it says nothing about ours."""
_PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
Buckets = Mapping[float, float]
"""Upper bound in seconds -> VMIs, cumulative."""


@dataclass(frozen=True)
class Times:
    """KubeVirt's percentiles as figures, and in words where ours disagree with them."""

    figures: dict[str, float | None]
    notes: list[str]


def names() -> set[str]:
    """Return the names of the figures: `virt_creation_to_running_p50_s` and so on."""
    return {f"virt_{stage}_{p}_s" for stage in HISTOGRAMS for p in _PERCENTILES}


async def transition_times(
    prometheus: Prometheus, start: float, end: float, gap: float, stages: Sequence[Summary]
) -> Times:
    """Return KubeVirt's times of a window in Unix seconds, held against ours in `stages`.

    `gap` is the scrape interval of virt-controller. Raises KubeError.
    """
    figures: dict[str, float | None] = dict.fromkeys(sorted(names()))
    if end - start < 2 * gap:
        return Times(figures, [])
    before, after = [await _buckets(prometheus, at) for at in (start, end + gap)]
    ours = {summary.stage: summary for summary in stages}
    notes = []
    for stage in HISTOGRAMS:
        grown = {le: n - before[stage].get(le, 0.0) for le, n in after[stage].items()}
        if grown.get(math.inf, 0.0) <= 0 or min(grown.values()) < 0:
            continue  # no VMI, or virt-controller was restarted
        for name, p in _PERCENTILES.items():
            if grown[math.inf] >= needed(p):
                figures[f"virt_{stage}_{name}_s"] = quantile(grown, p)[0]
        if own := ours.get(f"vmi_{stage}", ours.get(stage)):
            notes += disagreements(stage, own, grown)
    return Times(figures, notes)


def disagreements(stage: str, own: Summary, theirs: Buckets) -> list[str]:
    """Return in words where our percentiles are outside KubeVirt's buckets.

    A percentile may be a second and its error bar away from a bucket. VMIs that only one of both
    has, such as the primer, may be anywhere in the order.
    """
    count, name = theirs[math.inf], stage.replace("_", " ")
    if abs(count - own.ok) > max(1.0, OTHERS * own.ok):
        text = f"KubeVirt's histogram of {name} has {count:g} VMIs, and {own.ok} are of this run"
        return [f"{text}: their percentiles are not compared"] if own.ok else []
    notes, error = [], SECOND + (own.resolution_s or 0.0)
    for stat, p in _PERCENTILES.items():
        ours, others = getattr(own, stat), abs(count - own.ok) / count
        low = quantile(theirs, max(0.0, p - others))[1] or 0.0
        high = quantile(theirs, min(1.0, p + others))[2]
        high = math.inf if high is None else high
        if ours is not None and not low - error <= ours <= high + error:
            notes.append(
                f"KubeVirt's own histogram has the {stat} of {name} in {low:g} to {high:g} s, and "
                f"perfdag measured {ours:.3g} s"
            )
    return notes


async def _buckets(prometheus: Prometheus, at: float) -> dict[str, dict[float, float]]:
    """Return the buckets of each stage at `at` (Unix seconds); empty before its first VMI."""
    metric = "kubevirt_vmi_phase_transition_time_from_%s_seconds_bucket"
    queries = {
        stage: {"query": f'sum by (le) ({metric % since}{{phase="{phase}"}})', "time": f"{at:.3f}"}
        for stage, (since, phase) in HISTOGRAMS.items()
    }
    return {
        stage: {float(item["metric"]["le"]): float(item["value"][1]) for item in data["result"]}
        for stage, data in (await prometheus.query(queries, "query")).items()
    }

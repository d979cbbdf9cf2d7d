"""Judge whether copies shared a node or GPU, ran at once, and measured what they claim."""

from collections.abc import Mapping, Sequence
from typing import Any

from perfdag.steps.resnet50 import result, validity
from perfdag.steps.resnet50.interference_params import InterferenceParams

OVERLAP = 0.8
"""Least share of the time that all copies must run at once."""


def overlap(spans: Sequence[tuple[float, float]]) -> float:
    """Return the time in which all ran over the time in which any ran, 0 to 1."""
    first, last = min(start for start, _ in spans), max(end for _, end in spans)
    both = min(end for _, end in spans) - max(start for start, _ in spans)
    return max(0.0, both) / (last - first) if last > first else 0.0


SHARE_SLACK = 0.02


def reasons_against_sharing(facts: Mapping[str, Any], params: InterferenceParams) -> list[str]:
    """Return why copies did not share a node or GPU, by node names and the GPUs' uuids."""
    nodes, devices = sorted(set(facts.get("hosts", ()))), facts.get("devices", ())
    if len(nodes) > 1:
        return [
            f"the copies ran on {len(nodes)} nodes ({', '.join(nodes)}) and share none:"
            " hosts.placement: packed"
        ]
    if params.device != "cuda" or params.system == "stub" or params.shared == "node":
        return []
    if unknown := [str(number) for number, uuid in enumerate(devices) if uuid is None]:
        return [
            f"which GPU copy {', '.join(unknown)} used is not known,"
            " nor whether the copies shared one; shared: node does not need it"
        ]
    if len(set(devices)) > 1:
        return [
            f"the copies used {len(set(devices))} GPUs ({', '.join(sorted(set(devices)))}) and"
            " share none: ask for a share of one as the "
            "resource (MIG, time slicing, vGPU), or set shared:"
            " node for what GPUs of one node do to each other"
        ]
    return []


def reasons_against(
    solo: Sequence[result.Result], beside: Sequence[result.Result], params: InterferenceParams
) -> list[str]:
    """Return why the figures are not what they claim.

    A latency bound that breaks beside others is the result, so it is no reason.
    """
    reasons = [
        f"copy {number} alone: {reason}"
        for number, run in enumerate(solo)
        if (reason := validity.result_fault(run, params))
    ]
    for number, run in enumerate(beside):
        reason = validity.result_fault(run, params)
        if reason and not validity.is_only_late(run, reason):
            reasons.append(f"copy {number} beside the others: {reason}")
        if params.memory_share is not None and params.device_memory is not None:
            seen, share = (
                run.raw.get("device", {}).get("memory"),
                params.device_memory * params.memory_share,
            )
            if seen is None:
                reasons.append(
                    f"copy {number} does not say how much device memory it sees:"
                    " its memory_share was not verified"
                )
            elif seen > share * (1 + SHARE_SLACK):
                reasons.append(
                    f"copy {number} sees {seen / 1e9:.2f} GB of device memory,"
                    f" its share is {share / 1e9:.2f} GB"
                )
    if len(weights := {validity.weights(run) for run in (*solo, *beside)}) > 1:
        reasons.append(f"the copies ran different weights: {', '.join(sorted(weights))}")
    together_share = overlap([run.span for run in beside])
    if together_share < OVERLAP:
        advice = "raise min_duration"
        if params.scenario == "offline":
            advice = (
                "all complete as many samples, and a faster copy ends before the others;"
                " use server or single-stream"
            )
        reasons.append(
            f"the copies ran at once for {together_share * 100:.0f} % of the time only: {advice}"
        )
    return reasons

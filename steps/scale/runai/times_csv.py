"""times.csv in the form of Run:ai's scale test tool.

Reference stages are those of the tool. Differences: refused and unscheduled workloads have a row,
differences are never clamped, and the header has as many columns as the rows.
"""

import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from perfdag.steps.scale.measure.generator import without_name
from perfdag.steps.scale.runai.run_file import read_run, read_summary
from perfdag.steps.scale.runai.settings import SettingsError

REFERENCE = {
    "Workload Creation": ("workloadCreatedTimestamp", "submitTimestamp"),
    "Job Creation": ("jobCreatedTimestamp", "workloadCreatedTimestamp"),
    "First Pod Creation": ("firstPodCreatedTimestamp", "jobCreatedTimestamp"),
    "Last Pod Creation": ("lastPodCreatedTimestamp", "jobCreatedTimestamp"),
    "Pod Group Creation": ("podGroupCreatedTimestamp", "firstPodCreatedTimestamp"),
    "Pod Scheduling Decision": ("podSchedulingDecisionTimestamp", "podGroupCreatedTimestamp"),
    "First Eviction": ("firstEvictionTimestamp", "podGroupCreatedTimestamp"),
    "First PVC Bind Request": ("firstPVCBindRequestTimestamp", "podGroupCreatedTimestamp"),
    "First PVC Bind": ("firstPVCBindTimestamp", "firstPVCBindRequestTimestamp"),
    "Backend Job Creation": ("backendJobCreatedTimestamp", "podGroupCreatedTimestamp"),
    "Total Pod Scheduling Decision": ("podSchedulingDecisionTimestamp", "submitTimestamp"),
    "Total Backend Job Creation": ("backendJobCreatedTimestamp", "submitTimestamp"),
}
"""Delta -> (event, the event it is measured from)."""
_INFO = {
    "Job Name": "jobName",
    "Namespace": "jobNamespace",
    "projectName": "projectName",
    "Workload Created": "workloadCreatedTimestamp",
    "Job Created": "jobCreatedTimestamp",
    "First Pod Created": "firstPodCreatedTimestamp",
    "Last Pod Created": "lastPodCreatedTimestamp",
    "Pod Group Created": "podGroupCreatedTimestamp",
    "Pod Scheduling Decision Time": "podSchedulingDecisionTimestamp",
    "Workload Submitted": "submitTimestamp",
    "Backend Job Created": "backendJobCreatedTimestamp",
}


@dataclass
class WorkloadTimes:
    """A workload: its info, its deltas in seconds (None: unobserved), and why plots exclude it."""

    info: dict[str, Any]
    deltas: dict[str, float | None]
    excluded: str = ""


def read_times(folder: Path) -> list[WorkloadTimes]:
    """Read all submitted workloads with their sampled times, in order of submission.

    Refused workloads come from run.json. Files of the original tool are accepted. If the other
    times are whole seconds of the API, the submission time is shifted to the API server's clock.
    Raises SettingsError.
    """
    summary = read_summary(folder)
    ahead, waiting = (
        summary.get("server_clock_ahead_s", 0.0),
        set(summary["not_scheduled"]) if "not_scheduled" in summary else None,
    )
    submitted = _read(folder / "submitted.json", "jobName", "projectName", "submitTimestamp")
    sampled = {
        (workload["jobName"], workload["projectName"]): workload
        for workload in _read(folder / "sampled.json", "jobName", "projectName")
    }
    workloads = [
        _times(
            {**sampled.get((workload["jobName"], workload["projectName"]), {}), **workload},
            ahead,
            waiting,
        )
        for workload in submitted
    ]
    return sorted(
        [*workloads, *_refused(folder)], key=lambda workload: str(workload.info["submitTimestamp"])
    )


def _refused(folder: Path) -> list[WorkloadTimes]:
    """Return the refused workloads with the reason."""
    if not (folder / "run.json").exists():
        return []
    file = read_run(folder, 0)
    refused = []
    for item in file.submissions:
        if item.error:
            due = datetime.fromtimestamp(item.intended_ns / 1e9, UTC).isoformat()
            info = {
                "jobName": item.name,
                "jobNamespace": item.namespace,
                "projectName": file.project,
                "submitTimestamp": due,
            }
            refused.append(
                WorkloadTimes(
                    info,
                    dict.fromkeys(REFERENCE),
                    f"refused: {without_name(item.error, item.name)}",
                )
            )
    return refused


def exclusion_counts(times: Sequence[WorkloadTimes]) -> dict[str, int]:
    """Count the excluded workloads by reason, most frequent first."""
    return dict(Counter(workload.excluded for workload in times if workload.excluded).most_common())


def _read(path: Path, *keys: str) -> list[dict[str, Any]]:
    try:
        data = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        verb = "submit" if path.name == "submitted.json" else "sample"
        raise SettingsError(
            f"no {path}; run `perfdag scale {verb} -o {path.parent}` first"
        ) from None
    except (OSError, ValueError) as error:
        raise SettingsError(f"cannot read {path}: {error}") from None
    if not isinstance(data, list):
        raise SettingsError(f"{path} is not a list of workloads")
    for number, workload in enumerate(data, 1):
        lacking = [key for key in keys if not isinstance(workload, dict) or key not in workload]
        if lacking:
            raise SettingsError(
                f"{path}: workload {number} of {len(data)} has no {', '.join(lacking)}"
            )
    return data


def _times(info: dict[str, Any], ahead: float, waiting: set[str] | None) -> WorkloadTimes:
    def at(key: str) -> float | None:
        text = info.get(key)
        try:
            return datetime.fromisoformat(text).timestamp() if text else None
        except (TypeError, ValueError):
            raise SettingsError(
                f"workload {info['jobName']}: {key} is {text!r}, not a time (ISO 8601)"
            ) from None

    decided = at("podSchedulingDecisionTimestamp")
    first = decided if (created := at("workloadCreatedTimestamp")) is None else created
    shift = ahead if first is not None and first == int(first) else 0.0
    deltas: dict[str, float | None] = {}
    for name, (event, since) in REFERENCE.items():
        end, start = at(event), at(since)
        start = start + shift if start is not None and since == "submitTimestamp" else start
        deltas[name] = _delta(start, end) if end is not None and start is not None else None
    group, pod, total = (
        at("podGroupCreatedTimestamp"),
        at("firstPodCreatedTimestamp"),
        deltas["Total Pod Scheduling Decision"],
    )
    excluded = ""
    if group is not None and pod is not None and int(group) < int(pod):
        excluded = "pod group older than its first pod (the pod was replaced)"
    elif total is not None and total < -1:
        excluded = "scheduled before it was submitted (clocks differ)"
    elif decided is None:
        excluded = (
            "not scheduled when sampled"
            if waiting is None or info["jobName"] in waiting
            else "not sampled"
        )
    return WorkloadTimes(info, deltas, excluded)


def _delta(start: float, end: float) -> float:
    """Return the seconds between two times.

    Both are truncated if one has whole seconds, as in the tool.
    """
    if start == int(start) or end == int(end):
        return float(int(end) - int(start))
    return end - start


def select(
    times: Sequence[WorkloadTimes], skip_errors: bool, head: int | None, tail: int | None
) -> list[WorkloadTimes]:
    """Select the workloads to plot: without errors if asked for, then `head`, then `tail`."""
    chosen = [workload for workload in times if not (skip_errors and workload.excluded)]
    chosen = chosen[:head] if head else chosen
    return chosen[-tail:] if tail else chosen


def write_csv(path: Path, times: Sequence[WorkloadTimes]) -> None:
    """Write times.csv: all workloads, excluded ones with the reason; unobserved is empty."""
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow([*_INFO, *REFERENCE, "Excluded"])
        for workload in times:
            info = [workload.info.get(key) or "" for key in _INFO.values()]
            deltas = [
                "" if (value := workload.deltas[name]) is None else f"{value:.6f}"
                for name in REFERENCE
            ]
            out.writerow([*info, *deltas, workload.excluded])

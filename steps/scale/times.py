"""submitted.json, sampled.json and times.csv of Run:ai's scale test tool.

Field names and reference stages are the tool's (run-ai/scale-test-tool, README.md). As there, a
time that was not seen has the time of another event: `summary.json` lists them, and they are not
taken for measured. Differences: times keep their fraction, differences are never clamped, refused
and unscheduled workloads have a row in times.csv, and its header has as many columns as the rows.
"""

import csv
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from perfdag.steps.scale.files import SettingsError, read_run, read_summary
from perfdag.steps.scale.generate import GeneratorResult, Submission, without_name
from perfdag.steps.scale.rows import Row

_TIMES: dict[str, tuple[str, ...]] = {
    "workloadCreatedTimestamp": ("workload_created", "created"),
    "jobCreatedTimestamp": ("job_created", "created"),
    "firstPodCreatedTimestamp": ("first_pod_created",),
    "lastPodCreatedTimestamp": ("last_pod_created",),
    "podGroupCreatedTimestamp": ("pod_group_created",),
    "podSchedulingDecisionTimestamp": ("scheduled",),
    "firstEvictionTimestamp": ("evicted",),
    "firstPVCBindRequestTimestamp": ("pvc_requested",),
    "firstPVCBindTimestamp": ("first_pvc_bound",),
}
"""Time -> the stages that it is of, the first that was seen."""
_OPTIONAL = {
    "backendJobCreatedTimestamp": "workloadCreatedTimestamp",
    "firstEvictionTimestamp": "podSchedulingDecisionTimestamp",
    "firstPVCBindRequestTimestamp": "podSchedulingDecisionTimestamp",
    "firstPVCBindTimestamp": "podSchedulingDecisionTimestamp",
}
"""Time -> the one that the tool writes in its place if it was not seen."""
_STAND_INS = {
    "workloadCreatedTimestamp": "podSchedulingDecisionTimestamp",
    "jobCreatedTimestamp": "workloadCreatedTimestamp",
    "firstPodCreatedTimestamp": "jobCreatedTimestamp",
    "lastPodCreatedTimestamp": "firstPodCreatedTimestamp",
    "podGroupCreatedTimestamp": "firstPodCreatedTimestamp",
    **_OPTIONAL,
}
"""The same of the times that the tool always has, in the order in which they are filled."""


def submitted_json(done: GeneratorResult, project: str) -> list[dict[str, str]]:
    """Return the accepted submissions with their due time.

    In a closed loop that is the time of sending.
    """
    return [
        {
            "jobName": item.name,
            "projectName": project,
            "jobNamespace": item.namespace,
            "submitTimestamp": _iso(done.wall(item.intended_ns)) or "",
        }
        for item in done.created
    ]


def read_submitted(folder: Path) -> tuple[str, list[Submission]]:
    """Return project and submissions of a folder that only has submitted.json.

    Raises SettingsError.
    """
    every = _read(folder / "submitted.json", "jobName", "projectName", "submitTimestamp")
    shift, submissions = time.time_ns() - time.monotonic_ns(), []
    for index, workload in enumerate(every):
        at = round((_time_of(workload, "submitTimestamp") or 0.0) * 1e9) - shift
        namespace = workload.get("jobNamespace") or f"runai-{workload['projectName']}"
        submissions.append(Submission(index, workload["jobName"], namespace, at, at, at))
    if not submissions:
        raise SettingsError(f"{folder / 'submitted.json'} has no workload")
    return str(every[0]["projectName"]), submissions


def sampled_json(
    rows: Sequence[Row], project: str, backend: Mapping[str, float] | None = None
) -> tuple[list[dict[str, Any]], dict[str, list[str]], list[str]]:
    """Return the content of sampled.json, the times not seen by workload, and who waits.

    `backend` has the times of the backend by workload (Unix seconds).
    """
    workloads: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        if row.status != "failed":
            workloads.setdefault((row.namespace, row.name), {})[row.stage] = row
    scheduled, unseen, waiting = [], dict[str, list[str]](), []
    for (namespace, name), stages in workloads.items():
        item: dict[str, Any] = {"jobName": name, "jobNamespace": namespace, "projectName": project}
        item |= _times_of(stages)
        item["backendJobCreatedTimestamp"] = _iso((backend or {}).get(name))
        if not item["podSchedulingDecisionTimestamp"]:
            waiting.append(name)
            continue
        unseen[name] = [key for key in _STAND_INS if not item[key]]
        for key, other in _STAND_INS.items():
            item[key] = item[key] or item[other]
        scheduled.append(item)
    return scheduled, unseen, waiting


def _times_of(stages: Mapping[str, Row]) -> dict[str, str | None]:
    """Return the times of a workload from its rows by stage, all on one clock."""
    watched = all(row.source == "watch" for row in stages.values() if row.status == "ok")
    times = {stage: row.reached if watched else row.api_time for stage, row in stages.items()}
    if "created" in stages and stages["created"].kind == "Pod":
        times["first_pod_created"] = times["last_pod_created"] = times["created"]
    return {
        key: _iso(next(filter(None, (times.get(name) for name in names)), None))
        for key, names in _TIMES.items()
    }


def _iso(seconds: float | None) -> str | None:
    return datetime.fromtimestamp(seconds, UTC).isoformat() if seconds else None


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
    """Read all submitted and sampled workloads with their times, in order of submission.

    Refused workloads come from run.json. Files of the original tool are accepted. If the other
    times are whole seconds of the API, the submission time is shifted to the API server's clock.
    Raises SettingsError.
    """
    summary = read_summary(folder)
    submitted = _read(folder / "submitted.json", "jobName", "projectName", "submitTimestamp")
    sampled = {
        (workload["jobName"], workload["projectName"]): workload
        for workload in _read(folder / "sampled.json", "jobName", "projectName")
    }
    _forget_unseen(list(sampled.values()), summary.get("unseen"))
    waiting = set(summary["not_scheduled"]) if "not_scheduled" in summary else None
    ahead = summary.get("server_clock_ahead_s", 0.0)
    workloads = []
    for workload in submitted:
        times = sampled.pop((workload["jobName"], workload["projectName"]), {})
        workloads.append(_times({**times, **workload}, ahead, waiting))
    for workload in sampled.values():
        stray = _times({"submitTimestamp": None, **workload}, ahead, waiting)
        stray.excluded = "not in submitted.json"
        workloads.append(stray)
    workloads += _refused(folder)
    return sorted(workloads, key=lambda workload: str(workload.info["submitTimestamp"]))


def _forget_unseen(
    sampled: Sequence[dict[str, Any]], unseen: Mapping[str, Sequence[str]] | None
) -> None:
    """Drop the times that stand in for others: those that a sample of ours lists.

    In files of the original tool, those that no workload has otherwise.
    """
    for key, other in _OPTIONAL.items():
        if unseen is None and all(item.get(key) == item.get(other) for item in sampled):
            for item in sampled:
                item.pop(key, None)
    for item in sampled:
        for key in (unseen or {}).get(item["jobName"], ()):
            item.pop(key, None)


def _refused(folder: Path) -> list[WorkloadTimes]:
    """Return the refused workloads with the reason."""
    if not (folder / "run.json").exists():
        return []
    file, shift = read_run(folder), time.time_ns() - time.monotonic_ns()
    refused = []
    for item in file.submissions:
        if item.error:
            info = {
                "jobName": item.name,
                "jobNamespace": item.namespace,
                "projectName": file.project,
                "submitTimestamp": _iso((item.intended_ns + shift) / 1e9),
            }
            why = f"refused: {without_name(item.error, item.name)}"
            refused.append(WorkloadTimes(info, dict.fromkeys(REFERENCE), why))
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


def _time_of(info: Mapping[str, Any], key: str) -> float | None:
    """Return a time of a workload in Unix seconds. Raises SettingsError."""
    text = info.get(key)
    try:
        return datetime.fromisoformat(text).timestamp() if text else None
    except (TypeError, ValueError):
        raise SettingsError(
            f"workload {info['jobName']}: {key} is {text!r}, not a time (ISO 8601)"
        ) from None


def _times(info: dict[str, Any], ahead: float, waiting: set[str] | None) -> WorkloadTimes:
    at = {key: _time_of(info, key) for pair in REFERENCE.values() for key in pair}
    decided, submitted = at["podSchedulingDecisionTimestamp"], at["submitTimestamp"]
    first = at["workloadCreatedTimestamp"] or decided
    if submitted is not None and first is not None and first == int(first):
        at["submitTimestamp"] = submitted + ahead
    deltas = {
        name: _delta(start, end)
        if (end := at[event]) is not None and (start := at[since]) is not None
        else None
        for name, (event, since) in REFERENCE.items()
    }
    group, pod = at["podGroupCreatedTimestamp"], at["firstPodCreatedTimestamp"]
    total, excluded = deltas["Total Pod Scheduling Decision"], ""
    if group is not None and pod is not None and int(group) < int(pod):
        excluded = "pod group older than its first pod (the pod was replaced)"
    elif total is not None and total < -1:
        excluded = "scheduled before it was submitted (clocks differ)"
    elif decided is None and (waiting is None or info["jobName"] in waiting):
        excluded = "not scheduled when sampled"
    elif decided is None:
        excluded = "not sampled"
    return WorkloadTimes(info, deltas, excluded)


def _delta(start: float, end: float) -> float:
    """Return the seconds between two times, both truncated if one has whole seconds."""
    if start == int(start) or end == int(end):
        return float(int(end) - int(start))
    return end - start


def select(
    times: Sequence[WorkloadTimes], skip_errors: bool, head: int | None, tail: int | None
) -> list[WorkloadTimes]:
    """Select the workloads to plot: without errors if asked for, then `head`, then `tail`.

    What has no submission has no place in the plot.
    """
    submitted = [workload for workload in times if workload.info["submitTimestamp"]]
    chosen = [workload for workload in submitted if not (skip_errors and workload.excluded)]
    chosen = chosen[:head] if head else chosen
    return chosen[-tail:] if tail else chosen


def write_csv(path: Path, times: Sequence[WorkloadTimes]) -> None:
    """Write times.csv: all workloads, excluded ones with the reason; unobserved is empty."""
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow([*_INFO, *REFERENCE, "Excluded"])
        for workload in times:
            info = [workload.info.get(key) or "" for key in _INFO.values()]
            deltas = ["" if (d := workload.deltas[n]) is None else f"{d:.6f}" for n in REFERENCE]
            out.writerow([*info, *deltas, workload.excluded])

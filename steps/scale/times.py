"""times.csv, as Run:ai's scale test tool writes it: what submitted.json, sampled.json and, where it is there, run.json tell of each workload.

Reference stages are the tool's. Differences: a workload that was not scheduled or was refused is a row too; a difference is never clamped;
the CSV's header has as many columns as its rows.
"""

import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from perfdag.steps.scale.files import read_run, read_summary
from perfdag.steps.scale.generator import nameless
from perfdag.steps.scale.runai import SettingsError

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
class Times:
    """One workload of times.csv: its info and deltas in seconds (None: unobserved), and why it is left out of plots (empty: it is not)."""

    info: dict[str, Any]
    deltas: dict[str, float | None]
    excluded: str = ""


def read_times(folder: Path) -> list[Times]:
    """Every workload of submitted.json, with what sampled.json has of it, and those that were refused, where run.json tells of them; in order
    of submission. Files of the original tool are read too. Raises SettingsError.

    A workload's time of submission is of our clock. Where the others are the API's whole seconds, it is put on the API server's clock, whose
    lead is in the sample's summary.json (without one: none), as are the names of those that it saw and that were not scheduled (without
    them: all that have no times).
    """
    told = read_summary(folder)
    ahead, waiting = (
        told.get("server_clock_ahead_s", 0.0),
        set(told["not_scheduled"]) if "not_scheduled" in told else None,
    )
    submitted = _read(folder / "submitted.json", "jobName", "projectName", "submitTimestamp")
    sampled = {
        (each["jobName"], each["projectName"]): each
        for each in _read(folder / "sampled.json", "jobName", "projectName")
    }
    found = [
        _times({**sampled.get((each["jobName"], each["projectName"]), {}), **each}, ahead, waiting)
        for each in submitted
    ]
    return sorted([*found, *_refused(folder)], key=lambda each: str(each.info["submitTimestamp"]))


def _refused(folder: Path) -> list[Times]:
    """What was sent and not accepted, with the reason."""
    if not (folder / "run.json").exists():
        return []
    file = read_run(folder, 0)
    found = []
    for each in file.submissions:
        if each.error:
            due = datetime.fromtimestamp(each.intended_ns / 1e9, UTC).isoformat()
            info = {
                "jobName": each.name,
                "jobNamespace": each.namespace,
                "projectName": file.project,
                "submitTimestamp": due,
            }
            found.append(
                Times(info, dict.fromkeys(REFERENCE), f"refused: {nameless(each.error, each.name)}")
            )
    return found


def left_out(times: Sequence[Times]) -> dict[str, int]:
    """How many workloads are excluded by each reason, most frequent first."""
    return dict(Counter(each.excluded for each in times if each.excluded).most_common())


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
    for number, each in enumerate(data, 1):
        lacking = [key for key in keys if not isinstance(each, dict) or key not in each]
        if lacking:
            raise SettingsError(
                f"{path}: workload {number} of {len(data)} has no {', '.join(lacking)}"
            )
    return data


def _times(info: dict[str, Any], ahead: float, waiting: set[str] | None) -> Times:
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
    return Times(info, deltas, excluded)


def _delta(start: float, end: float) -> float:
    """Seconds between two times of one clock; where one of them is a whole second, both are cut to it, as the tool does."""
    if start == int(start) or end == int(end):
        return float(int(end) - int(start))
    return end - start


def select(
    times: Sequence[Times], skip_errors: bool, head: int | None, tail: int | None
) -> list[Times]:
    """What is plotted: without the excluded ones if asked, then the first `head` and of those the last `tail`."""
    chosen = [each for each in times if not (skip_errors and each.excluded)]
    chosen = chosen[:head] if head else chosen
    return chosen[-tail:] if tail else chosen


def write_csv(path: Path, times: Sequence[Times]) -> None:
    """times.csv: every workload, the excluded ones with the reason; unobserved is empty."""
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow([*_INFO, *REFERENCE, "Excluded"])
        for each in times:
            info = [each.info.get(key) or "" for key in _INFO.values()]
            deltas = [
                "" if (value := each.deltas[name]) is None else f"{value:.6f}" for name in REFERENCE
            ]
            out.writerow([*info, *deltas, each.excluded])

"""The files of Run:ai's scale test tool: settings, submitted.json, sampled.json and times.csv (run-ai/scale-test-tool, README.md).

Field names and reference stages are the tool's. Differences: a time that was never seen is null, never another event's time; times
keep their fraction; a difference is never clamped; the CSV's header has as many columns as its rows.
"""

import csv
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeVar

import orjson

from perfdag.kube import Kube, KubeError
from perfdag.steps.scale.generator import Submitted
from perfdag.steps.scale.rows import SET, Row
from perfdag.steps.scale.templates import RUNAI_STORAGE

T = TypeVar("T")
SUBMITTERS, SUBMITTER_GROUP = ("api", "kubectl", "runai-cli"), "perfdag.submitters"
WORKLOAD_TYPES = ("training", "distributed", "interactive")
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
_OF_VMS: dict[str, tuple[str, ...]] = {
    "jobCreatedTimestamp": ("vmi_created", "created"),
    "firstPodCreatedTimestamp": ("pod_created",),
    "lastPodCreatedTimestamp": ("pod_created",),
    "podSchedulingDecisionTimestamp": ("pod_scheduled",),
}
"""`scheduled` is a VMI's own phase: what the scheduler decides is about its launcher pod."""
_OF_PODS = {"firstPodCreatedTimestamp": ("created",), "lastPodCreatedTimestamp": ("created",)}
_LAST = ("lastPodCreatedTimestamp", "podSchedulingDecisionTimestamp")
"""Of a set of VMIs the last one's, where all have it; of the others the first one's."""
_NEEDED = ("workloadCreatedTimestamp", "firstPodCreatedTimestamp", "podSchedulingDecisionTimestamp")
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


class SettingsError(ValueError):
    """A settings file or a file of the three commands that cannot be used."""


@dataclass
class Settings:
    """Uncommon settings (YAML). Times are as the tool's settings.py names them, in lower case."""

    output_dir: str = "logs"
    project: str = "project-0"
    submitter: str = "api"
    """api, kubectl, runai-cli, or a plug-in of the entry-point group `perfdag.submitters`: a callable (kube, settings) -> Submitter."""
    runai_cli_path: str = "runai"
    kubectl_path: str = "kubectl"
    image: str = "gcr.io/run-ai-lab/ubuntu:loop"
    storage_class: str = ""
    scheduler_event_times: bool = True
    """Evictions and PVC times, from Events; they cost one more watch."""
    backend_times: str = ""
    """Name of a plug-in of the entry-point group `perfdag.backend_times`: a callable (project, namespace) -> {job name: Unix seconds}."""


def read_settings(path: Path | None) -> Settings:
    """Settings from a YAML file; none: the defaults. Raises SettingsError naming the key."""
    if path is None:
        return Settings()
    import yaml

    try:
        given = yaml.safe_load(path.read_text()) or {}
    except (OSError, yaml.YAMLError) as error:
        raise SettingsError(f"cannot read the settings {path}: {' '.join(str(error).split())}") from None
    known = {field.name: field.type for field in fields(Settings)}
    if not isinstance(given, dict) or set(given) - set(known):
        wrong = ", ".join(sorted(map(str, set(given) - set(known)))) if isinstance(given, dict) else "it is not a mapping"
        raise SettingsError(f"{path}: {wrong}; there are {', '.join(known)}")
    settings = checked(path, Settings, given)
    check_submitter(settings.submitter, f"{path}: ")
    return settings


def checked(path: Path, kind: type[T], body: Any) -> T:
    """What a file holds as a dataclass. Raises SettingsError that names the file and the key."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_python(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise SettingsError(f"{path}: {f'{where}: ' if where else ''}{first['msg'].lower()}") from None


def check_submitter(name: str, where: str = "") -> None:
    """Raises SettingsError for a submitter that neither comes with perfdag nor is installed."""
    there = [*SUBMITTERS, *sorted(each.name for each in entry_points(group=SUBMITTER_GROUP))]
    if name not in there:
        raise SettingsError(f"{where}submitter {name!r}; there are {', '.join(there)}")


def plug_in(group: str, name: str, what: str) -> Any:
    """What is installed under that name of an entry-point group. Raises SettingsError."""
    found = [each for each in entry_points(group=group) if each.name == name]
    if not found:
        raise SettingsError(f"no {what} plug-in {name!r} is installed (group {group})")
    return found[0].load()


def runai_argv(settings: Settings, workload: str, gpus: str, workers: int, pvc: bool) -> list[str]:
    """The Run:ai CLI's arguments for one workload, with {name} and {project} to be filled in."""
    verb = "submit-pytorch" if workload == "distributed" else "submit"
    argv = [settings.runai_cli_path, verb, "{name}", "--project", "{project}", "-i", settings.image]
    argv += ["--image-pull-policy", "IfNotPresent", "-g", gpus]
    if workload == "distributed":
        argv += ["--clean-pod-policy", "none", "--workers", str(workers)]
    if workload == "interactive":
        argv += ["--interactive"]
    if pvc:
        storage = settings.storage_class or RUNAI_STORAGE
        argv += ["--new-pvc", f"ephemeral,size=1Mi,accessmode-rwo,path=/path-new,storageclass={storage},claimname=my-pvc"]
    return [*argv, "--command", "--", "sleep", "infinity"]


def submitted_json(done: Submitted, project: str) -> list[dict[str, str]]:
    """submitted.json: what was accepted, with the moment it was sent."""
    return [
        {
            "jobName": each.name,
            "projectName": project,
            "jobNamespace": each.namespace,
            "submitTimestamp": _iso(done.wall(each.started_ns)) or "",
        }
        for each in done.created
    ]


def sampled_json(rows: Sequence[Row], project: str, backend: Mapping[str, float] | None = None) -> tuple[list[dict[str, Any]], int]:
    """sampled.json: workloads that were scheduled, and how many are not there yet."""
    workloads: dict[tuple[str, str], dict[str, dict[str, Row]]] = {}
    for row in rows:
        if row.status != "failed":
            name = row.name.rpartition("-")[0] if row.kind == SET else row.name  # rows of a set are its VMIs'
            workloads.setdefault((row.namespace, name), {}).setdefault(row.name, {})[row.stage] = row
    found = []
    for (namespace, name), members in workloads.items():
        item: dict[str, Any] = {"jobName": name, "jobNamespace": namespace, "projectName": project}
        kind = next(row.kind for stages in members.values() for row in stages.values())
        times = _TIMES | (_OF_VMS if kind.startswith("VirtualMachine") else _OF_PODS if kind == "Pod" else {})
        # one clock for all of a workload
        watched = all(row.receive_time for stages in members.values() for row in stages.values() if row.status == "ok")
        for key, names in times.items():
            seen = [_first_of(stages, names, watched) for stages in members.values()]
            known = [at for at in seen if at]
            if key in _LAST:
                item[key] = _iso(max(known)) if len(known) == len(seen) else None
            else:
                item[key] = _iso(min(known, default=None))
        item["backendJobCreatedTimestamp"] = _iso((backend or {}).get(name))
        if all(item[key] for key in _NEEDED):
            found.append(item)
    return found, len(workloads) - len(found)


def _first_of(stages: Mapping[str, Row], names: Sequence[str], watched: bool) -> float | None:
    return next((at for each in names if each in stages and (at := _time(stages[each], watched))), None)


def _time(row: Row, watched: bool) -> float | None:
    return row.receive_time if watched else row.api_time or row.event_time


def _iso(seconds: float | None) -> str | None:
    return datetime.fromtimestamp(seconds, UTC).isoformat() if seconds else None


@dataclass
class Times:
    """One workload of times.csv: its info and deltas in seconds (None: unobserved), and why it is left out of plots (empty: it is not)."""

    info: dict[str, Any]
    deltas: dict[str, float | None]
    excluded: str = ""


def read_times(folder: Path) -> list[Times]:
    """Join submitted.json and sampled.json, in order of submission. Files of the original tool are read too. Raises SettingsError.

    A workload's time of submission is of our clock. Where the others are the API's whole seconds, it is put on the API server's clock, whose
    lead is in the sample's summary.json (without one: none).
    """
    ahead = _server_ahead(folder)
    known = _read(folder / "submitted.json", "jobName", "projectName", "submitTimestamp")
    submitted = {(each["jobName"], each["projectName"]): each["submitTimestamp"] for each in known}
    found = []
    for item in _read(folder / "sampled.json", "jobName", "projectName"):
        key = (item["jobName"], item["projectName"])
        if key in submitted:
            found.append(_times({**item, "submitTimestamp": submitted[key]}, ahead))
    return sorted(found, key=lambda each: str(each.info["submitTimestamp"]))


def _read(path: Path, *keys: str) -> list[dict[str, Any]]:
    try:
        data = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        verb = "submit" if path.name == "submitted.json" else "sample"
        raise SettingsError(f"no {path}; run `perfdag scale {verb} -o {path.parent}` first") from None
    except (OSError, ValueError) as error:
        raise SettingsError(f"cannot read {path}: {error}") from None
    if not isinstance(data, list):
        raise SettingsError(f"{path} is not a list of workloads")
    for number, each in enumerate(data, 1):
        lacking = [key for key in keys if not isinstance(each, dict) or key not in each]
        if lacking:
            raise SettingsError(f"{path}: workload {number} of {len(data)} has no {', '.join(lacking)}")
    return data


def _server_ahead(folder: Path) -> float:
    """The server's clock minus ours in seconds, as the sample measured it; 0 where nothing tells."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return float(orjson.loads((folder / "summary.json").read_bytes())["server_clock_ahead_s"])
    return 0.0


def _times(info: dict[str, Any], ahead: float) -> Times:
    def at(key: str) -> float | None:
        text = info.get(key)
        try:
            return datetime.fromisoformat(text).timestamp() if text else None
        except (TypeError, ValueError):
            raise SettingsError(f"workload {info['jobName']}: {key} is {text!r}, not a time (ISO 8601)") from None

    created = at("workloadCreatedTimestamp")
    shift = ahead if created is not None and created == int(created) else 0.0
    deltas: dict[str, float | None] = {}
    for name, (event, since) in REFERENCE.items():
        end, start = at(event), at(since)
        start = start + shift if start is not None and since == "submitTimestamp" else start
        deltas[name] = _delta(start, end) if end is not None and start is not None else None
    group, pod, total = at("podGroupCreatedTimestamp"), at("firstPodCreatedTimestamp"), deltas["Total Pod Scheduling Decision"]
    excluded = ""
    if group is not None and pod is not None and int(group) < int(pod):
        excluded = "pod group older than its first pod (the pod was replaced)"
    elif total is not None and total < -1:
        excluded = "scheduled before it was submitted (clocks differ)"
    elif total is None:
        excluded = "never scheduled"
    return Times(info, deltas, excluded)


def _delta(start: float, end: float) -> float:
    """Seconds between two times of one clock; where one of them is a whole second, both are cut to it, as the tool does."""
    if start == int(start) or end == int(end):
        return float(int(end) - int(start))
    return end - start


def select(times: Sequence[Times], skip_errors: bool, head: int | None, tail: int | None) -> list[Times]:
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
            deltas = ["" if (value := each.deltas[name]) is None else f"{value:.6f}" for name in REFERENCE]
            out.writerow([*info, *deltas, each.excluded])


async def runai_version(kube: Kube) -> str | None:
    """What Run:ai says of its version; None where it is not there, or simulated, or may not be asked.

    It publishes it in a ConfigMap (Run:ai documentation, "Install a cluster", verify your installation).
    """
    with suppress(KubeError):
        told = await kube.get(await kube.resource("v1", "ConfigMap"), "runai-public", "runai")
        version: str | None = (told.get("data") or {}).get("cluster-version")
        return version
    return None


def backend_times(settings: Settings, project: str, namespaces: Sequence[str]) -> dict[str, float]:
    """Unix seconds a job's row appeared in the backend, from the plug-in that the settings name, which is asked for each namespace.

    Raises SettingsError.
    """
    if not settings.backend_times:
        return {}
    times: dict[str, float] = {}
    ask = plug_in("perfdag.backend_times", settings.backend_times, "backend_times")
    for namespace in namespaces:
        times |= ask(project, namespace)
    return times

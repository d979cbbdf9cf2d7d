"""Settings, submitted.json and sampled.json of Run:ai's scale test tool.

Field names are the tool's (run-ai/scale-test-tool, README.md). Differences: an unseen time is null,
and times keep their fraction.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeVar

from perfdag.steps.scale.figures.rows import Row
from perfdag.steps.scale.measure.generator import GeneratorResult
from perfdag.steps.scale.model.stages import SET
from perfdag.steps.scale.model.templates import RUNAI_STORAGE

T = TypeVar("T")
SUBMITTERS = ("api", "kubectl", "runai-cli")
WORKLOAD_TYPES = ("training", "distributed", "interactive")
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
"""Times that a set of VMIs takes from its last VMI; all others come from the first."""


class SettingsError(ValueError):
    """A settings file or a file of the three commands that cannot be used."""


@dataclass
class Settings:
    """Uncommon settings (YAML). Times are as the tool's settings.py names them, in lower case."""

    output_dir: str = "logs"
    project: str = "project-0"
    submitter: str = "api"
    """api, kubectl or runai-cli."""
    runai_cli_path: str = "runai"
    kubectl_path: str = "kubectl"
    image: str = "gcr.io/run-ai-lab/ubuntu:loop"
    storage_class: str = ""
    scheduler_event_times: bool = True
    """Evictions and PVC times, from Events; they cost one more watch."""
    backend_times: str = ""
    """A plug-in of `perfdag.backend_times`: (project, namespace) -> {job name: Unix seconds}."""


def read_settings(path: Path | None) -> Settings:
    """Read settings from a YAML file, or return the defaults. Raises SettingsError with the key."""
    if path is None:
        return Settings()
    import yaml

    try:
        values = yaml.safe_load(path.read_text()) or {}
    except (OSError, yaml.YAMLError) as error:
        raise SettingsError(
            f"cannot read the settings {path}: {' '.join(str(error).split())}"
        ) from None
    known = {field.name: field.type for field in fields(Settings)}
    if not isinstance(values, dict) or set(values) - set(known):
        wrong = (
            ", ".join(sorted(map(str, set(values) - set(known))))
            if isinstance(values, dict)
            else "it is not a mapping"
        )
        raise SettingsError(f"{path}: {wrong}; there are {', '.join(known)}")
    settings = checked(path, Settings, values)
    check_submitter(settings.submitter, f"{path}: ")
    return settings


def checked(path: Path, kind: type[T], body: Any) -> T:
    """Convert the content of a file to a dataclass. Raises SettingsError with file and key."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_python(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise SettingsError(
            f"{path}: {f'{where}: ' if where else ''}{first['msg'].lower()}"
        ) from None


def check_submitter(name: str, where: str = "") -> None:
    """Raise SettingsError for an unknown submitter."""
    if name not in SUBMITTERS:
        raise SettingsError(f"{where}submitter {name!r}; there are {', '.join(SUBMITTERS)}")


def runai_argv(settings: Settings, workload: str, gpus: str, workers: int, pvc: bool) -> list[str]:
    """Return the Run:ai CLI's arguments for a workload, with {name} and {project}."""
    verb = "submit-pytorch" if workload == "distributed" else "submit"
    argv = [settings.runai_cli_path, verb, "{name}", "--project", "{project}", "-i", settings.image]
    argv += ["--image-pull-policy", "IfNotPresent", "-g", gpus]
    if workload == "distributed":
        argv += ["--clean-pod-policy", "none", "--workers", str(workers)]
    if workload == "interactive":
        argv += ["--interactive"]
    if pvc:
        storage = settings.storage_class or RUNAI_STORAGE
        argv += [
            "--new-pvc",
            "ephemeral,size=1Mi,accessmode-rwo,path=/path-new,"
            f"storageclass={storage},claimname=my-pvc",
        ]
    return [*argv, "--command", "--", "sleep", "infinity"]


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


def sampled_json(
    rows: Sequence[Row], project: str, backend: Mapping[str, float] | None = None
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the content of sampled.json, and the names of workloads that were not scheduled."""
    workloads: dict[tuple[str, str], dict[str, dict[str, Row]]] = {}
    for row in rows:
        if row.status != "failed":
            # The rows of a set are those of its VMIs.
            name = row.name.rpartition("-")[0] if row.kind == SET else row.name
            workloads.setdefault((row.namespace, name), {}).setdefault(row.name, {})[row.stage] = (
                row
            )
    scheduled, waiting = [], []
    for (namespace, name), members in workloads.items():
        item: dict[str, Any] = {"jobName": name, "jobNamespace": namespace, "projectName": project}
        kind = next(row.kind for stages in members.values() for row in stages.values())
        times = _TIMES | (
            _OF_VMS if kind.startswith("VirtualMachine") else _OF_PODS if kind == "Pod" else {}
        )
        # Use one clock for all times of a workload.
        watched = all(
            row.receive_time
            for stages in members.values()
            for row in stages.values()
            if row.status == "ok"
        )
        for key, names in times.items():
            seen = [_first_of(stages, names, watched) for stages in members.values()]
            known = [at for at in seen if at]
            if key in _LAST:
                item[key] = _iso(max(known)) if len(known) == len(seen) else None
            else:
                item[key] = _iso(min(known, default=None))
        item["backendJobCreatedTimestamp"] = _iso((backend or {}).get(name))
        if item["podSchedulingDecisionTimestamp"]:
            scheduled.append(item)
        else:
            waiting.append(name)
    return scheduled, waiting


def _first_of(stages: Mapping[str, Row], names: Sequence[str], watched: bool) -> float | None:
    return next(
        (at for name in names if name in stages and (at := _time(stages[name], watched))), None
    )


def _time(row: Row, watched: bool) -> float | None:
    return row.receive_time if watched else row.api_time or row.event_time


def _iso(seconds: float | None) -> str | None:
    return datetime.fromtimestamp(seconds, UTC).isoformat() if seconds else None


def backend_times(settings: Settings, project: str, namespaces: Sequence[str]) -> dict[str, float]:
    """Return when jobs appeared in the backend (Unix seconds), from the plug-in of the settings.

    Raises SettingsError.
    """
    if not settings.backend_times:
        return {}
    times: dict[str, float] = {}
    name = settings.backend_times
    matches = list(entry_points(group="perfdag.backend_times", name=name))
    if not matches:
        raise SettingsError(
            f"no plug-in {name!r} is installed for backend_times (group perfdag.backend_times)"
        )
    ask = matches[0].load()
    for namespace in namespaces:
        times |= ask(project, namespace)
    return times

"""`perfdag scale submit`, `sample`, `plot`, `delete`: workloads in a folder, as in Run:ai's tool.

A folder holds one run. Samples can be repeated, also during the submission. Names of fields and
reference stages are those of the tool (run-ai/scale-test-tool, README.md). As there, a time that
was not seen has the time of another event: `summary.json` lists them, and they are not taken for
measured. Differences: times keep their fraction, differences are never clamped, refused and
unscheduled workloads have a row in times.csv, and its header has as many columns as the rows.
"""

import asyncio
import csv
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, TypeAdapter, ValidationError

from perfdag.benchmark.contract import argv_of
from perfdag.kube.client import IN_POD, Cluster, Kube, KubeError, Object
from perfdag.redaction import logger
from perfdag.steps.scale.cluster import (
    ensure_namespace,
    get_or_none,
    remove,
    served,
)
from perfdag.steps.scale.generate import (
    Batch,
    Submission,
    api_submitter,
    generate,
    plan,
    program_submitter,
    without_name,
)
from perfdag.steps.scale.objects import (
    ONE,
    RUNAI_IMAGE,
    RUNAI_STORAGE,
    SECOND,
    Record,
    kinds_of,
    new_run,
    now_ns,
)
from perfdag.steps.scale.rows import Row, on_simulated, summaries, write_rows
from perfdag.steps.scale.watch import Observer, settled
from perfdag.steps.scale.workloads import RUNAI_API, RUNAI_KINDS, ScaleParams
from perfdag.suite.document import read_document, validated

T = TypeVar("T")
PARTIAL_S = 2.0
"""Time between writing partial files."""
QUIET_S = 30.0
"""Time without a new object of others after which those that are there are all."""
LIMIT_S = 900.0
"""How long others are waited for at most, if no time is given."""


AUDIT = "perf-audit-results.json"
OUTPUTS = ("stages.parquet", "summary.json", AUDIT)
_SAMPLED = ("sampled.json", "times.csv", "general.png", "detailed.png")
_SUBMITTED = ("run.json", "submitted.json")


def write_json(path: Path, value: Any) -> None:
    """Write JSON (atomically, keys in the order given)."""
    new = path.with_suffix(".new")
    new.write_bytes(orjson.dumps(value, option=orjson.OPT_INDENT_2))
    new.replace(path)


def checked(kind: type[T], body: Any, where: object = "") -> T:
    """Return a value of a type from its parts. Raises ValueError in one line with the key."""
    try:
        return TypeAdapter(kind).validate_python(body)
    except ValidationError as errors:
        error = errors.errors()[0]
        text = error["msg"].removeprefix("Value error, ")
        parts = (str(where), ".".join(map(str, error["loc"])), text)
        raise ValueError(": ".join(filter(None, parts))) from None


@dataclass
class RunFile:
    """The contents of run.json. Times are Unix ns."""

    run: str
    api_version: str
    kind: str
    namespaces: list[str]
    project: str
    expected_pods: int | None
    finished: bool = False
    deleted: bool = False
    submissions: list[Submission] = field(default_factory=list)
    generator: dict[str, Any] = field(default_factory=dict)
    others: list[tuple[str, str]] = field(default_factory=list)
    """(apiVersion, kind) of the objects created together with every workload."""
    prefix: str = ""
    """The prefix of the names of workloads without the run's label, as of Run:ai's CLI."""


def read_json(path: Path, verb: str = "") -> Any:
    """Return the contents of a file, which `verb` of `perfdag scale` writes. Raises ValueError."""
    try:
        return orjson.loads(path.read_bytes())
    except FileNotFoundError:
        hint = f"; run `perfdag scale {verb} -o {path.parent}` first" if verb else ""
        raise ValueError(f"no {path}{hint}") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read {path}: {error}") from None


def read_run(folder: Path) -> RunFile:
    """Read run.json. Raises ValueError."""
    path = folder / "run.json"
    return checked(RunFile, read_json(path, "submit"), path)


def remove_outputs(folder: Path, *, submission: bool = False) -> None:
    """Remove the output files of an earlier run, so that they are not mixed with the next one.

    `submission` also removes the files of the submission itself.
    """
    for name in (*_SAMPLED, *OUTPUTS, *(_SUBMITTED if submission else ())):
        (folder / name).unlink(missing_ok=True)


class Settings(BaseModel, extra="forbid"):
    """Uncommon settings (YAML). Times are as the tool's settings.py names them, in lower case."""

    output_dir: str = "logs"
    project: str = "project-0"
    submitter: Literal["api", "kubectl", "runai-cli"] = "api"
    runai_cli_path: str = "runai"
    kubectl_path: str = "kubectl"
    image: str = RUNAI_IMAGE
    storage_class: str = ""
    scheduler_event_times: bool = True
    """Evictions and PVC times, from Events; they cost one more watch."""
    backend_times: str = ""
    """A plug-in of `perfdag.backend_times`: (project, namespace) -> {job name: Unix seconds}."""


def read_settings(path: Path | None) -> Settings:
    """Read settings from a YAML file, or return the defaults. Raises BadDocument."""
    if path is None:
        return Settings()
    document = read_document(path)
    return validated(document, document.data or {}, Settings)


def program_of(cluster: Cluster, params: ScaleParams, settings: Settings) -> list[str]:
    """Return the program of the settings that submits, with its arguments; none means the API.

    Raises ValueError.
    """
    if settings.submitter == "kubectl":
        context = [] if cluster.context == IN_POD else ["--context", cluster.context]
        return [settings.kubectl_path, *context, "-n", "{namespace}", "apply", "-f", "-"]
    if settings.submitter != "runai-cli":
        return []
    if params.template not in RUNAI_KINDS:
        raise ValueError(f"the Run:ai CLI submits {', '.join(RUNAI_KINDS)}; choose it with -t")
    distributed = params.template == "distributed"
    verb = "submit-pytorch" if distributed else "submit"
    storage = params.storage_class or RUNAI_STORAGE
    claim = f"ephemeral,size=1Mi,accessmode-rwo,path=/path-new,storageclass={storage}"
    options = {
        "--project": "{project}",
        "-i": settings.image,
        "--image-pull-policy": "IfNotPresent",
        "-g": params.gpus,
        "--clean-pod-policy": "none" if distributed else None,
        "--workers": params.workers if distributed else None,
        "--interactive": params.template == "interactive",
        "--new-pvc": f"{claim},claimname=my-pvc" if params.pvc else None,
    }
    argv = [settings.runai_cli_path, verb, "{name}", *argv_of(options)]
    return [*argv, "--command", "--", "sleep", "infinity"]


Sample = tuple[list[Row], dict[str, Any]]
"""Rows, and the content of summary.json."""


async def submit(
    kube: Kube,
    params: ScaleParams,
    folder: Path,
    settings: Settings,
    create_namespace: bool,
    watch: float = 0.0,
) -> tuple[RunFile, Sample | None]:
    """Submit all workloads, and write run.json and submitted.json, also during the submission.

    With `watch` they are observed from the first on, and after the last until all are ready, at
    most `watch` seconds. Raises ValueError (such as a folder whose run was not deleted) and
    KubeError before anything is created.
    """
    require_deleted(folder)
    params.check()
    run = new_run()
    template = params.load(run)
    if template.shared:
        raise ValueError("`scale submit` creates no objects without ${name} in their name")
    program = program_of(kube.cluster, params, settings)
    submitter = program_submitter(program) if program else await api_submitter(kube, template)
    name = f"j-{run[-6:]}"
    namespaces = params.namespaces
    *helpers, workload = [(item.api_version, item.kind) for item in template.documents]
    file = RunFile(run, *workload, namespaces, params.project, template.members, others=helpers)
    file.prefix = f"{name}-" if settings.submitter == "runai-cli" else ""
    for namespace in namespaces:
        if create_namespace:
            await ensure_namespace(kube, namespace, run)
        elif not await get_or_none(kube, "v1/Namespace", namespace):
            hint = "create the project, or give --create-namespace"
            raise KubeError(404, "NoNamespace", f"no namespace {namespace!r}", hint)
    folder.mkdir(parents=True, exist_ok=True)
    remove_outputs(folder)
    logger.info(f"run {run}: submitting {params.count} {template.kind} to {', '.join(namespaces)}")
    observer = observer_of(kube, file, settings)
    async with observer if watch else nullcontext():
        batch = plan(name, params.count, namespaces, params.schedule)
        writer = asyncio.create_task(_keep_writing(folder, file, batch))
        try:
            await generate(submitter, template, batch, params.parallel)
            file.finished = True
        finally:
            writer.cancel()
            file.generator = batch.summary() | {"kube": dict(kube.counts)}
            _write_submission(folder, file, batch)
        if not watch:
            return file, None
        return file, await observe(observer, folder, settings, lambda: file, watch)


async def _keep_writing(folder: Path, file: RunFile, batch: Batch) -> None:
    while True:
        _write_submission(folder, file, batch)
        await asyncio.sleep(PARTIAL_S)
        logger.info(f"{len(batch.created)} submitted")


def _write_submission(folder: Path, file: RunFile, batch: Batch) -> None:
    """Write run.json and submitted.json with what was answered until now (atomically).

    In an open loop the time of a submission is when it was due.
    """
    file.submissions = [item for item in batch.submissions if item.answered_ns or file.finished]
    write_json(folder / "submitted.json", [_job(item, file.project) for item in batch.created])
    write_json(folder / "run.json", file)


def _job(item: Submission, project: str) -> dict[str, Any]:
    return {
        "jobName": item.name,
        "projectName": project,
        "jobNamespace": item.namespace,
        "submitTimestamp": _iso(item.intended_ns / 1e9),
    }


def require_deleted(folder: Path) -> None:
    """Raise ValueError if the folder's run was not deleted: run.json is the record of it."""
    file = read_run(folder) if (folder / "run.json").exists() else None
    if file and not file.deleted:
        raise ValueError(
            f"{folder} holds run {file.run}; `perfdag scale delete -o {folder}` first, or give "
            "another folder with -o"
        )


async def delete(kube: Kube, folder: Path, timeout: float) -> int:
    """Delete the run's objects, and return how many are left after `timeout` seconds.

    A namespace that `submit` made stays. Of a folder of Run:ai's own submitter the workloads that
    it names are deleted. Raises KubeError if the cluster serves none of their kinds.
    """
    is_ours = (folder / "run.json").exists()
    file = read_submission(folder, None, None)
    kinds = ["/".join(kind) for kind in ((file.api_version, file.kind), *file.others)]
    if not is_ours:
        kinds = await served(kube, kinds) or kinds
    names = {item.name for item in file.submissions}

    def named(body: Object) -> bool:
        name = str(body["metadata"]["name"])
        return name.startswith(file.prefix) if is_ours else name in names

    count = await remove(
        kube, file.run, kinds, file.namespaces, timeout, also=(named if file.prefix else None)
    )
    if is_ours:
        file.deleted = not count
        write_json(folder / "run.json", file)
    return count


def read_submission(folder: Path, workload_type: str | None, project: str | None) -> RunFile:
    """Read what was submitted until now. Raises ValueError for another type or project.

    A folder of Run:ai's own submitter has no run.json: they say there what was submitted.
    """
    kind = RUNAI_KINDS[workload_type or "training"]
    if not (folder / "run.json").exists() and (folder / "submitted.json").exists():
        jobs = _read(folder / "submitted.json", "submit", "submitTimestamp")
        submissions = []
        for index, job in enumerate(jobs):
            at_ns = round((_time_of(job, "submitTimestamp") or 0.0) * 1e9)
            namespace = job.get("jobNamespace") or f"runai-{job['projectName']}"
            submissions.append(Submission(index, job["jobName"], namespace, at_ns, at_ns, at_ns))
        return RunFile(
            run="submitted",
            api_version=RUNAI_API,
            kind=kind,
            namespaces=sorted({item.namespace for item in submissions}),
            project=project or next((str(job["projectName"]) for job in jobs), ""),
            expected_pods=None if workload_type == "distributed" else 1,
            finished=True,
            submissions=submissions,
            others=[(RUNAI_API, name) for name in RUNAI_KINDS.values() if name != kind],
            prefix="j-",
        )
    file = read_run(folder)
    if workload_type and kind != file.kind:
        raise ValueError(f"run {file.run} is of {file.kind}, not {workload_type}")
    if project and project != file.project:
        raise ValueError(f"run {file.run} was submitted to project {file.project}, not {project}")
    return file


def observer_of(kube: Kube, file: RunFile, settings: Settings) -> Observer:
    """Return an observer of a run's workloads.

    Those of a file with a prefix have no label of the run, so their names tell them.
    """
    return Observer(
        kube,
        file.run,
        kinds_of(file.api_version, file.kind),
        file.namespaces,
        primary=[] if file.prefix else [file.kind],
        named=(file.kind, file.prefix) if file.prefix else None,
        events=settings.scheduler_event_times,
    )


async def sample(
    kube: Kube,
    folder: Path,
    settings: Settings,
    read: Callable[[], RunFile],
    watch: float = 0.0,
) -> Sample:
    """Observe a run as `observe` does. Raises ValueError, KubeError."""
    async with observer_of(kube, read(), settings) as observer:
        return await observe(observer, folder, settings, read, watch)


async def observe(
    observer: Observer,
    folder: Path,
    settings: Settings,
    read: Callable[[], RunFile],
    watch: float,
) -> Sample:
    """Watch until all are ready, and write sampled.json, stages.parquet and summary.json.

    Takes at most `watch` seconds. `read` reads what was submitted until now. Results of an earlier
    run stay until new ones exist. Raises ValueError, KubeError.
    """
    file = read()
    deadline = time.monotonic() + watch
    while (remaining := deadline - time.monotonic()) > 0:
        # Before the file is read anew: the end waits for a look without new submissions.
        count = len(file.submissions)
        file = read()
        created = [item for item in file.submissions if item.answered_ns and not item.error]
        counts = settled(observer, file.kind, file.expected_pods, "ready")
        ready = sum(counts.get((item.namespace, item.name), 0) for item in created)
        expected = len(created) * (file.expected_pods or 1)
        logger.info(f"{ready} of {expected} are ready")
        if file.finished and ready >= expected and len(file.submissions) == count:
            break
        await observer.until(lambda: False, min(remaining, PARTIAL_S))  # raises what ended a watch
    rows = observer.rows(file.submissions, file.kind, file.expected_pods)
    backend = backend_times(settings, file.project, file.namespaces)
    sampled, unseen, waiting = sampled_json(rows, file.project, backend)
    write_json(folder / "sampled.json", sampled)
    write_rows(folder / "stages.parquet", rows)
    facts = {
        "server_clock_ahead_s": observer.ahead_s,
        "generator": file.generator,
        "submitted": len(file.submissions),
        "scheduled": len(sampled),
        "waiting": waiting,
        "absent_kinds": observer.absent,
        "unseen": unseen,
        "run": file.run,
        "simulated": on_simulated(rows),
        "stages": [vars(summary) for summary in summaries(rows)],
    }
    write_json(folder / "summary.json", facts)
    return rows, facts


async def measure(
    kube: Kube,
    folder: Path,
    kind: str,
    selector: str,
    namespaces: list[str],
    seconds: float | None,
) -> Sample:
    """Observe the objects of a kind with these labels that others create from now on.

    Takes `seconds`; with None it ends when all are ready and no new one came for QUIET_S, or after
    LIMIT_S. Raises KubeError.
    """
    await kube.path(kind)
    version, _, name = kind.rpartition("/")
    kinds = kinds_of(version, name)
    where: Sequence[str | None] = namespaces or [None]
    observer = Observer(kube, new_run(), kinds, where, primary=[name], selector=selector)
    file = RunFile(observer.run, version, name, namespaces, "", 1 if name in ONE else None)
    async with observer:
        older = {record.uid for record in observer.of(name)}
        logger.info(f"watching each {name} with the labels {selector}: create them now")

        def read() -> RunFile:
            new = [record for record in observer.of(name) if record.uid not in older]
            file.submissions = [_as_submission(*item, observer.ahead_s) for item in enumerate(new)]
            ages = [now_ns() - item.intended_ns for item in file.submissions]
            file.finished = seconds is None and min(ages, default=0) > QUIET_S * SECOND
            return file

        remove_outputs(folder, submission=True)
        return await observe(observer, folder, Settings(), read, seconds or LIMIT_S)


def _as_submission(index: int, record: Record, ahead_s: float) -> Submission:
    """Return an object of others as if it was submitted when it was created."""
    api, received = record.stages["created"]
    at = received or api - round(ahead_s * SECOND)
    return Submission(index, record.name, record.namespace, at, at, at, record.uid)


def backend_times(settings: Settings, project: str, namespaces: Sequence[str]) -> dict[str, float]:
    """Return when jobs appeared in the backend (Unix seconds), from the plug-in of the settings.

    Raises ValueError.
    """
    name = settings.backend_times
    plugins = entry_points(group="perfdag.backend_times", name=name)
    if name and not plugins:
        raise ValueError(f"no plug-in {name!r} is installed for perfdag.backend_times")
    times: dict[str, float] = {}
    for plugin in plugins:
        for namespace in namespaces:
            times |= plugin.load()(project, namespace)
    return times


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


def sampled_json(
    rows: Sequence[Row], project: str, backend: Mapping[str, float] | None = None
) -> tuple[list[dict[str, Any]], dict[str, list[str]], int]:
    """Return the content of sampled.json, the times not seen by workload, and how many wait.

    `backend` has the times of the backend by workload (Unix seconds).
    """
    workloads: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        if row.status != "failed":
            workloads.setdefault((row.namespace, row.name), {})[row.stage] = row
    scheduled = []
    unseen: dict[str, list[str]] = {}
    for (namespace, name), stages in workloads.items():
        watched = all(row.source == "watch" for row in stages.values() if row.status == "ok")
        times = {stage: row.reached if watched else row.api_time for stage, row in stages.items()}
        if "created" in stages and stages["created"].kind == "Pod":
            times["first_pod_created"] = times["last_pod_created"] = times["created"]
        item: dict[str, Any] = {"jobName": name, "jobNamespace": namespace, "projectName": project}
        for key, names in _TIMES.items():
            item[key] = _iso(next(filter(None, (times.get(stage) for stage in names)), None))
        item["backendJobCreatedTimestamp"] = _iso((backend or {}).get(name))
        if item["podSchedulingDecisionTimestamp"]:
            unseen[name] = [key for key in _STAND_INS if not item[key]]
            for key, stand_in in _STAND_INS.items():
                item[key] = item[key] or item[stand_in]
            scheduled.append(item)
    return scheduled, unseen, len(workloads) - len(scheduled)


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


STRAY = "not in submitted.json"
"""Why a workload without a submission is excluded: it has no place in a plot."""


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
    Raises ValueError.
    """
    summary = dict[str, Any]()
    with suppress(FileNotFoundError):  # the original tool writes none
        summary = orjson.loads((folder / "summary.json").read_bytes())
    submitted = _read_by_job(folder / "submitted.json", "submit", "submitTimestamp")
    sampled = _read_by_job(folder / "sampled.json", "sample")
    _forget_unseen(list(sampled.values()), summary.get("unseen"))
    ahead = summary.get("server_clock_ahead_s", 0.0)
    stray = {"submitTimestamp": None}
    workloads = [
        _times({**sampled.get(key, {}), **submitted.get(key, stray)}, ahead)
        for key in dict.fromkeys((*submitted, *sampled))
    ]
    if (folder / "run.json").exists():
        file = read_run(folder)
        workloads += [
            WorkloadTimes(
                _job(item, file.project),
                dict.fromkeys(REFERENCE),
                f"refused: {without_name(item.error, item.name)}",
            )
            for item in file.submissions
            if item.error
        ]
    return sorted(workloads, key=lambda workload: str(workload.info["submitTimestamp"]))


def _forget_unseen(
    sampled: Sequence[dict[str, Any]], unseen: Mapping[str, Sequence[str]] | None
) -> None:
    """Drop the times that stand in for others: those that a sample of ours lists.

    In files of the original tool, those that no workload has otherwise.
    """
    for key, stand_in in _OPTIONAL.items():
        if unseen is None and all(item.get(key) == item.get(stand_in) for item in sampled):
            for item in sampled:
                item.pop(key, None)
    for item in sampled:
        for key in (unseen or {}).get(item["jobName"], ()):
            item.pop(key, None)


def _read_by_job(path: Path, verb: str, *keys: str) -> dict[tuple[str, str], dict[str, Any]]:
    return {(job["jobName"], job["projectName"]): job for job in _read(path, verb, *keys)}


def _read(path: Path, verb: str, *keys: str) -> list[dict[str, Any]]:
    """Return the workloads of a file, which have a name, a project and `keys`."""
    data = checked(list[dict[str, Any]], read_json(path, verb), path)
    for number, workload in enumerate(data, 1):
        lacking = [key for key in ("jobName", "projectName", *keys) if key not in workload]
        if lacking:
            raise ValueError(
                f"{path}: workload {number} of {len(data)} has no {', '.join(lacking)}"
            )
    return data


def _time_of(info: Mapping[str, Any], key: str) -> float | None:
    """Return a time of a workload in Unix seconds. Raises ValueError."""
    return datetime.fromisoformat(info[key]).timestamp() if info.get(key) else None


def _times(info: dict[str, Any], ahead: float) -> WorkloadTimes:
    times = {key: _time_of(info, key) for key in set().union(*REFERENCE.values())}
    submitted = times["submitTimestamp"]
    first = times["workloadCreatedTimestamp"] or times["podSchedulingDecisionTimestamp"]
    if submitted is not None and first is not None and first == int(first):
        times["submitTimestamp"] = submitted + ahead
    deltas = {
        name: _delta(times[since], times[event]) for name, (event, since) in REFERENCE.items()
    }
    return WorkloadTimes(info, deltas, _exclusion(times, deltas["Total Pod Scheduling Decision"]))


def _exclusion(times: Mapping[str, float | None], total: float | None) -> str:
    """Return why plots exclude a workload, "" if they do not; `total` is until its scheduling."""
    group = times["podGroupCreatedTimestamp"]
    pod = times["firstPodCreatedTimestamp"]
    if times["submitTimestamp"] is None:
        return STRAY
    if group is not None and pod is not None and int(group) < int(pod):
        return "pod group older than its first pod (the pod was replaced)"
    if total is not None and total < -1:
        return "scheduled before it was submitted (clocks differ)"
    if times["podSchedulingDecisionTimestamp"] is None:
        return "not scheduled when sampled"
    return ""


def _delta(start: float | None, end: float | None) -> float | None:
    """Return the seconds between two times, both truncated if one has whole seconds."""
    if start is None or end is None:
        return None
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
    rows = []
    for workload in times:
        info = [workload.info.get(key) or "" for key in _INFO.values()]
        deltas = [workload.deltas[name] for name in REFERENCE]
        seconds = ["" if delta is None else f"{delta:.6f}" for delta in deltas]
        rows.append([*info, *seconds, workload.excluded])
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([[*_INFO, *REFERENCE, "Excluded"], *rows])

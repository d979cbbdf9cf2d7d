"""`perfdag scale submit`, `sample` and `delete`: workloads in a folder, as Run:ai's tool has them.

A folder holds one run. Samples can be repeated, also during the submission or after an
interruption.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict

from perfdag.kube.client import Kube, KubeError, Object, Resource
from perfdag.kube.config import IN_POD
from perfdag.steps.scale.cluster import (
    SAMPLE,
    ExclusiveRun,
    ensure_namespace,
    namespace_of,
    objects_of_run,
    remove,
    remove_namespaces,
)
from perfdag.steps.scale.files import (
    RunFile,
    SettingsError,
    checked,
    read_run,
    read_summary,
    remove_outputs,
    write_json,
    write_rows,
    write_run,
)
from perfdag.steps.scale.generate import (
    ApiSubmitter,
    CommandSubmitter,
    GeneratorResult,
    Schedule,
    Submitter,
    generate,
)
from perfdag.steps.scale.objects import (
    RUNAI_STORAGE,
    TemplateError,
    kinds_of,
    load,
    new_run,
)
from perfdag.steps.scale.rows import Row, on_simulated, summaries
from perfdag.steps.scale.scenario import read_rows
from perfdag.steps.scale.times import read_submitted, sampled_json, submitted_json
from perfdag.steps.scale.watch import Observer, WatchLag, server_offset, settled
from perfdag.steps.scale.workloads import RUNAI_KINDS
from perfdag.units import plural

logger = logging.getLogger(__name__)
PARTIAL_S = 2.0
"""Time between writing partial files."""


@dataclass
class Settings:
    """Uncommon settings (YAML). Times are as the tool's settings.py names them, in lower case."""

    __pydantic_config__ = ConfigDict(extra="forbid")
    output_dir: str = "logs"
    project: str = "project-0"
    submitter: Literal["api", "kubectl", "runai-cli"] = "api"
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
        text = " ".join(str(error).split())
        raise SettingsError(f"cannot read the settings {path}: {text}") from None
    return checked(Settings, values, path)


@dataclass
class SubmitRequest:
    """A submission of workloads."""

    template: str
    count: int
    parallel: int
    schedule: Schedule
    folder: Path
    settings: Settings
    workers: int = 1
    gpus: str = "1"
    pvc: bool = False
    namespaces: list[str] = field(default_factory=list)
    """Namespaces of the workloads, in turn; none: runai-<project>."""
    create_namespace: bool = False
    variables: dict[str, Any] = field(default_factory=dict)
    lock_timeout: float = 3600.0


def command_submitter(kube: Kube, request: SubmitRequest) -> CommandSubmitter | None:
    """Return the program of the settings that submits; None means the API.

    Raises TemplateError, SettingsError.
    """
    settings, cluster = request.settings, kube.cluster
    if settings.submitter == "kubectl":
        context = [] if cluster.source == IN_POD else ["--context", cluster.context]
        argv = [settings.kubectl_path, *context, "-n", "{namespace}", "apply", "-f", "-"]
        return CommandSubmitter(kube, argv)
    if settings.submitter != "runai-cli":
        return None
    if request.template not in RUNAI_KINDS:
        raise TemplateError(
            f"the Run:ai CLI submits {', '.join(RUNAI_KINDS)}, not {request.template}"
        )
    if not cluster.current:
        raise SettingsError(
            f"the Run:ai CLI submits to the current context of the kubeconfig, not to "
            f"{cluster.context!r}; run `kubectl config use-context {cluster.context}` first, or "
            "use --submitter api"
        )
    return CommandSubmitter(kube, runai_argv(request), reads_input=False)


def runai_argv(request: SubmitRequest) -> list[str]:
    """Return the Run:ai CLI's arguments for a workload, with {name} and {project}."""
    settings, distributed = request.settings, request.template == "distributed"
    verb = "submit-pytorch" if distributed else "submit"
    argv = [settings.runai_cli_path, verb, "{name}", "--project", "{project}", "-i", settings.image]
    argv += ["--image-pull-policy", "IfNotPresent", "-g", request.gpus]
    if distributed:
        argv += ["--clean-pod-policy", "none", "--workers", str(request.workers)]
    if request.template == "interactive":
        argv += ["--interactive"]
    if request.pvc:
        storage = settings.storage_class or RUNAI_STORAGE
        claim = "ephemeral,size=1Mi,accessmode-rwo,path=/path-new"
        argv += ["--new-pvc", f"{claim},storageclass={storage},claimname=my-pvc"]
    return [*argv, "--command", "--", "sleep", "infinity"]


async def submit(kube: Kube, request: SubmitRequest) -> RunFile:
    """Submit all workloads under the performance lock, and write run.json and submitted.json.

    Both files are also written during the submission. Raises TemplateError, SettingsError
    (workloads of the folder's run still exist) and KubeError before anything is created.
    """
    await require_deleted(kube, request.folder)
    run, settings = new_run(), request.settings
    values = {"project": settings.project, "workers": request.workers, "gpus": request.gpus}
    template = load(
        request.template,
        run,
        {**values, "image": settings.image, **request.variables},
        pvc=request.pvc,
        storage_class=settings.storage_class or None,
    )
    if template.shared:
        raise TemplateError(f"{request.template}: `scale submit` creates no objects without name")
    if template.kind.startswith("VirtualMachine"):
        raise TemplateError(f"use `perfdag scale vmi` for a {template.kind}")
    namespaces = request.namespaces or [f"runai-{settings.project}"]
    submitter: Submitter | None = command_submitter(kube, request)
    submitter = submitter or await ApiSubmitter.open(kube, template)
    labelled = settings.submitter != "runai-cli"
    *others, last = [(document.api_version, document.kind) for document in template.documents]
    prefix = f"j-{run[-6:]}"
    file = RunFile(
        run,
        *last,
        namespaces,
        settings.project,
        template.members,
        others=others,
        prefix="" if labelled else f"{prefix}-",
    )
    async with AsyncExitStack() as stack:
        lock = ExclusiveRun(kube, run, request.lock_timeout)
        try:
            await stack.enter_async_context(lock)
        except KubeError as error:
            if error.status != 403:
                raise
            logger.warning(f"other performance runs are not kept out: {error}")
        for namespace in namespaces:
            if request.create_namespace:
                await ensure_namespace(kube, namespace, run)
            elif not await namespace_of(kube, namespace):
                hint = "create the project, or give --create-namespace"
                raise KubeError(404, "NoNamespace", f"no namespace {namespace!r}", hint)
        request.folder.mkdir(parents=True, exist_ok=True)
        remove_outputs(request.folder)
        where = ", ".join(namespaces)
        logger.info(f"run {run}: submitting {request.count} {template.kind} to {where}")
        planned = list[GeneratorResult]()
        work = generate(
            submitter,
            template,
            request.count,
            namespaces,
            request.schedule,
            request.parallel,
            run=run,
            prefix=prefix,
            on_plan=planned.append,
        )
        writer = asyncio.create_task(_write_partial(request, file, planned))
        try:
            done = await work
            file.submissions, file.finished = done.submissions, True
            file.generator = done.summary(request.schedule)
        finally:
            writer.cancel()
            _write_submission(request.folder, file, planned)
    return file


async def _write_partial(
    request: SubmitRequest, file: RunFile, planned: Sequence[GeneratorResult]
) -> None:
    last_message = time.monotonic()
    while True:
        _write_submission(request.folder, file, planned)
        if time.monotonic() - last_message > 5:
            logger.info(f"{len(file.submissions)}/{request.count} submitted")
            last_message = time.monotonic()
        await asyncio.sleep(PARTIAL_S)


def _write_submission(folder: Path, file: RunFile, planned: Sequence[GeneratorResult]) -> None:
    """Write run.json and submitted.json with what was answered until now (atomically)."""
    for done in planned:
        if not file.finished:
            file.submissions = [item for item in done.submissions if item.answered_ns]
        write_json(folder / "submitted.json", submitted_json(done, file.project))
    write_run(folder / "run.json", file)


async def require_deleted(kube: Kube, folder: Path) -> None:
    """Raise SettingsError if workloads of the folder's submission still exist.

    Overwriting run.json would lose the only record of them.
    """
    if not (folder / "run.json").exists():
        return
    file = read_run(folder)
    try:
        kinds, also = await _created_kinds(kube, file)
    except KubeError as error:
        if error.status != 404:
            raise
        return  # the cluster has no such kinds any more
    if count := len(await objects_of_run(kube, file.run, kinds, file.namespaces, also=also)):
        text = f"{folder} holds run {file.run}; still there: {plural(count, 'object')}"
        raise SettingsError(
            f"{text}; `perfdag scale delete -o {folder}` first, or give another folder with -o"
        )


async def delete(kube: Kube, folder: Path, timeout: float) -> int:
    """Delete the run's objects and its own namespaces, and return how many objects are left.

    Waits up to `timeout` seconds. A namespace that holds other objects stays, and the log says why.
    """
    file, deadline = read_run(folder), time.monotonic() + timeout
    kinds, also = await _created_kinds(kube, file)
    left = await remove(kube, file.run, kinds, file.namespaces, timeout, also=also)
    return left or await remove_namespaces(
        kube, file.run, file.namespaces, max(0.0, deadline - time.monotonic())
    )


async def _created_kinds(
    kube: Kube, file: RunFile
) -> tuple[list[Resource], Callable[[Object], bool] | None]:
    """Return the kinds of a submission, and a test for workloads that carry no label."""
    kinds = [await kube.resource(*kind) for kind in ((file.api_version, file.kind), *file.others)]

    def named(body: Object) -> bool:
        name = str(body["metadata"]["name"])
        return bool(body["kind"] == file.kind and name.startswith(file.prefix))

    return kinds, named if file.prefix else None


@dataclass
class Sample:
    """The result of a sample."""

    file: RunFile
    rows: list[Row]
    scheduled: int
    waiting: int
    absent: list[str]


@dataclass
class SampleRequest:
    """How to take a sample of the run in `folder`.

    Without `watch` it is a snapshot. With it, the sample lasts until all is ready, at most that
    many seconds. A run of another `workload_type` or `project` is refused. A folder of Run:ai's own
    submitter has no run.json: they say there what was submitted.
    """

    folder: Path
    settings: Settings
    watch: float | None = None
    workload_type: str | None = None
    project: str | None = None

    def read(self) -> RunFile:
        """Read what was submitted until now. Raises SettingsError."""
        kind = RUNAI_KINDS[self.workload_type or "training"]
        if not (self.folder / "run.json").exists() and (self.folder / "submitted.json").exists():
            project, submissions = read_submitted(self.folder)
            project = self.project or project
            namespaces = sorted({item.namespace for item in submissions})
            members = None if self.workload_type == "distributed" else 1
            own = "run.ai/v2alpha1", kind, namespaces, project, members, True
            return RunFile("submitted", *own, submissions, prefix="j-")
        file = read_run(self.folder)
        if self.workload_type and kind != file.kind:
            raise SettingsError(f"run {file.run} is of {file.kind}, not {self.workload_type}")
        if self.project and self.project != file.project:
            raise SettingsError(
                f"run {file.run} was submitted to project {file.project}, not {self.project}"
            )
        return file


async def sample(kube: Kube, request: SampleRequest) -> Sample:
    """Observe a run and write sampled.json, stages.parquet and summary.json.

    Results of an earlier run stay until new ones exist. Raises SettingsError, KubeError.
    """
    folder, settings, file = request.folder, request.settings, request.read()
    observer = Observer(
        kube,
        file.run,
        kinds_of(file.api_version, file.kind),
        file.namespaces,
        primary=[] if file.prefix else [file.kind],
        named=(file.kind, file.prefix) if file.prefix else None,
        events=settings.scheduler_event_times,
    )
    offset = await server_offset(kube)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(observer)
        lag: WatchLag | None = None
        if request.watch is not None:
            with suppress(KubeError):  # without a right on ConfigMaps the lag is unknown
                probe = WatchLag(kube, f"{file.run}-{SAMPLE}", file.namespaces[0])
                lag = await stack.enter_async_context(probe)
        complete, deadline = is_complete(observer, file), time.monotonic() + (request.watch or 0.0)
        while not complete and (left := deadline - time.monotonic()) > 0:
            await observer.until(partial(is_complete, observer, file), min(left, PARTIAL_S))
            known, file = len(file.submissions), request.read()
            complete = len(file.submissions) == known and is_complete(observer, file)
            ready, wanted = progress(observer, file)
            logger.info(f"{ready} of {wanted} are ready")
        rows, why = await read_rows(
            observer, file.submissions, file.kind, file.expected_pods, offset
        )
    backend = backend_times(settings, file.project, file.namespaces)
    sampled, unseen, waiting = sampled_json(rows, file.project, backend)
    if read_summary(folder).get("run") != file.run:
        remove_outputs(folder)
    write_json(folder / "sampled.json", sampled)
    write_rows(folder / "stages.parquet", rows)
    if why:
        logger.warning(why)
    facts = {
        "server_clock_ahead_s": offset,
        "watch_lag": lag.summary() if lag else None,
        "generator": file.generator,
        "not_scheduled": waiting,
        "unseen": unseen,
        "run": file.run,
        "simulated": on_simulated(rows),
        "notes": [why] if why else [],
        "stages": [asdict(summary) for summary in summaries(rows)],
    }
    write_json(folder / "summary.json", facts)
    return Sample(file, rows, len(sampled), len(waiting), observer.absent)


def progress(observer: Observer, file: RunFile) -> tuple[int, int]:
    """Return how many pods or workloads are ready, and how many are expected."""
    counts = settled(observer, file.kind, file.expected_pods, "ready")
    names = [item.name for item in file.submissions if item.answered_ns and not item.error]
    ready = sum(counts.get(name, 0) for name in names)
    return ready, len(names) * (file.expected_pods or 1)


def is_complete(observer: Observer, file: RunFile) -> bool:
    """Tell whether the submission has ended and all its objects are ready."""
    ready, wanted = progress(observer, file)
    return file.finished and ready >= wanted


def backend_times(settings: Settings, project: str, namespaces: Sequence[str]) -> dict[str, float]:
    """Return when jobs appeared in the backend (Unix seconds), from the plug-in of the settings.

    Raises SettingsError.
    """
    times: dict[str, float] = {}
    if name := settings.backend_times:
        group = "perfdag.backend_times"
        matches = list(entry_points(group=group, name=name))
        if not matches:
            raise SettingsError(f"no plug-in {name!r} is installed for {group}")
        for namespace in namespaces:
            times |= matches[0].load()(project, namespace)
    return times

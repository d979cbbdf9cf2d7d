"""Submit and delete workloads for `perfdag scale submit` and `delete`."""

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfdag.kube.client import Kube, KubeError, Resource
from perfdag.kube.config import IN_POD
from perfdag.steps.scale.cluster import rights
from perfdag.steps.scale.cluster.lease_lock import ExclusiveRun
from perfdag.steps.scale.cluster.removal import (
    ensure_namespace,
    namespace_of,
    objects_of_run,
    remove,
    remove_namespaces,
)
from perfdag.steps.scale.measure.errors import SelfLoad
from perfdag.steps.scale.measure.generator import (
    ApiSubmitter,
    CommandSubmitter,
    GeneratorResult,
    Schedule,
    Submitter,
    generate,
)
from perfdag.steps.scale.model.templates import Template, TemplateError, load, new_run
from perfdag.steps.scale.runai import run_file
from perfdag.steps.scale.runai.run_file import (
    RunFile,
    name_prefix,
    read_run,
    remove_outputs,
    write_run,
)
from perfdag.steps.scale.runai.settings import (
    WORKLOAD_TYPES,
    Settings,
    SettingsError,
    runai_argv,
    submitted_json,
)
from perfdag.units import plural

LABELS = ("api", "kubectl")
"""Submitters that create the template's objects as they are, with the run's label."""
PARTIAL = 2.0
"""Seconds between writing partial files while submitting."""


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
    log: Callable[[str], None] = lambda text: None


def submitter_for(kube: Kube, request: SubmitRequest) -> Submitter | None:
    """Return the submitter of the settings; None means the API.

    Raises TemplateError, SettingsError.
    """
    settings = request.settings
    if settings.submitter == "kubectl":
        context = [] if kube.cluster.source == IN_POD else ["--context", kube.cluster.context]
        return CommandSubmitter(
            kube, [settings.kubectl_path, *context, "-n", "{namespace}", "apply", "-f", "-"]
        )
    if settings.submitter == "runai-cli":
        if request.template not in WORKLOAD_TYPES:
            raise TemplateError(
                f"the Run:ai CLI submits {', '.join(WORKLOAD_TYPES)}, not {request.template}"
            )
        if not kube.cluster.current:
            name = kube.cluster.context
            text = (
                f"the Run:ai CLI submits to the current context of the kubeconfig, not to {name!r}"
            )
            raise SettingsError(
                f"{text}; run `kubectl config use-context {name}` first, or use --submitter api"
            )
        argv = runai_argv(settings, request.template, request.gpus, request.workers, request.pvc)
        return CommandSubmitter(kube, argv, reads_input=False)
    return None


async def submit(kube: Kube, request: SubmitRequest) -> RunFile:
    """Submit all workloads under the performance lock, and write run.json and submitted.json.

    Both files are also written during the submission. Raises TemplateError, SettingsError
    (workloads of the folder's run still exist) and KubeError before anything is created.
    """
    await require_deleted(kube, request.folder)
    run = new_run()
    project = request.settings.project
    values = {
        "project": project,
        "workers": request.workers,
        "gpus": request.gpus,
        "image": request.settings.image,
    }
    template = load(
        request.template,
        run,
        values | request.variables,
        pvc=request.pvc,
        storage_class=request.settings.storage_class or None,
    )
    if template.shared:
        raise TemplateError(
            f"{request.template}: `scale submit` creates no shared objects; use ${{name}}"
        )
    namespaces = request.namespaces or [f"runai-{project}"]
    submitter = submitter_for(kube, request) or await ApiSubmitter.open(kube, template)
    if request.settings.submitter in LABELS:  # Run:ai's tools may have more rights than the user
        await rights.check(kube, template, namespaces)
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(
                ExclusiveRun(kube, run, request.lock_timeout, request.log)
            )
        except KubeError as error:
            if error.status != 403:
                raise
            request.log(f"other performance runs are not kept out: {error}")
        return await submit_run(kube, request, template, namespaces, submitter, run)


async def submit_run(
    kube: Kube,
    request: SubmitRequest,
    template: Template,
    namespaces: list[str],
    submitter: Submitter,
    run: str,
) -> RunFile:
    """Submit under the lock that the caller holds, and return the run's file."""
    for namespace in namespaces:
        await _namespace(kube, namespace, run, request.create_namespace)
    request.folder.mkdir(parents=True, exist_ok=True)
    remove_outputs(request.folder)
    last = template.documents[-1]
    others = [(document.api_version, document.kind) for document in template.documents[:-1]]
    project = request.settings.project
    file = RunFile(
        run,
        last.api_version,
        last.kind,
        namespaces,
        project,
        request.workers,
        template.members,
        False,
        [],
        {},
        others,
        labelled=request.settings.submitter in LABELS,
    )
    request.log(f"run {run}: submitting {request.count} {template.kind} to {', '.join(namespaces)}")
    done = GeneratorResult(run, [], time.time(), time.monotonic_ns())
    finished = asyncio.Event()

    async def write_partial() -> None:
        while not finished.is_set():
            write(request.folder, file, done)
            with suppress(TimeoutError):
                await asyncio.wait_for(finished.wait(), PARTIAL)

    writer = asyncio.create_task(write_partial())
    last_message = time.monotonic()

    def on_submit(item: Any) -> None:
        nonlocal last_message
        file.submissions.append(item)
        done.submissions.append(item)
        if time.monotonic() - last_message > 5:
            request.log(f"{len(file.submissions)}/{request.count} submitted")
            last_message = time.monotonic()

    try:
        async with SelfLoad() as self_load:
            submitted = await generate(
                submitter,
                template,
                request.count,
                namespaces,
                request.schedule,
                request.parallel,
                run=run,
                prefix=name_prefix(run),
                on_submit=on_submit,
            )
            if self_load.note:
                request.log(self_load.note)
            generator = submitted.summary(request.schedule) | {"harness_cpu": self_load.share}
        file.submissions, file.generator, file.finished = submitted.submissions, generator, True
        done = submitted
    finally:
        finished.set()
        await writer
        write(request.folder, file, done)
    return file


async def require_deleted(kube: Kube, folder: Path) -> None:
    """Raise SettingsError if workloads of the folder's submission still exist.

    Overwriting run.json would lose the only record of them.
    """
    if not (folder / "run.json").exists():
        return
    file = read_run(folder, 0)
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


def write(folder: Path, file: RunFile, done: GeneratorResult) -> None:
    """Write run.json and submitted.json (atomically)."""
    write_run(folder / "run.json", file, done)
    run_file.write_json(folder / "submitted.json", submitted_json(done, file.project))


async def _namespace(kube: Kube, name: str, run: str, create: bool) -> None:
    if create:
        await ensure_namespace(kube, name, run)
    elif not await namespace_of(kube, name):
        raise KubeError(
            404,
            "NoNamespace",
            f"no namespace {name!r}",
            "create the project, or give --create-namespace",
        )


async def delete(
    kube: Kube,
    folder: Path,
    parallel: int,
    timeout: float,
    log: Callable[[str], None] = lambda text: None,
) -> int:
    """Delete the run's objects and its own namespaces, and return how many objects are left.

    Waits up to `timeout` seconds. A namespace that holds other objects stays, and the log says why.
    """
    file, deadline = read_run(folder, 0), time.monotonic() + timeout
    kinds, also = await _created_kinds(kube, file)
    left = await remove(kube, file.run, kinds, file.namespaces, parallel, timeout, also=also)
    return left or await remove_namespaces(
        kube, file.run, file.namespaces, max(0.0, deadline - time.monotonic()), log
    )


async def _created_kinds(
    kube: Kube, file: RunFile
) -> tuple[list[Resource], Callable[[dict[str, Any]], bool] | None]:
    """Return the kinds of a submission, and a test for workloads that carry no label."""
    kinds = [await kube.resource(*kind) for kind in ((file.api_version, file.kind), *file.others)]

    def named(body: dict[str, Any]) -> bool:
        return body["kind"] == file.kind and str(body["metadata"]["name"]).startswith(
            f"{name_prefix(file.run)}-"
        )

    return kinds, None if file.labelled else named

"""What `perfdag scale submit` and `delete` do, without their arguments' parsing; `sample` is in `sampling`."""

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfdag.kube import Kube, KubeError, Resource
from perfdag.kubeconfig import IN_POD
from perfdag.steps.scale import rights, runai, table
from perfdag.steps.scale.files import RunFile, forget, prefix_of, read_run, write_run
from perfdag.steps.scale.generator import (
    ApiSubmitter,
    CommandSubmitter,
    Submitted,
    Submitter,
    generate,
)
from perfdag.steps.scale.harness import Harness
from perfdag.steps.scale.lock import ExclusiveRun
from perfdag.steps.scale.namespaces import ensure_namespace
from perfdag.steps.scale.removal import remove, remove_namespaces, there
from perfdag.steps.scale.schedule import Schedule
from perfdag.steps.scale.session import new_run
from perfdag.steps.scale.templates import Template, TemplateError, load

LABELS = ("api", "kubectl")
"""Submitters that create the template's objects as they are, with the run's label."""
PARTIAL = 2.0
"""Seconds between writing partial files while submitting."""


@dataclass
class Order:
    """What is to be submitted."""

    template: str
    count: int
    parallel: int
    schedule: Schedule
    folder: Path
    settings: runai.Settings
    workers: int = 1
    gpus: str = "1"
    pvc: bool = False
    namespaces: list[str] = field(default_factory=list)
    """Where they go in turn; none: runai-<project>."""
    create_namespace: bool = False
    variables: dict[str, Any] = field(default_factory=dict)
    lock_timeout: float = 3600.0
    tell: Callable[[str], None] = lambda text: None


def _submitter(kube: Kube, order: Order) -> Submitter | None:
    """None for the API. Programs get KUBECONFIG as we have it, but not our context. Raises TemplateError, SettingsError."""
    settings = order.settings
    if settings.submitter == "kubectl":
        context = [] if kube.cluster.source == IN_POD else ["--context", kube.cluster.context]
        return CommandSubmitter(
            kube, [settings.kubectl_path, *context, "-n", "{namespace}", "apply", "-f", "-"]
        )
    if settings.submitter == "runai-cli":
        if order.template not in runai.WORKLOAD_TYPES:
            raise TemplateError(
                f"the Run:ai CLI submits {', '.join(runai.WORKLOAD_TYPES)}, not {order.template}"
            )
        if not kube.cluster.current:
            name = kube.cluster.context
            text = (
                f"the Run:ai CLI submits to the current context of the kubeconfig, not to {name!r}"
            )
            raise runai.SettingsError(
                f"{text}; run `kubectl config use-context {name}` first, or use --submitter api"
            )
        argv = runai.runai_argv(settings, order.template, order.gpus, order.workers, order.pvc)
        return CommandSubmitter(kube, argv, reads_input=False)
    if settings.submitter != "api":
        made: Submitter = runai.plug_in(runai.SUBMITTER_GROUP, settings.submitter, "submitter")(
            kube, settings
        )
        return made
    return None


async def submit(kube: Kube, order: Order) -> RunFile:
    """Submit everything and write run.json and submitted.json, partial ones on the way. No other performance run is on meanwhile.

    Raises TemplateError, SettingsError (the folder's run is still there), KubeError (unknown kind, missing namespace) before anything is
    created.
    """
    await finished(kube, order.folder)
    run = new_run()
    project = order.settings.project
    values = {
        "project": project,
        "workers": order.workers,
        "gpus": order.gpus,
        "image": order.settings.image,
    }
    template = load(
        order.template,
        run,
        values | order.variables,
        pvc=order.pvc,
        storage_class=order.settings.storage_class or None,
    )
    namespaces = order.namespaces or [f"runai-{project}"]
    submitter = _submitter(kube, order) or await ApiSubmitter.open(kube, template)
    if (
        order.settings.submitter in LABELS
    ):  # Run:ai's own tools may have rights that the user has not
        await rights.check(kube, template, namespaces)
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(ExclusiveRun(kube, run, order.lock_timeout, order.tell))
        except KubeError as error:
            if error.status != 403:
                raise
            order.tell(f"other performance runs are not kept out: {error}")
        return await _submit(kube, order, template, namespaces, submitter, run)


async def _submit(
    kube: Kube,
    order: Order,
    template: Template,
    namespaces: list[str],
    submitter: Submitter,
    run: str,
) -> RunFile:
    for namespace in namespaces:
        await _namespace(kube, namespace, run, order.create_namespace)
    order.folder.mkdir(parents=True, exist_ok=True)
    forget(order.folder)
    last = template.documents[-1]
    others = [(each.api_version, each.kind) for each in template.documents[:-1]]
    project = order.settings.project
    file = RunFile(
        run,
        last.api_version,
        last.kind,
        namespaces,
        project,
        order.workers,
        template.members,
        False,
        [],
        {},
        others,
    )
    file.labelled = order.settings.submitter in LABELS
    order.tell(f"run {run}: submitting {order.count} {template.kind} to {', '.join(namespaces)}")
    done = Submitted(run, [], time.time(), time.monotonic_ns())
    finished = asyncio.Event()

    async def write_partial() -> None:
        while not finished.is_set():
            write(order.folder, file, done)
            with suppress(TimeoutError):
                await asyncio.wait_for(finished.wait(), PARTIAL)

    writer = asyncio.create_task(write_partial())
    said = time.monotonic()

    def on_submit(item: Any) -> None:
        nonlocal said
        file.submissions.append(item)
        done.submissions.append(item)
        if time.monotonic() - said > 5:
            order.tell(f"{len(file.submissions)}/{order.count} submitted")
            said = time.monotonic()

    try:
        async with Harness() as harness:
            made = await generate(
                submitter,
                template,
                order.count,
                namespaces,
                order.schedule,
                order.parallel,
                run=run,
                prefix=prefix_of(run),
                on_submit=on_submit,
            )
            if harness.note:
                order.tell(harness.note)
            generator = made.summary(order.schedule) | {"harness_cpu": harness.share}
        file.submissions, file.generator, file.finished = made.submissions, generator, True
        done = made
    finally:
        finished.set()
        await writer
        write(order.folder, file, done)
    return file


async def finished(kube: Kube, folder: Path) -> None:
    """Raises SettingsError where the folder's submission still has workloads: of one that is overwritten nothing would tell any more."""
    if not (folder / "run.json").exists():
        return
    file = read_run(folder, 0)
    try:
        kinds, also = await _made_by(kube, file)
    except KubeError as error:
        if error.status != 404:
            raise
        return  # the cluster has no such kinds any more
    if count := len(await there(kube, file.run, kinds, file.namespaces, also=also)):
        text = f"{folder} holds run {file.run}, of which {count} objects are still there"
        raise runai.SettingsError(
            f"{text}; `perfdag scale delete -o {folder}` first, or give another folder with -o"
        )


def write(folder: Path, file: RunFile, done: Submitted) -> None:
    """Write run.json and submitted.json (atomically)."""
    write_run(folder / "run.json", file, done)
    table.write_json(folder / "submitted.json", runai.submitted_json(done, file.project))


async def _namespace(kube: Kube, name: str, run: str, create: bool) -> None:
    if create:
        await ensure_namespace(kube, name, run)
        return
    try:
        await kube.get(await kube.resource("v1", "Namespace"), name)
    except KubeError as error:
        if error.status != 404:
            raise
        raise KubeError(
            404,
            "NoNamespace",
            f"no namespace {name!r}",
            "make the project, or give --create-namespace",
        ) from None


async def delete(
    kube: Kube,
    folder: Path,
    parallel: int,
    timeout: float,
    tell: Callable[[str], None] = lambda text: None,
) -> int:
    """Delete the run's workloads, what was created with them and the namespaces that were made for it, and wait until none is left; returns
    how many are after `timeout` seconds.

    A namespace that holds anything else stays, and why is told.
    """
    file, deadline = read_run(folder, 0), time.monotonic() + timeout
    kinds, also = await _made_by(kube, file)
    left = await remove(kube, file.run, kinds, file.namespaces, parallel, timeout, also=also)
    return left or await remove_namespaces(
        kube, file.run, file.namespaces, max(0.0, deadline - time.monotonic()), tell
    )


async def _made_by(
    kube: Kube, file: RunFile
) -> tuple[list[Resource], Callable[[dict[str, Any]], bool] | None]:
    """The kinds that a submission created, and what tells its workloads where they carry no label."""
    kinds = [await kube.resource(*each) for each in ((file.api_version, file.kind), *file.others)]

    def named(body: dict[str, Any]) -> bool:
        return body["kind"] == file.kind and str(body["metadata"]["name"]).startswith(
            f"{prefix_of(file.run)}-"
        )

    return kinds, None if file.labelled else named

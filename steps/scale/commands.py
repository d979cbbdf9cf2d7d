"""What `perfdag scale submit` and `sample` do, without their arguments' parsing."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from perfdag.kube import Kube, KubeError, Resource
from perfdag.steps.scale import rights, runai, table
from perfdag.steps.scale.attach import follow
from perfdag.steps.scale.chains import kinds_of
from perfdag.steps.scale.clock import Heartbeat, drift, server_offset
from perfdag.steps.scale.completion import reached, wanted
from perfdag.steps.scale.files import RunFile, forget, prefix_of, read_run, write_run
from perfdag.steps.scale.generator import ApiSubmitter, CommandSubmitter, Submitted, Submitter, generate
from perfdag.steps.scale.harness import Harness
from perfdag.steps.scale.lock import ExclusiveRun
from perfdag.steps.scale.namespaces import ensure_namespace
from perfdag.steps.scale.observer import Observer
from perfdag.steps.scale.removal import SAMPLE, remove, remove_namespaces, there
from perfdag.steps.scale.rows import Clocks, Row, on_simulated, rows_of
from perfdag.steps.scale.schedule import Schedule
from perfdag.steps.scale.session import new_run, p99
from perfdag.steps.scale.simulate import simulated_nodes
from perfdag.steps.scale.summary import summaries
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
    settings = order.settings
    if settings.submitter == "kubectl":
        return CommandSubmitter(kube, [settings.kubectl_path, "-n", "{namespace}", "apply", "-f", "-"])
    if settings.submitter == "runai-cli":
        if order.template not in runai.WORKLOAD_TYPES:
            raise TemplateError(f"the Run:ai CLI submits {', '.join(runai.WORKLOAD_TYPES)}, not {order.template}")
        argv = runai.runai_argv(settings, order.template, order.gpus, order.workers, order.pvc)
        return CommandSubmitter(kube, argv, reads_input=False)
    if settings.submitter != "api":
        made: Submitter = runai.plug_in(runai.SUBMITTER_GROUP, settings.submitter, "submitter")(kube, settings)
        return made
    return None


async def submit(kube: Kube, order: Order) -> RunFile:
    """Submit everything and write run.json and submitted.json, partial ones on the way. No other performance run is on meanwhile.

    Raises TemplateError, SettingsError (the folder's run is still there), KubeError (unknown kind, missing namespace) before anything is
    created.
    """
    await _finished(kube, order.folder)
    run = new_run()
    project = order.settings.project
    values = {"project": project, "workers": order.workers, "gpus": order.gpus, "image": order.settings.image}
    template = load(order.template, run, values | order.variables, pvc=order.pvc, storage_class=order.settings.storage_class or None)
    namespaces = order.namespaces or [f"runai-{project}"]
    submitter = _submitter(kube, order) or await ApiSubmitter.open(kube, template)
    if order.settings.submitter in LABELS:  # Run:ai's own tools may have rights that the user has not
        await rights.check(kube, template, namespaces)
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(ExclusiveRun(kube, run, order.lock_timeout, order.tell))
        except KubeError as error:
            if error.status != 403:
                raise
            order.tell(f"other performance runs are not kept out: {error}")
        return await _submit(kube, order, template, namespaces, submitter, run)


async def _submit(kube: Kube, order: Order, template: Template, namespaces: list[str], submitter: Submitter, run: str) -> RunFile:
    for namespace in namespaces:
        await _namespace(kube, namespace, run, order.create_namespace)
    order.folder.mkdir(parents=True, exist_ok=True)
    forget(order.folder)
    last = template.documents[-1]
    others = [(each.api_version, each.kind) for each in template.documents[:-1]]
    project = order.settings.project
    file = RunFile(run, last.api_version, last.kind, namespaces, project, order.workers, template.members, False, [], {}, others)
    file.labelled = order.settings.submitter in LABELS
    order.tell(f"run {run}: submitting {order.count} {template.kind} to {', '.join(namespaces)}")
    done = Submitted(run, [], time.time(), time.monotonic_ns())
    finished = asyncio.Event()

    async def write_partial() -> None:
        while not finished.is_set():
            _write(order.folder, file, done)
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
        _write(order.folder, file, done)
    return file


async def _finished(kube: Kube, folder: Path) -> None:
    """Raises SettingsError where the folder's run still has workloads: of one that is overwritten nothing would tell any more."""
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
        raise runai.SettingsError(f"{text}; `perfdag scale delete -o {folder}` first, or give another folder with -o")


def _write(folder: Path, file: RunFile, done: Submitted) -> None:
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
        raise KubeError(404, "NoNamespace", f"no namespace {name!r}", "make the project, or give --create-namespace") from None


@dataclass
class Sample:
    """What a sample saw."""

    file: RunFile
    rows: list[Row]
    scheduled: int
    waiting: int
    absent: list[str]
    complete: bool


@dataclass
class Look:
    """How a sample is taken: of the run of `folder`, or of a `run` that no run.json tells of (looked for in `namespace`; None: everywhere).

    Without `watch` it is what is there now. With it, it stays for at most that many seconds, until all that was submitted is ready.
    `check` raises where the run is not the one that was meant, before a file is written.
    """

    folder: Path
    settings: runai.Settings
    watch: float | None = None
    run: str | None = None
    namespace: str | None = None
    check: Callable[[RunFile], None] = lambda file: None
    tell: Callable[[str], None] = lambda text: None


async def _reader(kube: Kube, look: Look, shift: int) -> Callable[[], Awaitable[RunFile]]:
    """What reads how far the submission is. Raises SettingsError, KubeError."""
    known = read_run(look.folder, shift) if look.run is None or (look.folder / "run.json").exists() else None
    if known and look.run not in (None, known.run):
        raise runai.SettingsError(f"{look.folder} holds run {known.run}; give another folder with -o")
    if known and not known.attached:

        async def from_file() -> RunFile:
            return read_run(look.folder, shift)

        return from_file
    return await follow(kube, known.run if known else str(look.run), look.namespace, known)


async def sample(kube: Kube, look: Look) -> Sample:
    """Observe a run and write sampled.json, stages.parquet, summary.json and the state to go on from; of a run that was found by its id
    run.json and submitted.json too.

    Can be run again and again, while the submission goes on. Raises SettingsError, KubeError.
    """
    folder, settings, watch = look.folder, look.settings, look.watch
    shift = time.time_ns() - time.monotonic_ns()
    read = await _reader(kube, look, shift)
    file = await read()
    look.check(file)
    folder.mkdir(parents=True, exist_ok=True)
    kinds = kinds_of(file.api_version, file.kind)
    observer = Observer(
        kube,
        file.run,
        kinds,
        file.namespaces,
        primary=[file.kind] if file.labelled else [],
        named=None if file.labelled else (file.kind, f"{prefix_of(file.run)}-"),
        events=settings.scheduler_event_times,
    )
    state = folder / "observed.jsonl"
    if state.exists():
        observer.restore(state)
    offset = await server_offset(kube)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(observer)
        heart: Heartbeat | None = None
        if watch is not None:
            with suppress(KubeError):  # without the right to change a ConfigMap there is no error bar
                heart = await stack.enter_async_context(Heartbeat(kube, f"{file.run}-{SAMPLE}", file.namespaces[0]))
        harness = await stack.enter_async_context(Harness())
        complete = not file.attached and _complete(observer, file)
        if watch is not None:
            deadline = time.monotonic() + watch
            while not complete and (left := deadline - time.monotonic()) > 0:
                await observer.until(partial(_complete, observer, file), min(left, PARTIAL))
                if file.attached:  # nothing says whether more is to come
                    await asyncio.sleep(PARTIAL)
                known, file = len(file.submissions), await read()
                complete = len(file.submissions) == known and _complete(observer, file)
                observer.save(state)
                look.tell(f"{min(*_ready(observer, file))} of {_ready(observer, file)[1]} are there")
        observer.save(state)
        apart, moved = await drift(kube, offset) if watch is not None else ({}, "")
        busy, notes = harness.share, [note for note in (moved, heart.note if heart else "", harness.note) if note]
        fake, why = await simulated_nodes(kube)
        notes += [why] if why else []
    rows = _rows(observer, file, Clocks(shift, offset.seconds, p99(heart.lags) if heart else None), fake)
    if file.attached:
        _write(folder, file, Submitted(file.run, file.submissions, time.time(), time.time_ns() - shift))
    backend = runai.backend_times(settings, file.project, file.namespaces)
    sampled, waiting = runai.sampled_json(rows, file.project, backend)
    table.write_json(folder / "sampled.json", sampled)
    table.write_rows(folder / "stages.parquet", rows)
    for note in notes:
        look.tell(note)
    facts = {
        "run": file.run,
        "simulated": on_simulated(rows),
        "server_clock_ahead_s": offset.seconds,
        "server_clock_bound_s": offset.bound,
        **apart,
        "watch_lag": heart.summary() if heart else None,
        "harness_cpu": busy,
        "notes": notes,
        "generator": file.generator,
        "stages": [each.as_dict() for each in summaries(rows)],
        "failure_reasons": dict(observer.reasons.most_common(20)),
    }
    table.write_json(folder / "summary.json", facts)
    return Sample(file, rows, len(sampled), waiting, observer.absent, complete)


def _ready(observer: Observer, file: RunFile) -> tuple[int, int]:
    """How many pods, VMIs or workloads are there, and how many shall be."""
    enough = wanted(file.submissions, file.expected_pods)
    return reached(observer, file.api_version, file.kind, file.expected_pods, enough), enough


def _complete(observer: Observer, file: RunFile) -> bool:
    there, enough = _ready(observer, file)
    return file.finished and there >= enough


def _rows(observer: Observer, file: RunFile, clocks: Clocks, fake: set[str] | None) -> list[Row]:
    return list(
        rows_of(
            file.submissions,
            observer.records,
            clocks,
            run=file.run,
            kind=file.kind,
            api_version=file.api_version,
            until_ns=time.monotonic_ns(),
            expected_pods=file.expected_pods,
            simulated=fake,
            messages=observer.messages,
        )
    )


async def delete(kube: Kube, folder: Path, parallel: int, timeout: float, tell: Callable[[str], None] = lambda text: None) -> int:
    """Delete the run's workloads, what was created with them and the namespaces that were made for it, and wait until none is left; returns
    how many are after `timeout` seconds.

    A namespace that holds anything else stays, and why is told.
    """
    file, deadline = read_run(folder, 0), time.monotonic() + timeout
    kinds, also = await _made_by(kube, file)
    left = await remove(kube, file.run, kinds, file.namespaces, parallel, timeout, also=also)
    return left or await remove_namespaces(kube, file.run, file.namespaces, max(0.0, deadline - time.monotonic()), tell)


async def _made_by(kube: Kube, file: RunFile) -> tuple[list[Resource], Callable[[dict[str, Any]], bool] | None]:
    """The kinds that a submission created, and what tells its workloads where they carry no label."""
    kinds = [await kube.resource(*each) for each in ((file.api_version, file.kind), *file.others)]

    def named(body: dict[str, Any]) -> bool:
        return body["kind"] == file.kind and str(body["metadata"]["name"]).startswith(f"{prefix_of(file.run)}-")

    return kinds, None if file.labelled else named

"""What `perfdag scale sample` does, without its arguments' parsing: a run is observed from outside, while it is submitted or afterwards."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from perfdag.kube import Kube, KubeError
from perfdag.steps.scale import runai, table
from perfdag.steps.scale.attach import follow
from perfdag.steps.scale.chains import kinds_of
from perfdag.steps.scale.clock import Heartbeat, drift, server_offset
from perfdag.steps.scale.commands import write
from perfdag.steps.scale.completion import reached, wanted
from perfdag.steps.scale.files import RunFile, forget, prefix_of, read_run, read_summary
from perfdag.steps.scale.generator import Submitted
from perfdag.steps.scale.harness import Harness
from perfdag.steps.scale.observer import Observer
from perfdag.steps.scale.removal import SAMPLE
from perfdag.steps.scale.rows import Clocks, Row, on_simulated, rows_of
from perfdag.steps.scale.session import p99
from perfdag.steps.scale.simulate import simulated_nodes
from perfdag.steps.scale.summary import summaries

PARTIAL = 2.0
"""Seconds between writing the state to go on from."""


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
    known = (
        read_run(look.folder, shift)
        if look.run is None or (look.folder / "run.json").exists()
        else None
    )
    if known and look.run not in (None, known.run):
        raise runai.SettingsError(
            f"{look.folder} holds run {known.run}; give another folder with -o"
        )
    if known and not known.attached:

        async def from_file() -> RunFile:
            return read_run(look.folder, shift)

        return from_file
    return await follow(kube, known.run if known else str(look.run), look.namespace, known)


async def sample(kube: Kube, look: Look) -> Sample:
    """Observe a run and write sampled.json, stages.parquet, summary.json and the state to go on from; of a run that was found by its id
    run.json and submitted.json too.

    Can be run again and again, while the submission goes on, also where it was interrupted. But for submitted.json, what
    an earlier run left in the folder stays until there are results to take its place. Raises SettingsError, KubeError.
    """
    folder, settings, watch = look.folder, look.settings, look.watch
    shift = time.time_ns() - time.monotonic_ns()
    read = await _reader(kube, look, shift)
    file = await read()
    look.check(file)
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
        _restore(observer, state)
    folder.mkdir(parents=True, exist_ok=True)
    _keep(folder, file, shift)  # by it an interrupted sample is gone on with
    offset = await server_offset(kube)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(observer)
        heart: Heartbeat | None = None
        if watch is not None:
            with suppress(
                KubeError
            ):  # without the right to change a ConfigMap there is no error bar
                heart = await stack.enter_async_context(
                    Heartbeat(kube, f"{file.run}-{SAMPLE}", file.namespaces[0])
                )
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
                if len(file.submissions) != known:
                    _keep(folder, file, shift)
                observer.save(state)
                look.tell(
                    f"{min(*_ready(observer, file))} of {_ready(observer, file)[1]} are there"
                )
        observer.save(state)
        apart, moved = await drift(kube, offset) if watch is not None else ({}, "")
        busy, notes = (
            harness.share,
            [note for note in (moved, heart.note if heart else "", harness.note) if note],
        )
        fake, why = await simulated_nodes(kube)
        notes += [why] if why else []
    rows = _rows(
        observer, file, Clocks(shift, offset.seconds, p99(heart.lags) if heart else None), fake
    )
    _keep(folder, file, shift)
    backend = runai.backend_times(settings, file.project, file.namespaces)
    sampled, waiting = runai.sampled_json(rows, file.project, backend)
    if read_summary(folder).get("run") != file.run:
        forget(folder, ("observed.jsonl",))
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
        "not_scheduled": waiting,
        "stages": [each.as_dict() for each in summaries(rows)],
        "failure_reasons": dict(observer.reasons.most_common(20)),
    }
    table.write_json(folder / "summary.json", facts)
    return Sample(file, rows, len(sampled), len(waiting), observer.absent, complete)


def _restore(observer: Observer, state: Path) -> None:
    try:
        observer.restore(state)
    except (ValueError, LookupError, TypeError, AttributeError, StopIteration) as error:
        why = (
            str(error)
            if isinstance(error, ValueError)
            else "it is not as this version of `perfdag scale sample` writes it"
        )
        text = f"cannot go on from {state}: {why}; give another folder with -o, or delete it, and what only it tells is lost"
        raise runai.SettingsError(text) from None


def _keep(folder: Path, file: RunFile, shift: int) -> None:
    """run.json and submitted.json of a run that was found by its id; those of another are its submission's."""
    if file.attached:
        write(
            folder, file, Submitted(file.run, file.submissions, time.time(), time.time_ns() - shift)
        )


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

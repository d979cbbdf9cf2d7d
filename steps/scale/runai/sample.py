"""Observe a run from outside, during or after its submission."""

import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from perfdag.kube.client import Kube, KubeError
from perfdag.steps.scale.cluster.nodes import simulated_nodes
from perfdag.steps.scale.cluster.removal import SAMPLE
from perfdag.steps.scale.figures.rows import Clocks, Row, on_simulated, rows_of, summaries
from perfdag.steps.scale.measure.errors import SelfLoad, WatchLag, server_offset
from perfdag.steps.scale.measure.observer import Observer, expected_count, reached
from perfdag.steps.scale.model.stages import kinds_of
from perfdag.steps.scale.runai import run_file
from perfdag.steps.scale.runai.run_file import (
    RunFile,
    name_prefix,
    read_run,
    read_summary,
    remove_outputs,
)
from perfdag.steps.scale.runai.settings import Settings, SettingsError, backend_times, sampled_json

PARTIAL = 2.0
"""Seconds between writing the state to go on from."""


@dataclass
class Sample:
    """The result of a sample."""

    file: RunFile
    rows: list[Row]
    scheduled: int
    waiting: int
    absent: list[str]
    complete: bool


@dataclass
class SampleRequest:
    """How to take a sample of the run in `folder`.

    Without `watch` it is a snapshot. With it, the sample lasts until all is ready, at most that
    many seconds. `check` raises for the wrong run before a file is written.
    """

    folder: Path
    settings: Settings
    watch: float | None = None
    check: Callable[[RunFile], None] = lambda file: None
    log: Callable[[str], None] = lambda text: None


async def sample(kube: Kube, request: SampleRequest) -> Sample:
    """Observe a run and write sampled.json, stages.parquet, summary.json and the state file.

    Samples can be repeated, also during the submission or after an interruption. Results of an
    earlier run stay until new ones exist. Raises SettingsError, KubeError.
    """
    folder, settings, watch = request.folder, request.settings, request.watch
    shift = time.time_ns() - time.monotonic_ns()
    file = read_run(folder, shift)
    request.check(file)
    kinds = kinds_of(file.api_version, file.kind)
    observer = Observer(
        kube,
        file.run,
        kinds,
        file.namespaces,
        primary=[file.kind] if file.labelled else [],
        named=None if file.labelled else (file.kind, f"{name_prefix(file.run)}-"),
        events=settings.scheduler_event_times,
    )
    state = folder / "observed.jsonl"
    if state.exists():
        restore(observer, state)
    offset = await server_offset(kube)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(observer)
        lag: WatchLag | None = None
        if watch is not None:
            with suppress(KubeError):  # without a right on ConfigMaps the lag is unknown
                probe = WatchLag(kube, f"{file.run}-{SAMPLE}", file.namespaces[0])
                lag = await stack.enter_async_context(probe)
        self_load = await stack.enter_async_context(SelfLoad())
        complete = is_complete(observer, file)
        if watch is not None:
            deadline = time.monotonic() + watch
            while not complete and (left := deadline - time.monotonic()) > 0:
                await observer.until(partial(is_complete, observer, file), min(left, PARTIAL))
                known, file = len(file.submissions), read_run(folder, shift)
                complete = len(file.submissions) == known and is_complete(observer, file)
                observer.save(state)
                request.log(
                    f"{min(*progress(observer, file))} of {progress(observer, file)[1]} are ready"
                )
        observer.save(state)
        until, busy = time.monotonic_ns(), self_load.share
        simulated, why = await simulated_nodes(kube)
    rows = list(
        rows_of(
            file.submissions,
            observer.records,
            Clocks(time.time_ns() - time.monotonic_ns(), offset.seconds),
            run=file.run,
            kind=file.kind,
            api_version=file.api_version,
            until_ns=until,
            expected_pods=file.expected_pods,
            simulated=simulated,
            messages=observer.messages,
        )
    )
    backend = backend_times(settings, file.project, file.namespaces)
    sampled, waiting = sampled_json(rows, file.project, backend)
    if read_summary(folder).get("run") != file.run:
        remove_outputs(folder, ("observed.jsonl",))
    run_file.write_json(folder / "sampled.json", sampled)
    run_file.write_rows(folder / "stages.parquet", rows)
    notes = [note for note in (self_load.note, why) if note]
    for note in notes:
        request.log(note)
    facts = {
        "server_clock_ahead_s": offset.seconds,
        "server_clock_bound_s": offset.bound,
        "watch_lag": lag.summary() if lag else None,
        "harness_cpu": busy,
        "generator": file.generator,
        "not_scheduled": waiting,
        "run": file.run,
        "simulated": on_simulated(rows),
        "notes": notes,
        "stages": [asdict(summary) for summary in summaries(rows)],
        "failure_reasons": dict(observer.reasons.most_common(20)),
    }
    run_file.write_json(folder / "summary.json", facts)
    return Sample(file, rows, len(sampled), len(waiting), observer.absent, complete)


def restore(observer: Observer, state: Path) -> None:
    """Restore the observer from a state file. Raises SettingsError."""
    try:
        observer.restore(state)
    except (ValueError, LookupError, TypeError, AttributeError, StopIteration) as error:
        why = (
            str(error)
            if isinstance(error, ValueError)
            else "it is not as this version of `perfdag scale sample` writes it"
        )
        text = (
            f"cannot resume from {state}: {why}; give another folder with -o, or delete the file "
            "and lose its times"
        )
        raise SettingsError(text) from None


def progress(observer: Observer, file: RunFile) -> tuple[int, int]:
    """Return how many pods, VMIs or workloads are ready, and how many are expected."""
    enough = expected_count(file.submissions, file.expected_pods)
    return reached(observer, file.api_version, file.kind, file.expected_pods, enough), enough


def is_complete(observer: Observer, file: RunFile) -> bool:
    """Tell whether the submission has ended and all its objects are ready."""
    count, enough = progress(observer, file)
    return file.finished and count >= enough

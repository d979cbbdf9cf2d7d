"""Observe a run from outside, during or after its submission."""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from perfdag.kube.client import Kube, KubeError
from perfdag.steps.scale.cluster.nodes import simulated_nodes
from perfdag.steps.scale.cluster.removal import SAMPLE
from perfdag.steps.scale.figures.rows import Clocks, Row, on_simulated, rows_of, summaries
from perfdag.steps.scale.measure.errors import Offset, SelfLoad, WatchLag, server_offset
from perfdag.steps.scale.measure.generator import Submission
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


@dataclass
class Observation:
    """An observer at work. `watch_lag` is None where it is not measured."""

    kube: Kube
    observer: Observer
    offset: Offset
    watch_lag: WatchLag | None
    self_load: SelfLoad
    simulated: set[str] | None = field(default_factory=set)
    until_ns: int = 0
    notes: list[str] = field(default_factory=list)

    async def end(self) -> dict[str, Any]:
        """End the observation and return the facts of its clocks."""
        self.until_ns = time.monotonic_ns()
        busy = self.self_load.share
        self.simulated, why = await simulated_nodes(self.kube)
        notes = (self.self_load.note, why)
        self.notes += [note for note in notes if note]
        return {
            "server_clock_ahead_s": self.offset.seconds,
            "server_clock_bound_s": self.offset.bound,
            "watch_lag": self.watch_lag.summary() if self.watch_lag else None,
            "harness_cpu": busy,
        }

    def rows(
        self, submissions: Sequence[Submission], api_version: str, kind: str, pods: int | None
    ) -> list[Row]:
        """Return the rows until the end; `pods` are expected of a workload (None: unknown)."""
        shift = time.time_ns() - time.monotonic_ns()
        return list(
            rows_of(
                submissions,
                self.observer.records,
                Clocks(shift, self.offset.seconds),
                run=self.observer.run,
                kind=kind,
                api_version=api_version,
                until_ns=self.until_ns,
                expected_pods=pods,
                simulated=self.simulated,
                messages=self.observer.messages,
            )
        )

    def summary(self, rows: Sequence[Row]) -> dict[str, Any]:
        """Return the part of summary.json that describes rows."""
        return {
            "run": self.observer.run,
            "simulated": on_simulated(rows),
            "notes": self.notes,
            "stages": [asdict(summary) for summary in summaries(rows)],
            "failure_reasons": dict(self.observer.reasons.most_common(20)),
        }


@asynccontextmanager
async def observation(
    kube: Kube, observer: Observer, probe_in: str | None
) -> AsyncIterator[Observation]:
    """Start the observer, and the probe of the watch lag in a namespace (None: no probe).

    Raises KubeError.
    """
    offset = await server_offset(kube)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(observer)
        lag: WatchLag | None = None
        if probe_in:
            with suppress(KubeError):  # without a right on ConfigMaps the lag is unknown
                probe = WatchLag(kube, f"{observer.run}-{SAMPLE}", probe_in)
                lag = await stack.enter_async_context(probe)
        self_load = await stack.enter_async_context(SelfLoad())
        yield Observation(kube, observer, offset, lag, self_load)


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
    probe_in = file.namespaces[0] if watch is not None else None
    async with observation(kube, observer, probe_in) as seen:
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
        facts = await seen.end()
    rows = seen.rows(file.submissions, file.api_version, file.kind, file.expected_pods)
    backend = backend_times(settings, file.project, file.namespaces)
    sampled, waiting = sampled_json(rows, file.project, backend)
    if read_summary(folder).get("run") != file.run:
        remove_outputs(folder, ("observed.jsonl",))
    run_file.write_json(folder / "sampled.json", sampled)
    run_file.write_rows(folder / "stages.parquet", rows)
    for note in seen.notes:
        request.log(note)
    facts |= {"generator": file.generator, "not_scheduled": waiting, **seen.summary(rows)}
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

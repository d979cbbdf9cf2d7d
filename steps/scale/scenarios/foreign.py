"""Observe workloads that others create: an operator, a Helm release, another load generator."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfdag.kube.client import Kube, Resource
from perfdag.steps.scale.cluster.removal import deletable_resources
from perfdag.steps.scale.figures.rows import Row
from perfdag.steps.scale.measure.completion import complete_workloads
from perfdag.steps.scale.measure.generator import Submission
from perfdag.steps.scale.measure.observer import Observer
from perfdag.steps.scale.model.chains import CHAINS, has_no_pods, kinds_of
from perfdag.steps.scale.model.records import Record
from perfdag.steps.scale.model.run_id import new_run
from perfdag.steps.scale.scenarios.observation import observation

QUIET = 10.0
"""Seconds without a new workload after which those that are there are all."""
LOOK = 2.0
"""Seconds between two progress lines, and two looks whether all are done."""
_DONE = {"ready", "succeeded", "failed", "gone"}


@dataclass
class Request:
    """What to observe. `seconds` is how long (None: until all are done, at most `timeout`).

    `kind` is KIND or KIND.GROUP. No `namespaces` are all of them. `existing` also measures
    workloads that were there before the start, whose times have whole seconds.
    """

    selector: str
    kind: str = "Pod"
    namespaces: list[str] = field(default_factory=list)
    seconds: float | None = None
    timeout: float = 900.0
    existing: bool = False
    log: Callable[[str], None] = lambda text: None
    run: str = field(default_factory=new_run)


@dataclass
class Observation:
    """Rows and facts of an observation. `older` workloads were there before it and have no rows."""

    rows: list[Row]
    facts: dict[str, Any]
    workloads: int
    older: int
    done: bool


async def kind_of(kube: Kube, text: str) -> Resource:
    """Return the kind that KIND or KIND.GROUP names. Raises ValueError if there is none or many."""
    kind, _, group = text.partition(".")
    served = await deletable_resources(kube)
    matches = [resource for resource in served if resource.kind.lower() == kind.lower()]
    if group:
        matches = [
            resource for resource in matches if resource.api_version.rpartition("/")[0] == group
        ]
    if len(matches) == 1:
        return matches[0]
    if not matches:
        raise ValueError(f"--kind {text}: the cluster serves no such kind, or you may not list it")
    names = ", ".join(
        f"{resource.kind}.{resource.api_version.rpartition('/')[0]}" for resource in matches
    )
    raise ValueError(f"--kind {text} is ambiguous; it is one of {names}")


def done(observer: Observer, workload: Resource) -> tuple[int, int]:
    """Return how many workloads are ready or have ended, and how many there are."""
    ends = _DONE | (
        {"running"} if workload.kind in CHAINS and "Virtual" in workload.kind else set()
    )
    if has_no_pods(workload.api_version, workload.kind):
        ends = {"created"}
    complete = complete_workloads(observer, workload.kind, "ready", "succeeded", "failed")
    own = list(observer.of(workload.kind))
    finished = sum(
        not ends.isdisjoint(record.stages) or complete.get(record.uid, False) for record in own
    )
    return finished, len(own)


async def measure(kube: Kube, request: Request, state: Path) -> Observation:
    """Observe for a time, or until all are done. Writes the observer's state to `state`.

    Raises KubeError, ValueError.
    """
    workload = await kind_of(kube, request.kind)
    version, kind = workload.api_version, workload.kind
    namespaces: list[str | None] = [*request.namespaces] or [None]
    observer = Observer(
        kube,
        request.run,
        kinds_of(version, kind),
        namespaces,
        primary=[kind],
        selector=request.selector,
    )
    heartbeat_in = request.namespaces[0] if request.namespaces else kube.namespace
    begun, started = time.time_ns(), time.monotonic()
    async with observation(kube, observer, kind, heartbeat_in) as seen:
        limit = request.timeout if request.seconds is None else request.seconds
        request.log(f"observing {kind} with {request.selector} for at most {limit:g} s")
        finished = await _watch(observer, workload, request, state, started + limit)
        facts = await seen.end()
    shift = time.time_ns() - time.monotonic_ns()
    own = [
        record
        for record in observer.of(kind)
        if request.existing or _created(record, shift) >= begun - 1_000_000_000
    ]
    items = [*_submissions(own, shift)]
    rows = [
        row
        for row in seen.rows(items, version, kind, None)
        if not (row.since == "submitted" and row.stage.endswith("created"))
    ]
    older = sum(1 for _ in observer.of(kind)) - len(own)
    if heartbeat_in and seen.beats is None:
        seen.notes.append(f"no error bars: a heartbeat cannot be written in {heartbeat_in}")
    facts |= {"selector": request.selector, "older": older, **seen.summary(rows)}
    return Observation(rows, facts, len(own), older, finished)


async def _watch(
    observer: Observer, workload: Resource, request: Request, state: Path, end: float
) -> bool:
    """Wait for the end of the observation and return whether all workloads were done."""
    logged, known, quiet_since = (-1, -1), -1, time.monotonic()
    while (left := end - time.monotonic()) > 0:
        await observer.until(lambda: False, min(left, LOOK))
        observer.save(state)
        if (count := done(observer, workload)) != logged:
            logged = count
            request.log(f"{count[0]} of {count[1]} are ready or have ended")
        if count[1] != known:
            known, quiet_since = count[1], time.monotonic()
        quiet = time.monotonic() - quiet_since >= QUIET
        if request.seconds is None and quiet and count[1] and count[0] == count[1]:
            break
    finished, every = done(observer, workload)
    return finished == every


def _created(record: Record, shift: int) -> int:
    """Return when the object was created: Unix ns by the receive time, or by the API's."""
    api, _, received = record.times("created") or (0, 0, 0)
    return received + shift if received else api


def _submissions(records: list[Record], shift: int) -> Iterator[Submission]:
    ordered = sorted((_created(record, shift), record.uid, record) for record in records)
    for index, (at, uid, record) in enumerate(ordered):
        ours = at - shift
        yield Submission(index, record.name, record.namespace, ours, ours, ours, uid, foreign=True)

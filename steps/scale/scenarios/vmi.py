"""VMI scenarios from the lock to the gate verdicts: bursts, a ladder of them, a steady state.

The primer runs one VMI before the measurement, so that first-time costs are not measured. A later
failure of a ladder keeps results.
"""

import asyncio
import math
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from perfdag import signals
from perfdag.kube.client import Kube, KubeError, Prometheus
from perfdag.steps.scale.cluster import removal
from perfdag.steps.scale.cluster.lease_lock import ExclusiveRun
from perfdag.steps.scale.cluster.nodes import TooDenseError, check_density, check_nodes, nested_note
from perfdag.steps.scale.cluster.removal import own_namespaces
from perfdag.steps.scale.figures import gates
from perfdag.steps.scale.figures.api_metrics import CREATION
from perfdag.steps.scale.figures.gates import SLO, Gate, evaluate
from perfdag.steps.scale.figures.prometheus import (
    LATEST,
    audit_figures,
    component_figures,
    wait_for_scrape,
)
from perfdag.steps.scale.figures.rows import Row, error_text, with_deletion
from perfdag.steps.scale.measure.generator import Schedule, Submission
from perfdag.steps.scale.measure.observer import may_be_settled, settled
from perfdag.steps.scale.model.stages import CHAINS, SET, VMI, Record, chain, top_owner
from perfdag.steps.scale.model.templates import Template, TemplateError, load
from perfdag.steps.scale.scenarios.session import (
    Result,
    RunSpec,
    Session,
    open_session,
    phase_counts,
    result_of,
)


@dataclass
class Spec(RunSpec):
    """Parameters of a VMI scenario."""

    template: str = "vmi"
    namespaces: list[str] = field(default_factory=lambda: ["perfdag-vmi"])
    replicas: int = 1
    per_node: int = 200
    primer: bool = True
    gates: list[Gate] = field(default_factory=lambda: [*SLO])
    prometheus: Prometheus | None = None
    journal: Callable[[Session], None] | None = None
    """Callback that keeps the state of the session, every few seconds."""
    seen: Callable[["Result"], None] = lambda result: None
    """Callback that gets the result of every size when it is complete."""


def template_of(spec: Spec, run: str) -> Template:
    """Return the scenario's template for one run. Raises TemplateError."""
    return load_template(spec.template, run, spec.replicas, spec.variables)


def load_template(source: str, run: str, replicas: int, variables: Mapping[str, Any]) -> Template:
    """Load a template of VMIs. Raises TemplateError."""
    loaded = load(source, run, {"workers": replicas, **variables})
    if not loaded.kind.startswith(VMI.removesuffix("Instance")) or loaded.kind not in CHAINS:
        raise TemplateError(
            f"{loaded.kind} creates no VMI: use the template vmi, vm or vmirs, or a file whose "
            "last document has such a kind"
        )
    if loaded.kind == SET and loaded.members != replicas:
        raise TemplateError(
            f"the template has {loaded.members} replicas, not {replicas}: set replicas to "
            f"{loaded.members}"
        )
    if replicas != 1 and loaded.kind != SET:
        raise TemplateError(f"only the template vmirs takes replicas; a {loaded.kind} is one VMI")
    return loaded


async def all_settled(
    session: Session, spec: Spec, without: Collection[str] = (), timeout: float = math.inf
) -> bool:
    """Wait until every VMI that was not deleted ran, or failed without a replacement.

    Objects named in `without` are not waited for. Return False after the spec's timeout, or after
    `timeout` seconds if that is less.
    """
    enough = sum(item.name not in without for item in session.alive()) * spec.replicas

    def done() -> bool:
        if not may_be_settled(session.observer, enough):
            return False
        return settled(_vmis(session, without), spec.replicas) >= enough

    return await session.until(done, min(spec.timeout, timeout))


def unsettled(session: Session, spec: Spec) -> set[str]:
    """Return the names of the objects whose VMIs neither ran nor failed."""
    groups: dict[str, list[Record]] = {item.name: [] for item in session.alive()}
    for vmi in session.live(VMI):
        groups.setdefault(top_owner(session.observer.records, vmi).name, []).append(vmi)
    return {name for name, vmis in groups.items() if settled(vmis, spec.replicas) < spec.replicas}


def _vmis(session: Session, without: Collection[str]) -> Iterator[Record]:
    records = session.observer.records
    for vmi in session.live(VMI):
        if not without or top_owner(records, vmi).name not in without:
            yield vmi


PRIMER = 300.0
"""Seconds the primer may take to run."""
JOURNAL = 2.0
"""Seconds between two states of the observer."""
LATE, GONE = 10.0, 60.0
"""Seconds after which a slow primer is logged, and after which one still there is given up."""


@asynccontextmanager
async def primed_session(kube: Kube, spec: Spec) -> AsyncIterator[Session]:
    """Run the primer if wanted, and open the session."""
    notes = await _primer(kube, spec) if spec.primer else []
    async with open_session(
        kube,
        template_of(spec, spec.run),
        spec.namespaces,
        spec.run,
        expected_pods=spec.replicas,
        deadline=spec.deadline,
        log=spec.log,
    ) as session:
        session.notes += notes
        keeping = asyncio.create_task(_keep(session, spec.journal)) if spec.journal else None
        try:
            yield session
        finally:
            await signals.cancel([keeping] if keeping else [])


async def _keep(session: Session, journal: Callable[[Session], None]) -> None:
    """Write the journal again and again; a large one less often, as it delays the watches."""
    took = 0.0
    while True:
        await asyncio.sleep(max(JOURNAL, 50 * took))
        begun = time.monotonic()
        if session.submissions:
            journal(session)
        took = time.monotonic() - begun


@contextmanager
def _log_if_late(spec: Spec, text: str) -> Iterator[None]:
    handle = asyncio.get_running_loop().call_later(LATE, spec.log, text)
    try:
        yield
    finally:
        handle.cancel()


async def _primer(kube: Kube, spec: Spec) -> list[str]:
    """Run and delete one object. Return notes if that failed.

    Raises KubeError.
    """
    run = f"{spec.run}-{removal.PRIMER}"
    short = replace(spec, timeout=min(spec.timeout, PRIMER))
    async with open_session(
        kube,
        template_of(spec, run),
        spec.namespaces[:1],
        run,
        deadline=spec.deadline,
        log=spec.log,
        patience=GONE,
    ) as session:
        (item,) = (await session.create(1, Schedule(), 1)).submissions
        slow = f"does not run {LATE:g} s after its creation; it has {short.timeout:g} s"
        with _log_if_late(spec, f"the primer {item.name} {slow}"):
            over = await all_settled(session, short)
        notes = []
        if item.error or not item.answered_ns:
            notes.append(f"the primer was not created: {item.error or session.wait_end(math.inf)}")
        elif session.reached(VMI, "running") < spec.replicas:
            what = "failed" if over else f"did not run {session.wait_end(short.timeout)}"
            records, messages = session.observer.records.values(), session.observer.messages
            errors = (error_text(record, messages) for record in records)
            notes.append(f"the primer {what}: {next(filter(None, errors), 'no reason is known')}")
        slow = f"is still there {LATE:g} s after its deletion"
        with _log_if_late(spec, f"the primer {item.name} {slow}"):
            gone = await session.delete(session.submissions, 1, min(spec.timeout, GONE))
        if not gone:
            notes.append("the primer still existed when the measurement began")
    return [f"{note}; the figures may include first-time costs" for note in notes]


async def burst(kube: Kube, spec: Spec, count: int) -> Result:
    """Create `count` objects, wait until all run, then delete them.

    Raises KubeError, ValueError.
    """
    nodes = await check_nodes(kube, count * spec.replicas, spec.per_node)
    async with primed_session(kube, spec) as session:
        spec.log(f"run {spec.run}: creating {count} {session.template.kind}")
        batch = await session.create(count, spec.schedule, spec.parallel)
        wanted = len(batch.created) * spec.replicas
        all_running = await all_settled(session, spec)
        if not all_running:
            session.notes.append(
                f"{wanted - session.reached(VMI, 'running')} of {wanted} VMIs not Running "
                f"{session.wait_end(spec.timeout)}"
            )
        await session.scrape(CREATION)
        rows = await session.rows()
        deleted, running = time.time(), session.reached(VMI, "running")
        phases = phase_counts(session.observer.of(VMI))
        spec.log(f"{running} of {wanted} Running; deleting")
        left = await session.delete_all(spec.parallel, spec.timeout)
        extra: dict[str, float | None] = {"left_behind": left, **phases}
        rows = with_deletion(rows, await session.rows())
        return await _finished("burst", count, session, spec, nodes, rows, deleted, extra)


async def _finished(
    scenario: Literal["burst", "steady"],
    count: int,
    session: Session,
    spec: Spec,
    nodes: dict[str, Any],
    rows: list[Row],
    deleted: float,
    figures: dict[str, float | None],
) -> Result:
    """Return the result. `deleted` is when the deletion began, in Unix seconds."""
    started, ended = session.batches[0][0].started_wall, time.time()
    dense = check_density(session.observer.of(VMI), nodes, spec.per_node)
    session.notes += [note for note in (dense, nested_note(nodes)) if note]
    facts = dict(nodes)
    if spec.prometheus:
        try:
            gaps, early = await wait_for_scrape(spec.prometheus, ended, spec.deadline)
            facts["prometheus_scrapes_s"] = gaps
            session.notes += [early] if early else []
            figures |= await component_figures(spec.prometheus, started, ended, gaps)
            figures |= await audit_figures(spec.prometheus, started, deleted, gaps)
        except KubeError as error:
            session.notes.append(f"no figures of the components: {error}")
    return result_of(session, scenario, count, rows, figures, spec.gates, facts, ended)


STUCK = 60.0
"""Seconds after which a replacement that does not run, or is not gone, is waited for no more."""


class _Churn:
    """The replacements of a steady state, and those that are stuck."""

    def __init__(self, session: Session, spec: Spec) -> None:
        self._session, self._spec = session, spec
        self._alive: list[Submission] = [item for item in session.submissions if not item.error]
        self.patience = min(spec.timeout, STUCK)
        self.stuck: set[str] = unsettled(session, spec)
        self.not_gone: set[str] = set()
        self.cycles, self.replaced, self.seconds = 0, 0, 0.0

    async def delete(self, count: int) -> None:
        """Delete the oldest objects and wait until they are gone."""
        old, self._alive = self._alive[:count], self._alive[count:]
        if not await self._session.delete(old, self._spec.parallel, self.patience):
            self.not_gone |= {item.name for item in old if self._session.left([item])}

    async def create(self, count: int) -> None:
        """Create as many and wait until they run."""
        spec, session = self._spec, self._session
        batch = await session.create(count, spec.schedule, spec.parallel)
        self._alive += batch.created
        if not await all_settled(session, spec, self.stuck, self.patience):
            self.stuck |= unsettled(session, spec)
        self.replaced += sum(item.name not in self.stuck for item in batch.created)

    def notes(self) -> list[str]:
        """Return notes on objects that were not waited for."""
        parts = (("did not run", self.stuck), ("were not gone", self.not_gone))
        return [
            f"{len(names)} objects {what} within {self.patience:g} s and were not waited for: "
            f"{', '.join(sorted(names)[:3])}"
            for what, names in parts
            if names
        ]

    def figures(self) -> dict[str, float | None]:
        """Return the cycles, the stuck objects, and the objects replaced per second of churn."""
        return {
            "churn_cycles": float(self.cycles),
            "churn_throughput": self.replaced / self.seconds if self.seconds else None,
            "stuck": float(len(self.stuck)),
        }


async def steady(
    kube: Kube, spec: Spec, count: int, churn: int, pause: float, duration: float
) -> Result:
    """Keep `count` objects for `duration` seconds.

    Every `pause` seconds, replace the `churn` oldest. One that is stuck is reported, and the churn
    goes on without it. Raises KubeError, ValueError.
    """
    nodes = await check_nodes(kube, count * spec.replicas, spec.per_node)
    async with (
        own_namespaces(kube, spec.namespaces, spec.run),
        primed_session(kube, spec) as session,
    ):
        trace, start = [(0.0, 0)], time.monotonic()

        def note() -> None:
            trace.append((time.monotonic() - start, _live(session)))

        spec.log(f"run {spec.run}: creating {count} {session.template.kind}")
        await session.create(count, spec.schedule, spec.parallel)
        await all_settled(session, spec)
        note()
        state, end = _Churn(session, spec), min(spec.deadline, time.monotonic() + duration)
        try:
            while time.monotonic() < end:
                await asyncio.sleep(min(pause, max(0.0, end - time.monotonic())))
                begun = time.monotonic()
                await state.delete(churn)
                note()
                await state.create(churn)
                note()
                state.cycles += 1
                state.seconds += time.monotonic() - begun
        except KubeError as error:
            session.notes.append(f"the churn ended after {state.cycles} cycles: {error}")
        session.notes += state.notes()
        await session.scrape(CREATION)
        rows, deleted = await session.rows(), time.time()
        left = await session.delete_all(spec.parallel, spec.timeout)
        note()
        rows = with_deletion(rows, await session.rows())
        extra = {"left_behind": left, **state.figures()}
        result = await _finished("steady", count, session, spec, nodes, rows, deleted, extra)
        result.trace = trace
        return result


def _live(session: Session) -> int:
    return sum(
        "running" in vmi.stages and "gone" not in vmi.stages for vmi in session.observer.of(VMI)
    )


async def ladder(kube: Kube, spec: Spec, sizes: list[int], cooldown: float) -> list[Result]:
    """Run bursts of rising size with `cooldown` seconds between them.

    Ends early if a burst leaves objects behind, and at the deadline. A later size that fails is the
    last one and has no figures. Raises KubeError, TooDenseError.
    """
    results: list[Result] = []
    await check_nodes(kube, max(sizes) * spec.replicas, spec.per_node)
    for number, size in enumerate(sizes):
        if number:
            spec.log(f"cooling down for {cooldown:g} s")
            await asyncio.sleep(max(0.0, min(cooldown, spec.deadline - time.monotonic())))
        own = spec if len(sizes) == 1 else rung(spec, number)
        try:
            results.append(await burst(kube, own, size))
        except (KubeError, TooDenseError) as error:
            if not results:
                raise
            results.append(_unmeasured(own, size, error, results[-1]))
        spec.seen(results[-1])
        if (
            results[-1].error
            or results[-1].figures["left_behind"]
            or time.monotonic() >= spec.deadline
        ):
            break
    return results


def rung(spec: Spec, number: int) -> Spec:
    """Return the spec of one of several sizes, with a run id of its own that belongs to the run."""
    return replace(spec, run=f"{spec.run}-{number + 1}")


def _unmeasured(spec: Spec, count: int, error: Exception, before: Result) -> Result:
    """Return the result of a size that ended in an error, whose gates have no data."""
    facts = {key: before.facts.get(key) for key in ("simulated", "kubevirt_version")}
    facts |= {
        "run": spec.run,
        "generator": [],
        "notes": [f"{count} VMIs were not measured: {error}"],
    }
    figures: dict[str, float | None] = {"left_behind": None, "success_ratio": None}
    return Result(
        "burst",
        count,
        spec.run,
        [],
        [],
        figures,
        facts,
        evaluate(spec.gates, figures),
        error=str(error),
    )


SLACK = 60.0
"""Seconds for namespaces, scrapes and clock checks."""
MOST = 1000
"""Creations in flight."""


def log(text: str) -> None:
    """Print to the log of the benchmark's pod."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201


@dataclass
class VmiRequest:
    """A scenario and its parameters; durations in seconds."""

    scenario: str = "burst"
    counts: list[int] = field(default_factory=lambda: [100])
    churn: int = 5
    pause: float = 20.0
    duration: float = 300.0
    cooldown: float = 60.0
    lock_timeout: float = 3600.0

    def fewest(self) -> float:
        """Return the objects of the smallest size; of a steady state, with all replacements."""
        if self.scenario == "steady":
            cycles = self.duration / self.pause if self.pause else math.inf
            return self.counts[0] + self.churn * cycles
        return min(self.counts)

    def limit(self, spec: Spec) -> float:
        """Return the maximum duration in seconds, if every wait takes its full time."""
        burst_limit = 2 * spec.timeout + (LATEST if spec.prometheus else 0.0)
        burst_limit += PRIMER + 2 * GONE if spec.primer else 0.0
        bursts = sum(spec.schedule.span(size) + burst_limit for size in self.counts)
        churn = self.duration + 2 * spec.timeout if self.scenario == "steady" else 0.0
        return self.lock_timeout + bursts + self.cooldown * (len(self.counts) - 1) + churn + SLACK


def check(spec: Spec, request: VmiRequest) -> None:
    """Raise ValueError for invalid values or combinations, before anything is waited for."""
    numbers = {
        "counts": min(request.counts),
        "churn": request.churn,
        "replicas": spec.replicas,
        "per_node": spec.per_node,
    }
    for name, least in {**numbers, "parallel": spec.parallel}.items():
        if least < 1:
            raise ValueError(f"{name}: {least} is too few; it is 1 or more")
    if spec.parallel > MOST:
        raise ValueError(f"parallel: {spec.parallel} is too many; it is {MOST} or less")
    for name, seconds in {"timeout": spec.timeout, "duration": request.duration}.items():
        if not 0 < seconds < math.inf:
            raise ValueError(f"{name}: {seconds:g} s is no time to wait; it is above 0")
    for name, seconds in {
        "pause": request.pause,
        "cooldown": request.cooldown,
        "lock_timeout": request.lock_timeout,
    }.items():
        if not 0 <= seconds < math.inf:
            raise ValueError(f"{name}: {seconds:g} s cannot be waited; it is 0 or more")
    if request.scenario != "ladder" and len(request.counts) > 1:
        raise ValueError(
            f"{request.scenario} takes one count; several are a ladder (scenario: ladder)"
        )
    if request.scenario == "steady" and request.churn > request.counts[0]:
        raise ValueError(
            f"churn: {request.churn} is too many of {request.counts[0]}; it is at most count"
        )
    last = template_of(spec, "check").documents[-1]
    gates.check(
        spec.gates,
        request.scenario,
        chain(last.api_version, last.kind),
        gates.VMIS[request.scenario],
        paced=spec.schedule.open_loop,
        components=spec.prometheus is not None,
        count=request.fewest() * spec.replicas,
    )


async def measure(kube: Kube, spec: Spec, request: VmiRequest) -> list[Result]:
    """Take the lock, measure and evaluate the gates. Return the results in order.

    Raises ValueError, KubeError, LockTimeoutError.
    """
    check(spec, request)
    if spec.prometheus:
        await spec.prometheus.probe()
    patience = max(0.0, min(request.lock_timeout, spec.deadline - time.monotonic()))
    lock, done = ExclusiveRun(kube, spec.run, patience, spec.log), list[Result]()

    def seen(result: Result) -> None:
        done.append(result)
        result.disturbed = lock.lost
        spec.seen(result)

    try:
        async with lock:
            spec.log(
                f"run {spec.run}: {request.scenario}"
            )  # before anything is made: what a killed process leaves is deleted by this id
            own = replace(spec, seen=seen)
            async with own_namespaces(kube, spec.namespaces, spec.run):
                if request.scenario == "steady":
                    pace = (request.churn, request.pause, request.duration)
                    done = [await steady(kube, own, request.counts[0], *pace)]
                else:
                    done = await ladder(kube, own, request.counts, request.cooldown)
    finally:  # also of sizes that were measured before an interruption
        for result in done:
            result.disturbed = lock.lost
    return done

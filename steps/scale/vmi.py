"""VMI scenarios: a burst, and a steady state with churn; several bursts are in `sizes`."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from perfdag.kube import Kube, KubeError
from perfdag.steps.scale import apimetrics, removal
from perfdag.steps.scale import gates as gating
from perfdag.steps.scale.apimetrics import CREATION, DELETION
from perfdag.steps.scale.chains import CHAINS
from perfdag.steps.scale.completion import may_be_settled, settled
from perfdag.steps.scale.generator import Submission
from perfdag.steps.scale.kubevirt import check_nodes, nested_note
from perfdag.steps.scale.namespaces import own_namespaces
from perfdag.steps.scale.opening import open_session
from perfdag.steps.scale.prometheus import Prometheus, component_figures, scraped
from perfdag.steps.scale.records import Record
from perfdag.steps.scale.rows import SET, VMI, Row, on_simulated, said, with_deletion
from perfdag.steps.scale.schedule import Schedule
from perfdag.steps.scale.session import Session, new_run
from perfdag.steps.scale.stages import VM_PHASES
from perfdag.steps.scale.summary import Summary, summaries, throughput
from perfdag.steps.scale.templates import Template, TemplateError, load

PRIMER = 300.0
"""Seconds the primer may take to run."""
Tell = Callable[[str], None]


@dataclass
class Spec:
    """What a scenario does. Durations are in seconds; `timeout` bounds each wait (all Running, all gone)."""

    template: str = "vmi"
    namespaces: list[str] = field(default_factory=lambda: ["perfdag-vmi"])
    schedule: Schedule = field(default_factory=Schedule)
    parallel: int = 20
    replicas: int = 1
    per_node: int = 200
    primer: bool = True
    timeout: float = 900.0
    variables: dict[str, Any] = field(default_factory=dict)
    gates: list[gating.Gate] = field(default_factory=lambda: [*gating.SLO])
    prometheus: Prometheus | None = None
    deadline: float = math.inf
    """time.monotonic() from which on nothing is waited for but deletion: what has not come by then is censored."""
    tell: Tell = lambda text: None
    seen: Callable[["Result"], None] = lambda result: None
    """Gets the result of each size as soon as it is there."""
    run: str = field(default_factory=new_run)
    """The id that all it makes is labelled with; parts of it add to it (removal.belongs)."""


@dataclass
class Result:
    """One scenario at one size. `figures` are named values in SI units (None: no data), `trace` is (seconds, VMIs Running);
    `started` and `ended` are Unix seconds."""

    scenario: str
    count: int
    run: str
    rows: list[Row]
    stages: list[Summary]
    figures: dict[str, float | None]
    facts: dict[str, Any]
    verdicts: list[gating.Verdict] = field(default_factory=list)
    trace: list[tuple[float, int]] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    started: float = 0.0
    ended: float = 0.0
    error: str = ""
    """Why this size was not measured, where others were."""
    disturbed: str = ""
    """Who else measured on the cluster at the same time."""

    @property
    def breached(self) -> list[gating.Verdict]:
        """Gates that failed or had no data."""
        return gating.breaches(self.verdicts)

    @property
    def failed(self) -> bool:
        """Whether a gate was breached, a VMI never ran, one was left behind, or another run was beside it."""
        return (
            bool(self.breached or self.disturbed or self.figures["left_behind"])
            or self.figures["success_ratio"] != 1.0
        )

    @property
    def undecided(self) -> list[gating.Verdict]:
        """Gates without data where nothing else is against this size: it may have passed them. Empty where something else is."""
        known = [each for each in self.verdicts if each.passed is not None]
        return (
            []
            if replace(self, verdicts=known).failed
            else [each for each in self.verdicts if each.passed is None]
        )


def template_of(spec: Spec, run: str) -> Template:
    """The scenario's template for one run. Raises TemplateError where it cannot be read or is none of VMIs."""
    return template(spec.template, run, spec.replicas, spec.variables)


def template(source: str, run: str, replicas: int, variables: Mapping[str, Any]) -> Template:
    """A template of VMIs. Raises TemplateError."""
    found = load(source, run, {"workers": replicas, **variables})
    if not found.kind.startswith(VMI.removesuffix("Instance")) or found.kind not in CHAINS:
        raise TemplateError(
            f"{found.kind} brings up no VMI: take the template vmi, vm or vmirs, or a file whose last document is of such a kind"
        )
    if found.kind == SET and found.members != replicas:
        raise TemplateError(
            f"the template has {found.members} replicas and {replicas} are said: say replicas {found.members}"
        )
    if replicas != 1 and found.kind != SET:
        raise TemplateError(f"replicas go with the template vmirs; a {found.kind} is one VMI")
    return found


async def burst(kube: Kube, spec: Spec, count: int) -> Result:
    """Create `count`, wait until all run, delete all, wait until all are gone. Raises TooDenseError, TemplateError, KubeError."""
    nodes = await check_nodes(kube, count * spec.replicas, spec.per_node)
    async with own_namespaces(kube, spec.namespaces, spec.run), _primed(kube, spec) as session:
        spec.tell(f"run {spec.run}: creating {count} {session.template.kind}")
        made = await session.create(count, spec.schedule, spec.parallel)
        wanted = len(made.created) * spec.replicas
        all_running = await _settled(session, spec)
        if not all_running:
            session.notes.append(
                f"{wanted - session.reached(VMI, 'running')} of {wanted} VMIs not Running {session.ended(spec.timeout)}"
            )
        await session.scrape(CREATION)
        rows = await session.rows()
        running, phases = session.reached(VMI, "running"), phase_counts(session.observer.of(VMI))
        spec.tell(f"{running} of {wanted} Running; deleting")
        left = await emptied(session, spec.parallel, spec.timeout)
        return await _result(
            "burst", count, session, spec, nodes, rows, {"left_behind": left, **phases}
        )


async def steady(
    kube: Kube, spec: Spec, count: int, churn: int, pause: float, duration: float
) -> Result:
    """Ramp up to `count`, then for `duration` seconds delete the `churn` oldest and create as many anew each `pause` seconds, ramp down."""
    nodes = await check_nodes(kube, count * spec.replicas, spec.per_node)
    async with own_namespaces(kube, spec.namespaces, spec.run), _primed(kube, spec) as session:
        trace, start = [(0.0, 0)], time.monotonic()

        def note(running: int) -> None:
            trace.append((time.monotonic() - start, running))

        spec.tell(f"run {spec.run}: creating {count} {session.template.kind}")
        await session.create(count, spec.schedule, spec.parallel)
        await _settled(session, spec)
        note(_live(session))
        alive: list[Submission] = [each for each in session.submissions if not each.error]
        cycles, end = 0, min(spec.deadline, time.monotonic() + duration)
        try:
            while time.monotonic() < end:
                await asyncio.sleep(min(pause, max(0.0, end - time.monotonic())))
                old, alive = alive[:churn], alive[churn:]
                await session.delete(old, spec.parallel, spec.timeout)
                note(_live(session))
                made = await session.create(churn, spec.schedule, spec.parallel)
                alive += made.created
                await _settled(session, spec)
                note(_live(session))
                cycles += 1
        except KubeError as error:
            session.notes.append(f"the churn ended after {cycles} cycles: {error}")
        await session.scrape(CREATION)
        rows = await session.rows()
        left = await emptied(session, spec.parallel, spec.timeout)
        note(_live(session))
        result = await _result(
            "steady",
            count,
            session,
            spec,
            nodes,
            rows,
            {"left_behind": left, "churn_cycles": float(cycles)},
        )
        result.trace = trace
        return result


def phase_counts(vmis: Iterable[Record]) -> dict[str, float]:
    """`<Phase>-phase-count` -> VMIs in it now, as KubeVirt's audit names them."""
    found = dict.fromkeys((f"{phase}-phase-count" for phase in VM_PHASES), 0.0)
    names = {phase.lower(): f"{phase}-phase-count" for phase in VM_PHASES}
    for each in vmis:
        phases = [stage for stage in each.stages if stage in names]
        if phases and "gone" not in each.stages:
            found[names[max(phases, key=list(names).index)]] += 1
    return found


def _live(session: Session) -> int:
    return sum(
        "running" in each.stages and "gone" not in each.stages for each in session.observer.of(VMI)
    )


async def _settled(session: Session, spec: Spec) -> bool:
    """Every VMI of what was not deleted again ran, or failed and was not replaced."""
    enough = len(session.alive()) * spec.replicas

    def all_settled() -> bool:
        return (
            may_be_settled(session.observer, enough)
            and settled(session.live(VMI), spec.replicas) >= enough
        )

    return await session.until(all_settled, spec.timeout)


async def emptied(session: Session, parallel: int, timeout: float) -> float:
    """Delete all, and say how many objects are left. What was measured before stands, whatever becomes of the deletion."""
    try:
        gone = await session.delete(session.submissions, parallel, timeout)
        left = 0 if gone else session.left(session.submissions)
    except KubeError as error:
        session.notes.append(f"the deletion was not followed to its end: {error}")
        left = session.left(session.submissions)
        with suppress(KubeError):  # without the watch: by what is listed
            kinds = [
                await session.kube.resource(each.api_version, each.kind)
                for each in session.template.documents[::-1]
            ]
            left = await removal.remove(
                session.kube, session.run, kinds, session.namespaces, parallel, timeout
            )
    await session.scrape(DELETION)
    return float(left)


@asynccontextmanager
async def _primed(kube: Kube, spec: Spec) -> AsyncIterator[Session]:
    notes = await _primer(kube, spec) if spec.primer else []
    made = template_of(spec, spec.run)
    async with open_session(
        kube,
        made,
        spec.namespaces,
        spec.run,
        expected_pods=spec.replicas,
        deadline=spec.deadline,
        tell=spec.tell,
    ) as session:
        session.notes += notes
        yield session


async def _primer(kube: Kube, spec: Spec) -> list[str]:
    """One object created, run and deleted, so that first-time costs (image, leader, new metric series) are outside the clock.

    Returns notes: why they may be within it. Raises KubeError.
    """
    run = f"{spec.run}-{removal.PRIMER}"
    short = replace(spec, timeout=min(spec.timeout, PRIMER))
    async with open_session(
        kube,
        template_of(spec, run),
        spec.namespaces[:1],
        run,
        deadline=spec.deadline,
        tell=spec.tell,
    ) as session:
        (item,) = (await session.create(1, Schedule(), 1)).submissions
        over = await _settled(session, short)
        notes = []
        if item.error or not item.answered_ns:
            notes.append(f"the primer was not created: {item.error or session.ended(math.inf)}")
        elif session.reached(VMI, "running") < spec.replicas:
            what = "failed" if over else f"did not run {session.ended(short.timeout)}"
            records, messages = session.observer.records.values(), session.observer.messages
            notes.append(
                f"the primer {what}: {next((text for each in records if (text := said(each, messages))), 'nothing says why')}"
            )
        if not await session.delete(session.submissions, 1, spec.timeout):
            notes.append("the primer was not gone when the measurement began")
    return [f"{note}; what the first VMI costs besides may be in the figures" for note in notes]


async def _result(
    scenario: Literal["burst", "steady"],
    count: int,
    session: Session,
    spec: Spec,
    nodes: dict[str, Any],
    before: list[Row],
    extra: dict[str, float],
) -> Result:
    rows = with_deletion(before, await session.rows())
    stages = summaries(rows)
    started, ended = session.batches[0][0].started_wall, time.time()
    await session.doubts()
    facts = session.facts() | nodes
    if note := nested_note(nodes):
        session.notes.append(note)
    facts["generator"] = [made.summary(schedule) for made, schedule in session.batches]
    facts["simulated"] = on_simulated(rows)
    figures = figures_of(session, rows, stages) | apimetrics.of_deletion(session.phases) | extra
    if spec.prometheus:
        try:
            gaps, early = await scraped(spec.prometheus, ended, spec.deadline)
            facts["prometheus_scrapes_s"] = gaps
            session.notes += [early] if early else []
            figures |= await component_figures(spec.prometheus, started, ended, gaps)
        except KubeError as error:
            session.notes.append(f"no figures of the components: {error}")
    return Result(
        scenario,
        count,
        session.run,
        rows,
        stages,
        figures,
        facts,
        gating.hold(spec.gates, figures | session.judged()),
        calls=apimetrics.told(session.phases),
        started=started,
        ended=ended,
    )


def figures_of(session: Session, rows: list[Row], stages: list[Summary]) -> dict[str, float | None]:
    """Named figures: per stage p50, p95, p99 (seconds), throughput, success, API latency and counts, lag."""
    found: dict[str, float | None] = {}
    for each in stages:
        found |= {
            f"{each.stage}_p50": each.p50,
            f"{each.stage}_p95": each.p95,
            f"{each.stage}_p99": each.p99,
        }
    final = [row for row in rows if row.stage == "creation_to_running"]
    every, first = (
        len(session.submissions),
        len(session.batches[0][0].submissions) if session.batches else 0,
    )
    ramp = [
        row for row in final if row.index * every < first * len(final)
    ]  # the churn after it goes at a pace of its own
    mean, best = throughput([row.reached for row in ramp if row.reached and row.status == "ok"])
    created = sum(1 for each in session.submissions if each.answered_ns and not each.error)
    planned = len(final) or len(session.submissions)
    found |= {
        "throughput_mean": mean,
        "throughput_best_5s": best,
        "success_ratio": sum(row.status == "ok" for row in final) / planned if planned else None,
        "create_ratio": created / len(session.submissions) if session.submissions else None,
        "censored": float(sum(row.status == "censored" for row in final)),
        "watch_lag_p99": session.clocks().lag_s,
    }
    calls = session.phases.get(CREATION, [])
    if calls and apimetrics.worst(calls) is None:
        count = sum(each.count for each in calls if each.single)
        session.notes.append(
            f"no api_p99: it wants {apimetrics.NEEDED} requests of single objects, and there were {count}"
        )
    found |= apimetrics.named(calls)
    rates = [made.summary(schedule) for made, schedule in session.batches]
    if rates:
        found |= {
            "create_rate": rates[0]["create_rate_per_s"],
            "schedule_held": rates[0]["rate_share"],
            "submit_lag": rates[0]["lag_p99_s"],
        }
    return found

"""VMI scenarios: a burst, and a steady state with churn."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from perfdag.kube.client import Kube, KubeError
from perfdag.kube.prometheus import Prometheus
from perfdag.steps.scale.cluster import removal
from perfdag.steps.scale.cluster.kubevirt import check_nodes, nested_note
from perfdag.steps.scale.cluster.namespaces import own_namespaces
from perfdag.steps.scale.figures import api_metrics
from perfdag.steps.scale.figures.api_metrics import CREATION
from perfdag.steps.scale.figures.audit_queries import audit_figures
from perfdag.steps.scale.figures.percentiles import summaries
from perfdag.steps.scale.figures.prometheus import component_figures, wait_for_scrape
from perfdag.steps.scale.figures.rows import Row, error_text, on_simulated, with_deletion
from perfdag.steps.scale.measure.completion import may_be_settled, settled
from perfdag.steps.scale.measure.generator import Submission
from perfdag.steps.scale.model.chains import CHAINS
from perfdag.steps.scale.model.gates import SLO, Gate, evaluate
from perfdag.steps.scale.model.schedule import Schedule
from perfdag.steps.scale.model.stages import SET, VMI
from perfdag.steps.scale.model.templates import Template, TemplateError, load
from perfdag.steps.scale.scenarios.base import Result, RunSpec, figures_of, phase_counts
from perfdag.steps.scale.scenarios.open_session import open_session
from perfdag.steps.scale.scenarios.session import Session

PRIMER = 300.0
"""Seconds the primer may take to run."""


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


async def burst(kube: Kube, spec: Spec, count: int) -> Result:
    """Create `count` objects, wait until all run, then delete them.

    Raises KubeError, ValueError.
    """
    nodes = await check_nodes(kube, count * spec.replicas, spec.per_node)
    async with (
        own_namespaces(kube, spec.namespaces, spec.run),
        primed_session(kube, spec) as session,
    ):
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
        extra = {"left_behind": left, **phases}
        return await _result("burst", count, session, spec, nodes, rows, deleted, extra)


async def steady(
    kube: Kube, spec: Spec, count: int, churn: int, pause: float, duration: float
) -> Result:
    """Keep `count` objects for `duration` seconds.

    Every `pause` seconds, replace the `churn` oldest.
    """
    nodes = await check_nodes(kube, count * spec.replicas, spec.per_node)
    async with (
        own_namespaces(kube, spec.namespaces, spec.run),
        primed_session(kube, spec) as session,
    ):
        trace, start = [(0.0, 0)], time.monotonic()

        def note(running: int) -> None:
            trace.append((time.monotonic() - start, running))

        spec.log(f"run {spec.run}: creating {count} {session.template.kind}")
        await session.create(count, spec.schedule, spec.parallel)
        await all_settled(session, spec)
        note(_live(session))
        alive: list[Submission] = [item for item in session.submissions if not item.error]
        cycles, end = 0, min(spec.deadline, time.monotonic() + duration)
        try:
            while time.monotonic() < end:
                await asyncio.sleep(min(pause, max(0.0, end - time.monotonic())))
                old, alive = alive[:churn], alive[churn:]
                await session.delete(old, spec.parallel, spec.timeout)
                note(_live(session))
                batch = await session.create(churn, spec.schedule, spec.parallel)
                alive += batch.created
                await all_settled(session, spec)
                note(_live(session))
                cycles += 1
        except KubeError as error:
            session.notes.append(f"the churn ended after {cycles} cycles: {error}")
        await session.scrape(CREATION)
        rows, deleted = await session.rows(), time.time()
        left = await session.delete_all(spec.parallel, spec.timeout)
        note(_live(session))
        result = await _result(
            "steady",
            count,
            session,
            spec,
            nodes,
            rows,
            deleted,
            {"left_behind": left, "churn_cycles": float(cycles)},
        )
        result.trace = trace
        return result


def _live(session: Session) -> int:
    return sum(
        "running" in vmi.stages and "gone" not in vmi.stages for vmi in session.observer.of(VMI)
    )


async def all_settled(session: Session, spec: Spec) -> bool:
    """Wait until every VMI that was not deleted ran, or failed without a replacement."""
    enough = len(session.alive()) * spec.replicas

    def done() -> bool:
        return (
            may_be_settled(session.observer, enough)
            and settled(session.live(VMI), spec.replicas) >= enough
        )

    return await session.until(done, spec.timeout)


@asynccontextmanager
async def primed_session(kube: Kube, spec: Spec) -> AsyncIterator[Session]:
    """Run the primer if wanted, and open the session of the scenario."""
    notes = await _primer(kube, spec) if spec.primer else []
    primed_template = template_of(spec, spec.run)
    async with open_session(
        kube,
        primed_template,
        spec.namespaces,
        spec.run,
        expected_pods=spec.replicas,
        deadline=spec.deadline,
        log=spec.log,
    ) as session:
        session.notes += notes
        yield session


async def _primer(kube: Kube, spec: Spec) -> list[str]:
    """Run and delete one object, so that first-time costs are not measured.

    Returns notes if that failed. Raises KubeError.
    """
    run = f"{spec.run}-{removal.PRIMER}"
    short = replace(spec, timeout=min(spec.timeout, PRIMER))
    async with open_session(
        kube, template_of(spec, run), spec.namespaces[:1], run, deadline=spec.deadline, log=spec.log
    ) as session:
        (item,) = (await session.create(1, Schedule(), 1)).submissions
        over = await all_settled(session, short)
        notes = []
        if item.error or not item.answered_ns:
            notes.append(f"the primer was not created: {item.error or session.wait_end(math.inf)}")
        elif session.reached(VMI, "running") < spec.replicas:
            what = "failed" if over else f"did not run {session.wait_end(short.timeout)}"
            records, messages = session.observer.records.values(), session.observer.messages
            errors = (error_text(record, messages) for record in records)
            notes.append(f"the primer {what}: {next(filter(None, errors), 'no reason is known')}")
        if not await session.delete(session.submissions, 1, spec.timeout):
            notes.append("the primer still existed when the measurement began")
    return [f"{note}; the figures may include first-time costs" for note in notes]


async def _result(
    scenario: Literal["burst", "steady"],
    count: int,
    session: Session,
    spec: Spec,
    nodes: dict[str, Any],
    before: list[Row],
    deleted: float,
    extra: dict[str, float],
) -> Result:
    """Return the result. `deleted` is when the deletion began, in Unix seconds."""
    rows = with_deletion(before, await session.rows())
    stages = summaries(rows)
    started, ended = session.batches[0][0].started_wall, time.time()
    await session.check_clocks()
    facts = session.facts() | nodes
    if note := nested_note(nodes):
        session.notes.append(note)
    facts["generator"] = [batch.summary(schedule) for batch, schedule in session.batches]
    facts["simulated"] = on_simulated(rows)
    figures = (
        figures_of(session, rows, stages) | api_metrics.deletion_figures(session.phases) | extra
    )
    if spec.prometheus:
        try:
            gaps, early = await wait_for_scrape(spec.prometheus, ended, spec.deadline)
            facts["prometheus_scrapes_s"] = gaps
            session.notes += [early] if early else []
            figures |= await component_figures(spec.prometheus, started, ended, gaps)
            figures |= await audit_figures(spec.prometheus, started, deleted, gaps)
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
        evaluate(spec.gates, figures | session.gate_latencies()),
        calls=api_metrics.call_records(session.phases),
        started=started,
        ended=ended,
    )

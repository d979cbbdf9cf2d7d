"""VMI scenarios: burst, ladder of bursts, steady state with churn, and the search for capacity."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from perfdag.kube import Kube
from perfdag.steps.scale import gates as gating
from perfdag.steps.scale.apimetrics import counts, worst
from perfdag.steps.scale.generator import Submission
from perfdag.steps.scale.rows import Row
from perfdag.steps.scale.schedule import Schedule
from perfdag.steps.scale.session import Session, new_run, open_session, own_namespaces
from perfdag.steps.scale.simulate import NODE_ANNOTATION
from perfdag.steps.scale.summary import Summary, summaries, throughput
from perfdag.steps.scale.templates import Template, load

VMI = "VirtualMachineInstance"
Tell = Callable[[str], None]


class TooDenseError(ValueError):
    """More VMIs were asked for than `per_node` allows on the nodes there are."""


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
    gates: list[gating.Gate] = field(default_factory=lambda: [gating.Gate("api_p99", "<", 1.0)])
    tell: Tell = lambda text: None


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

    @property
    def breached(self) -> list[gating.Verdict]:
        """Gates that failed or had no data."""
        return gating.breaches(self.verdicts)


async def check_nodes(kube: Kube, count: int, per_node: int) -> dict[str, Any]:
    """Facts of the nodes that would run VMIs. Raises TooDenseError where `count` is over `per_node` a node, KubeError."""
    nodes = [each for each in await kube.list(await kube.resource("v1", "Node")) if not each["spec"].get("unschedulable")]
    labelled = [each for each in nodes if each["metadata"].get("labels", {}).get("kubevirt.io/schedulable") == "true"]
    fake = [each for each in nodes if NODE_ANNOTATION in (each["metadata"].get("annotations") or {})]
    usable = labelled or fake or [each for each in nodes if not _control_plane(each)]
    if count > per_node * len(usable):
        need = -(-count // per_node)
        raise TooDenseError(f"{count} VMIs on {len(usable)} nodes is over {per_node} a node; {need} nodes are needed (or raise per_node)")
    nested = [
        each["metadata"]["name"] for each in usable if each["metadata"]["labels"].get("cpu-feature.node.kubevirt.io/hypervisor") == "true"
    ]
    return {"nodes": len(usable), "simulated_nodes": len(fake), "nested_virtualisation": nested}


def _control_plane(node: dict[str, Any]) -> bool:
    return any(label.startswith("node-role.kubernetes.io/control-plane") for label in node["metadata"].get("labels", {}))


def template_of(spec: Spec, run: str) -> Template:
    """The scenario's template for one run. Raises TemplateError."""
    return load(spec.template, run, {"workers": spec.replicas, **spec.variables})


async def burst(kube: Kube, spec: Spec, count: int) -> Result:
    """Create `count`, wait until all run, delete all, wait until all are gone. Raises TooDenseError, TemplateError, KubeError."""
    nodes = await check_nodes(kube, count * spec.replicas, spec.per_node)
    run = new_run()
    async with own_namespaces(kube, spec.namespaces, run), _primed(kube, spec, run) as session:
        session.expected_pods = spec.replicas
        spec.tell(f"creating {count} {session.template.kind}")
        made = await session.create(count, spec.schedule, spec.parallel)
        wanted = len(made.created) * spec.replicas
        all_running = await _settled(session, wanted, spec.timeout)
        if not all_running:
            session.notes.append(f"{wanted - session.reached(VMI, 'running')} of {wanted} VMIs not Running after {spec.timeout:g} s")
        await session.scrape()
        running = session.reached(VMI, "running")
        spec.tell(f"{running} of {wanted} Running; deleting")
        gone = await session.delete(session.submissions, spec.parallel, spec.timeout)
        left = 0 if gone else session.left(session.submissions)
        return await _result("burst", count, session, spec, nodes, {"left_behind": float(left)})


async def ladder(kube: Kube, spec: Spec, sizes: list[int], cooldown: float) -> list[Result]:
    """Bursts of rising size with `cooldown` seconds between them; ends early where one leaves objects behind."""
    found: list[Result] = []
    await check_nodes(kube, max(sizes) * spec.replicas, spec.per_node)
    async with own_namespaces(kube, spec.namespaces, new_run()):
        for number, size in enumerate(sizes):
            if number:
                spec.tell(f"cooling down for {cooldown:g} s")
                await asyncio.sleep(cooldown)
            found.append(await burst(kube, spec, size))
            if found[-1].figures["left_behind"]:
                break
    return found


async def steady(kube: Kube, spec: Spec, count: int, churn: int, pause: float, duration: float) -> Result:
    """Ramp up to `count`, then for `duration` seconds delete the `churn` oldest and create as many anew each `pause` seconds, ramp down."""
    nodes = await check_nodes(kube, (count + churn) * spec.replicas, spec.per_node)
    run = new_run()
    async with own_namespaces(kube, spec.namespaces, run), _primed(kube, spec, run) as session:
        session.expected_pods = spec.replicas
        trace, start = [(0.0, 0)], time.monotonic()

        def note(running: int) -> None:
            trace.append((time.monotonic() - start, running))

        await session.create(count, spec.schedule, spec.parallel)
        await _settled(session, _created(session), spec.timeout)
        note(_live(session))
        alive: list[Submission] = [each for each in session.submissions if not each.error]
        cycles, end = 0, time.monotonic() + duration
        while time.monotonic() < end:
            await asyncio.sleep(min(pause, max(0.0, end - time.monotonic())))
            old, alive = alive[:churn], alive[churn:]
            await session.delete(old, spec.parallel, spec.timeout)
            note(_live(session))
            made = await session.create(churn, spec.schedule, spec.parallel)
            alive += made.created
            await _settled(session, _created(session), spec.timeout)
            note(_live(session))
            cycles += 1
        await session.scrape()
        gone = await session.delete(session.submissions, spec.parallel, spec.timeout)
        note(_live(session))
        left = 0 if gone else session.left(session.submissions)
        result = await _result("steady", count, session, spec, nodes, {"left_behind": float(left), "churn_cycles": float(cycles)})
        result.trace = trace
        return result


async def capacity(kube: Kube, spec: Spec, step: int, limit: int) -> tuple[int, list[Result]]:
    """Grow by bursts of `step`, 2 `step` ... up to `limit` until the first gate fails, a VMI does not run or one is left behind.

    Returns the last size that passed, and all results.
    """
    found: list[Result] = []
    passed = 0
    for size in range(step, limit + 1, step):
        try:
            found.append(await burst(kube, spec, size))
        except TooDenseError as error:
            spec.tell(str(error))
            break
        if found[-1].breached or found[-1].figures["left_behind"] or found[-1].figures["success_ratio"] != 1.0:
            break
        passed = size
    return passed, found


def _created(session: Session) -> int:
    return sum(1 for each in session.submissions if each.answered_ns and not each.error) * (session.expected_pods or 1)


def _live(session: Session) -> int:
    return sum("running" in each.stages and "gone" not in each.stages for each in session.observer.of(VMI))


async def _settled(session: Session, wanted: int, timeout: float) -> bool:
    """Every VMI ran or failed."""
    return await session.wait(VMI, wanted, timeout, "running", "failed")


@asynccontextmanager
async def _primed(kube: Kube, spec: Spec, run: str) -> AsyncIterator[Session]:
    if spec.primer:
        await _primer(kube, spec)
    async with open_session(kube, template_of(spec, run), spec.namespaces, run) as session:
        yield session


async def _primer(kube: Kube, spec: Spec) -> None:
    """One object created, run and deleted, so that first-time costs (image, leader, new metric series) are outside the clock."""
    run = new_run()
    async with open_session(kube, template_of(spec, run), spec.namespaces[:1], run) as session:
        made = await session.create(1, Schedule(), 1)
        await _settled(session, len(made.created) * spec.replicas, min(spec.timeout, 300.0))
        await session.delete(session.submissions, 1, spec.timeout)


async def _result(
    scenario: Literal["burst", "steady"], count: int, session: Session, spec: Spec, nodes: dict[str, Any], extra: dict[str, float]
) -> Result:
    rows = await session.rows()
    stages = summaries(rows)
    facts = session.facts() | nodes
    if nodes["nested_virtualisation"]:
        session.notes.append(f"nested virtualisation on {len(nodes['nested_virtualisation'])} nodes: latencies are not of bare metal")
    facts["generator"] = [made.summary(schedule) for made, schedule in session.batches]
    facts["simulated"] = any(row.simulated for row in rows)
    figures = figures_of(session, rows, stages) | extra
    calls = [{"call": each.name, "count": each.count, "p99_s": each.p99, "low_s": each.low, "high_s": each.high} for each in session.calls]
    return Result(
        scenario,
        count,
        session.run,
        rows,
        stages,
        figures,
        facts,
        gating.hold(spec.gates, figures),
        calls=calls,
        started=session.batches[0][0].started_wall,
        ended=time.time(),
    )


def figures_of(session: Session, rows: list[Row], stages: list[Summary]) -> dict[str, float | None]:
    """Named figures: per stage p50, p95, p99 (seconds), throughput, success, API latency and counts, lag."""
    found: dict[str, float | None] = {}
    for each in stages:
        found |= {f"{each.stage}_p50": each.p50, f"{each.stage}_p95": each.p95, f"{each.stage}_p99": each.p99}
    final = [row for row in rows if row.stage == "creation_to_running"]
    reached = [row.receive_time or row.api_time for row in final if row.status == "ok"]
    mean, best = throughput([each for each in reached if each])
    created = sum(1 for each in session.submissions if each.answered_ns and not each.error)
    planned = len(session.submissions)
    found |= {
        "throughput_mean": mean,
        "throughput_best_5s": best,
        "success_ratio": sum(row.status == "ok" for row in final) / planned if planned else None,
        "create_ratio": created / planned if planned else None,
        "censored": float(sum(row.status == "censored" for row in final)),
        "watch_lag_p99": session.clocks().lag_s,
    }
    slow, slow_list = worst(session.calls), worst(session.calls, lists=True)
    found |= {"api_p99": slow.p99 if slow else None, "api_list_p99": slow_list.p99 if slow_list else None}
    found |= {name: float(value) for name, value in counts(session.calls).items()}
    rates = [made.summary(schedule) for made, schedule in session.batches]
    found["create_rate"] = rates[0]["create_rate_per_s"] if rates else None
    return found

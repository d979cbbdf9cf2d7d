"""vmi-burst: creation, start and deletion of many VMIs; vmi-steady: a constant number of them.

One VMI runs before the measurement, so that first-time costs are not measured.
"""

import asyncio
import math
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, Field

from perfdag.benchmark.contract import (
    Duration,
    Metric,
    PositiveDuration,
    Rights,
    ShortForm,
    rbac_rule,
)
from perfdag.kube.client import Kube, KubeError
from perfdag.redaction import logger
from perfdag.steps.scale import figures
from perfdag.steps.scale.cluster import (
    OWN_NAMESPACE,
    PERFORMANCE_RUN,
    PRIMER,
    WHOLE_CLUSTER,
    check_nodes,
)
from perfdag.steps.scale.figures import (
    CHURN,
    COORDS,
    METRICS,
    SHORT_FORMS,
    SLO,
    Gate,
    Result,
    parse_gate,
)
from perfdag.steps.scale.generate import Schedule
from perfdag.steps.scale.objects import (
    CHAINS,
    VM_PHASES,
    VMI,
    Template,
    chain,
    inlined,
    load,
)
from perfdag.steps.scale.prometheus import Prometheus, run_figures
from perfdag.steps.scale.scenario import (
    CLEANUP_TIMEOUT_S,
    SLACK_S,
    Context,
    ScenarioBenchmark,
    ScenarioParams,
    Session,
    open_session,
    phase_counts,
)
from perfdag.units import plural

PRIMER_TIMEOUT_S = 180.0
"""How long the primer may take to run, and to be gone."""
PHASE_COUNTS = tuple(f"{phase}-phase-count" for phase in VM_PHASES)
"""Figures: VMIs by phase, as KubeVirt's audit names them."""


class VmiParams(ScenarioParams):
    """The parameters that scenarios of VMIs share."""

    retired: ClassVar[Mapping[str, Any]] = {"seed": 0}
    template: Annotated[str, AfterValidator(inlined)] = Field(
        "vmi", description="vmi, vm, vmirs, or a YAML file (its text is kept in the plan)"
    )
    replicas: int = Field(1, ge=1, description="VMIs of one object (template vmirs)")
    namespace: str | list[str] = Field(
        "perfdag-vmi",
        description="namespace of the VMIs, or several in turn; missing ones are created",
    )
    arrival: Literal["closed", "constant"] = Field(
        "closed", description="closed (as fast as possible) or constant (at `rate`)"
    )
    per_node: int = Field(200, ge=1, description="VMIs a node at most, checked before starting")
    primer: bool = Field(True, description="one VMI before the clock starts")
    api_gates: bool = Field(True, description="api_p99 < 1 and api_list_p99 < 30 beside `gates`")
    prometheus: str | None = Field(
        None, description="URL of a Prometheus that scrapes KubeVirt; a note if it does not answer"
    )
    prometheus_token_file: str | None = Field(None, description="file with a bearer token for it")
    prometheus_ca_file: str | None = Field(
        None, description="file with the certificate authority of its TLS"
    )

    @property
    def namespaces(self) -> list[str]:
        """The namespaces of the VMIs."""
        return [self.namespace] if isinstance(self.namespace, str) else self.namespace

    @property
    def schedule(self) -> Schedule:
        """How the VMIs arrive. Raises ValueError without a rate that is needed."""
        return Schedule(self.arrival, self.rate)

    @property
    def all_gates(self) -> list[Gate]:
        """The gates of the suite and the limits of the API that they do not replace."""
        gates = [parse_gate(text) for text in self.gates]
        replaced = {gate.metric for gate in gates}
        limits = SLO if self.api_gates else ()
        return [*(limit for limit in limits if limit.metric not in replaced), *gates]

    @property
    def wait_limit(self) -> float:
        """The most seconds of one size, without its schedule."""
        primer = 2 * PRIMER_TIMEOUT_S + CLEANUP_TIMEOUT_S if self.primer else 0.0
        return 2 * self.timeout + primer

    def load(self, run: str) -> Template:
        """Load the template for a run. Raises ValueError."""
        loaded = load(self.template, run, {"workers": self.replicas, **self.variables})
        if not loaded.kind.startswith("VirtualMachine") or loaded.kind not in CHAINS:
            raise ValueError(
                f"{loaded.kind} creates no VMI: use the template vmi, vm or vmirs, or a file whose "
                "last document has such a kind"
            )
        if loaded.members != self.replicas:
            raise ValueError(
                f"the template has {loaded.members} replicas, not {self.replicas}: set replicas"
            )
        return loaded

    def check_figures(self, scenario: str, extra: tuple[str, ...], count: float) -> None:
        """Check template, schedule and gates. `count` is the fewest objects of a size."""
        figures.check(
            self.all_gates,
            scenario,
            chain(self.load("check").kind),
            extra,
            paced=self.schedule.open_loop,
            components=self.prometheus is not None,
            count=count * self.replicas,
        )


class VmiBurstParams(VmiParams):
    """A burst, or several of rising size."""

    retired: ClassVar[Mapping[str, Any]] = {"operation": None, "step": 100, "seed": 0}
    scenario: Literal["burst", "ladder"] = "burst"
    counts: list[Annotated[int, Field(ge=1)]] = Field(
        [100], min_length=1, description="VMIs; several for a ladder"
    )
    cooldown: Duration = Field(60.0, description="seconds between the bursts of a ladder")

    def check(self) -> None:
        """See ScenarioParams."""
        if self.scenario != "ladder" and len(self.counts) > 1:
            raise ValueError("a burst takes one count; several are a ladder (scenario: ladder)")
        self.check_figures(self.scenario, PHASE_COUNTS, min(self.counts))


class VmiSteadyParams(VmiParams):
    """Ramp up, churn, ramp down."""

    count: int = Field(100, ge=1, description="VMIs that are there")
    churn: int = Field(5, ge=1, description="VMIs replaced at a time")
    pause: Duration = Field(20.0, description="seconds between replacements")
    duration: PositiveDuration = Field(300.0, description="seconds of churn")

    def check(self) -> None:
        """See ScenarioParams."""
        if self.churn > self.count:
            raise ValueError(f"churn: {self.churn} is too many of {self.count}")
        cycles = self.duration / self.pause if self.pause else math.inf
        self.check_figures("steady", CHURN, self.count + self.churn * cycles)


async def burst(kube: Kube, params: VmiParams, context: Context, count: int) -> Result:
    """Create `count` objects, wait until all run, and delete them; a steady state replaces some.

    Raises KubeError, ValueError.
    """
    facts = await check_nodes(kube, count * params.replicas, params.per_node)
    if params.primer:
        await warm_up(kube, params, context)
    template = params.load(context.run)
    async with open_session(kube, context, template, params.namespaces, params.replicas) as session:
        logger.info(f"run {context.run}: creating {count} {template.kind}")
        batch = await session.create(count, params.schedule, params.parallel)
        settled = await session.all_reached(params.timeout, "running")
        running = session.observer.count(VMI, "running")
        expected = len(batch.created) * params.replicas
        logger.info(f"{running} of {expected} Running")
        if running < expected:
            when = session.wait_end(params.timeout)
            session.notes.append(f"{expected - running} of {expected} VMIs not Running {when}")
        values: dict[str, float | None] = {}
        if isinstance(params, VmiSteadyParams) and settled:
            values = await churn(session, params)
        values |= phase_counts(session.observer)
        if virtual := facts["nested_virtualisation"]:
            nodes = plural(len(virtual), "node")
            session.notes.append(
                f"nested virtualisation on {nodes}: latencies are not of bare metal"
            )
        deleted = time.time()
        rows, outcome = await session.finish(
            "creation_to_running", count * params.replicas, params.parallel, params.timeout
        )
        values |= outcome
        if params.prometheus:
            source = Prometheus(
                params.prometheus, params.prometheus_token_file, params.prometheus_ca_file
            )
            started = session.submissions[0].started_ns / 1e9
            try:
                components, scrape = await run_figures(source, started, deleted)
                values |= components
                facts["prometheus_scrape_s"] = scrape
            except KubeError as error:
                session.notes.append(f"no figures of the components: {error}")
        scenario = "steady" if isinstance(params, VmiSteadyParams) else "burst"
        return session.result(scenario, rows, values, params.all_gates, facts, count)


async def churn(session: Session, params: VmiSteadyParams) -> dict[str, float | None]:
    """Replace the oldest objects every `pause` seconds for a time, and return how fast that was.

    A replacement that is not gone, or does not run, in time ends the churn.
    """
    cycles = 0
    seconds = 0.0
    held = True
    end = min(time.monotonic() + params.duration, session.context.deadline)
    try:
        while held and time.monotonic() < end:
            await asyncio.sleep(min(params.pause, max(0.0, end - time.monotonic())))
            begun = time.monotonic()
            oldest = session.alive()[: params.churn]
            held = await session.delete(oldest, params.parallel, params.timeout)
            await session.create(params.churn, params.schedule, params.parallel)
            held = await session.all_reached(params.timeout, "running") and held
            cycles += 1
            seconds += time.monotonic() - begun
    except KubeError as error:
        session.notes.append(f"the churn ended after {cycles} cycles: {error}")
    if not held:
        session.notes.append(
            f"not all VMIs ran or were gone {session.wait_end(params.timeout)}: the churn ended"
        )
    replaced = cycles * params.churn / seconds if seconds else None
    return {"churn_cycles": float(cycles), "churn_throughput": replaced}


async def warm_up(kube: Kube, params: VmiParams, context: Context) -> None:
    """Run and delete one object, as a burst of its own.

    Raises KubeError with its phase and events if it did not run or is not gone, because many more
    would not be either.
    """
    limit = min(params.timeout, PRIMER_TIMEOUT_S)
    primer = params.model_copy(
        update={
            "primer": False,
            "timeout": limit,
            "prometheus": None,
            "duration": 0.0,
            "namespace": params.namespaces[0],
            "gates": [],
            "api_gates": False,
            "arrival": "closed",
        }
    )
    result = await burst(kube, primer, replace(context, run=f"{context.run}-{PRIMER}"), 1)
    if not result.incomplete:
        return
    phase = next((name for name in VM_PHASES if result.figures[f"{name}-phase-count"]), "")
    failures = figures.failure_text(result.rows, result.facts["notes"])
    hint = "" if phase else "does KubeVirt run, or KWOK with Stages applied after their CRDs?"
    text = f"the primer, one VMI before the measurement, failed in phase {phase or 'none'}"
    raise KubeError(0, "Primer", f"{text}: {failures}", hint)


HEADLINE = Metric(
    "creation_to_running",
    "s",
    "lower",
    "VMI created to Running (p50, p95, p99 where enough)",
    headline=True,
    label="time to running",
)
V = TypeVar("V", bound=VmiParams)


class VmiBenchmark(ScenarioBenchmark[V]):
    """The base of both benchmarks of VMIs."""

    coords = ("count", *COORDS)
    short_forms: ClassVar[Mapping[str, ShortForm]] = {**SHORT_FORMS, "count": "{} VMIs"}
    api: ClassVar[Rights] = Rights(
        named=(
            *OWN_NAMESPACE,
            rbac_rule("kubevirt.io instancetype.kubevirt.io", "*", "list watch create delete"),
            rbac_rule("", "pods", "list watch"),
        ),
        default=PERFORMANCE_RUN,
        cluster=(
            *WHOLE_CLUSTER,
            rbac_rule("kubevirt.io", "virtualmachineinstances kubevirts", "list"),
        ),
    )
    system = "KubeVirt"
    size = "vms"


class VmiBurst(VmiBenchmark[VmiBurstParams]):
    """Create many VMIs, wait until all run, delete them, wait until all are gone.

    The headline is `creation_to_running`: the time from the creation of a VMI until it runs, with
    the percentiles that have enough samples. VMIs that never run count as infinitely long. On
    simulated nodes only the control plane is measured.

    Clock: the watch of this process. It starts when the creation of the object is received and
    stops when its phase Running is. The lag of the watch is measured and is the error bar.
    """

    metrics = (HEADLINE, *METRICS)

    async def scenario(self, kube: Kube, params: VmiBurstParams, context: Context) -> None:
        """Run bursts of rising size with pauses between them.

        Ends early if a burst leaves objects behind, and at the deadline.
        """
        await check_nodes(kube, max(params.counts) * params.replicas, params.per_node)
        for number, size in enumerate(params.counts, 1):
            if number > 1:
                logger.info(f"cooling down for {params.cooldown:g} s")
                remaining = context.deadline - time.monotonic()
                await asyncio.sleep(max(0.0, min(params.cooldown, remaining)))
            run = f"{context.run}-{number}" if len(params.counts) > 1 else context.run
            result = await burst(kube, params, replace(context, run=run), size)
            context.seen(result)
            if result.figures["left_behind"] or time.monotonic() >= context.deadline:
                break

    def seconds(self, params: VmiBurstParams) -> float:
        """Return an estimate: twice 10 s and 60 ms per VMI, and the cool-downs."""
        return 20.0 + 0.12 * sum(params.counts) + params.cooldown * (len(params.counts) - 1)

    def limit(self, params: VmiBurstParams) -> float:
        """Return the sum of the lock, the primers, the schedules and all waits."""
        sizes = sum(params.schedule.span(size) + params.wait_limit for size in params.counts)
        pauses = params.cooldown * (len(params.counts) - 1)
        return params.lock_timeout + sizes + pauses + SLACK_S


class VmiSteady(VmiBenchmark[VmiSteadyParams]):
    """Keep a number of VMIs, replace the oldest at a steady pace, then delete all.

    Clock: as in vmi-burst, for all VMIs including replacements. It starts when the creation is
    received and stops when the phase Running is.
    """

    metrics = (
        HEADLINE,
        Metric("churn_cycles", "1", "none", "replacements made"),
        Metric(
            "churn_throughput",
            "1/s",
            "higher",
            "VMs replaced a second, without the pauses",
            counts="VMs",
            label="replacements",
        ),
        *METRICS,
    )

    async def scenario(self, kube: Kube, params: VmiSteadyParams, context: Context) -> None:
        """See ScenarioBenchmark."""
        context.seen(await burst(kube, params, context, params.count))

    def seconds(self, params: VmiSteadyParams) -> float:
        """Return the churn, and an estimate of 60 ms per VMI for the ramps."""
        return 30.0 + params.duration + 0.12 * params.count

    def limit(self, params: VmiSteadyParams) -> float:
        """Return the sum of the lock, the primer, the schedule, the churn and all waits."""
        waits = params.schedule.span(params.count) + params.wait_limit + 2 * params.timeout
        return params.lock_timeout + waits + params.duration + SLACK_S

"""One measured run on a cluster: submissions, waits, deletion, rows and the result.

On exit, whatever happened, all objects are deleted and the session waits until they are gone.
"""

import asyncio
import math
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

import orjson
from pydantic import AfterValidator, Field

from perfdag import signals
from perfdag.benchmark.contract import (
    SIMULATED,
    Benchmark,
    Duration,
    Failed,
    Gang,
    Infrastructure,
    Invalid,
    Measurement,
    Output,
    Params,
    PositiveDuration,
    Problem,
    SampleError,
    Shape,
    Skip,
)
from perfdag.kube.client import Kube, KubeError
from perfdag.redaction import logger
from perfdag.steps.scale import api_metrics
from perfdag.steps.scale.api_metrics import CREATION, DELETION
from perfdag.steps.scale.cluster import (
    ExclusiveRun,
    own_namespaces,
    remove,
)
from perfdag.steps.scale.figures import (
    Gate,
    Result,
    check_gates,
    evaluate,
    failure_text,
    measurements,
)
from perfdag.steps.scale.generate import (
    Batch,
    Schedule,
    Submission,
    Submit,
    api_submitter,
    connections,
    generate,
    plan,
)
from perfdag.steps.scale.objects import (
    VM_PHASES,
    VMI,
    Template,
    inlined,
    kinds_of,
    new_run,
    now_ns,
    top_owner,
)
from perfdag.steps.scale.rows import (
    Row,
    on_simulated,
    summaries,
    throughput,
    with_deletion,
)
from perfdag.steps.scale.watch import Observer, WatchLag, settled
from perfdag.units import plural

CLEANUP_TIMEOUT_S = 300.0
"""How long deletion is waited for when a session ends early."""
IN_FLIGHT_S = 1.0
"""Time in which the server has done or dropped a request whose connection was cut."""
SLACK_S = 60.0
"""Time for namespaces, scrapes and the clock."""


@dataclass
class Context:
    """The run of a scenario: its id, its limit, and who gets its results.

    `run` labels all objects; parts of the run append to it (cluster.belongs). `deadline` is a
    time.monotonic() after which only deletion is waited for: later stages are censored. `seen` gets
    the result of every size when it is complete.
    """

    run: str = field(default_factory=new_run)
    deadline: float = math.inf
    seen: Callable[[Result], None] = lambda result: None


class ScenarioParams(Params):
    """The parameters that all scenarios share."""

    template: Annotated[str, AfterValidator(inlined)]
    variables: dict[str, str | int | float] = Field(
        {}, description="placeholders of a template of your own"
    )
    parallel: int = Field(20, ge=1, le=1000, description="creations in flight")
    rate: float = Field(0.0, ge=0, description="creations a second of an open loop")
    timeout: PositiveDuration = Field(
        900.0, description="seconds for all to reach the goal, and for all to be gone"
    )
    lock_timeout: Duration = Field(
        3600.0, description="seconds to wait for another performance run to end"
    )
    gates: Annotated[list[str], AfterValidator(check_gates)] = Field(
        [],
        description="METRIC < VALUE, or METRIC < RATIO * METRIC; of VMIs, it replaces an equal "
        "metric of `api_gates`",
    )

    @property
    @abstractmethod
    def namespaces(self) -> list[str]:
        """The namespaces of the objects."""

    @abstractmethod
    def check(self) -> None:
        """Raise ValueError for invalid combinations, before anything is waited for."""


@dataclass
class Session:
    """A run in progress, from `open_session`."""

    kube: Kube
    context: Context
    template: Template
    namespaces: list[str]
    submitter: Submit
    observer: Observer
    members: int | None
    """Pods or VMIs of one workload; None if unknown."""
    watch_lag: WatchLag = field(default_factory=WatchLag)
    servers: list[Kube] = field(default_factory=list)
    """All API servers, for /metrics."""
    scrapes: list[api_metrics.Scrape] = field(default_factory=list)
    """Scrapes of /metrics, one before the run and one after every phase. Empty if unavailable."""
    phases: dict[str, list[api_metrics.Calls]] = field(default_factory=dict)
    """API calls by phase; a phase without a scrape at both ends is absent."""
    submissions: list[Submission] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    deleted: set[str] = field(default_factory=set)

    async def create(self, count: int, schedule: Schedule, parallel: int) -> Batch:
        """Create `count` more objects on a schedule, and return their submissions."""
        first = len(self.submissions)
        batch = plan(self.context.run, count, self.namespaces, schedule, first)
        self.submissions += batch.submissions
        self.batches.append(batch)
        try:
            async with asyncio.timeout(self._remaining(math.inf)):
                await generate(self.submitter, self.template, batch, parallel)
        except TimeoutError:
            self.notes.append(f"the creation was stopped {self.wait_end(math.inf)}")
        return batch

    def _remaining(self, timeout: float) -> float:
        """Return the lesser of `timeout` and the time left for the sample, infinity without any."""
        return max(0.0, min(timeout, self.context.deadline - time.monotonic()))

    def wait_end(self, timeout: float) -> str:
        """Return in words when a wait of at most `timeout` seconds ended."""
        late = time.monotonic() >= self.context.deadline
        return "at the time limit of the sample" if late else f"after {timeout:g} s"

    def alive(self) -> list[Submission]:
        """Return the accepted submissions whose objects were not deleted since."""
        accepted = (item for item in self.submissions if item.answered_ns and not item.error)
        return [item for item in accepted if item.name not in self.deleted]

    async def all_reached(self, timeout: float, goal: str) -> bool:
        """Wait until all reached the goal or failed. Return False at the time limit."""

        def done() -> bool:
            counts = settled(self.observer, self.template.kind, self.members, goal)
            names = [(item.namespace, item.name) for item in self.alive()]
            return all(counts.get(name, 0) >= (self.members or 1) for name in names)

        return await self.observer.until(done, self._remaining(timeout))

    async def delete(self, items: Sequence[Submission], parallel: int, timeout: float) -> bool:
        """Delete workloads and the objects that belong to them.

        Return False if some are left at the time limit.
        """
        queue = iter([item for item in items if item.started_ns and item.name not in self.deleted])
        by_name = {
            (record.namespace, record.name): record
            for record in self.observer.of(self.template.kind)
        }

        async def worker() -> None:
            for item in queue:
                if record := by_name.get((item.namespace, item.name)):
                    record.put("deleting", received_ns=now_ns())
                for document in self.template.documents[::-1]:  # the workload before its helpers
                    name = document.name_of(item.name)
                    await self.kube.delete(document.path, name, item.namespace)
                self.deleted.add(item.name)

        await asyncio.gather(*(worker() for _ in range(max(1, parallel))))
        # Deletion is waited for beyond the deadline of the sample.
        longest = max(CLEANUP_TIMEOUT_S, self.context.deadline - time.monotonic())
        return await self.observer.until(lambda: not self.left(items), min(timeout, longest))

    def left(self, items: Sequence[Submission]) -> int:
        """Count the objects of these workloads that still exist."""
        names = {
            (document.kind, item.namespace, document.name_of(item.name))
            for document in self.template.documents
            for item in items
        }
        records = self.observer.records
        tops = [top_owner(records, r) for r in records.values() if "gone" not in r.stages]
        return sum((top.kind, top.namespace, top.name) in names for top in tops)

    async def clean_up(self) -> None:
        """Delete what is left by label, wait until it is gone, and log what stays.

        Labels also match objects whose creation was never answered. This is the only cleaner of a
        run that is interrupted, so it raises nothing and says what to do.
        """
        problem = "interrupted"
        try:
            await self.watch_lag.stop()
            documents = (*self.template.shared, *self.template.documents)
            kinds = [*(document.path for document in documents[::-1]), "v1/ConfigMap"]
            if any(item.started_ns and not item.answered_ns for item in self.submissions):
                # A busy server may still carry out a request that was cut off.
                await asyncio.sleep(IN_FLIGHT_S)
            count = await remove(
                self.kube, self.context.run, kinds, self.namespaces, CLEANUP_TIMEOUT_S
            )
            problem = plural(count, "object") if count else ""
        except KubeError as error:
            problem = str(error)
        finally:
            if problem:
                logger.warning(
                    f"objects may be left behind in {', '.join(self.namespaces)} ({problem}); "
                    f"`perfdag scale delete --run {self.context.run}` deletes them"
                )

    async def scrape(self, phase: str) -> None:
        """End a phase: count its API calls since the end of the phase before."""
        if not self.scrapes:
            return
        reason = "another API server answered, or the server was restarted"
        try:
            after = await api_metrics.scrape(self.servers)
            if after.started == self.scrapes[-1].started:
                self.phases[phase] = api_metrics.delta(self.scrapes[-1], after)
                self.scrapes.append(after)
                return
        except KubeError as error:
            reason = str(error)
        self.notes.append(f"no API server metrics of the {phase}: {reason}")
        self.scrapes.clear()

    async def rows(self) -> list[Row]:
        """Return one row per workload and stage. The first call ends the probe of the watch lag."""
        await self.watch_lag.stop()
        return self.observer.rows(self.submissions, self.template.kind, self.members)

    async def finish(
        self, stage: str, count: int, parallel: int, timeout: float
    ) -> tuple[list[Row], dict[str, float | None]]:
        """Delete all, and return all rows and what became of the objects.

        The goal is a `stage`. The pace is that of the first `count` objects: what replaces them has
        one of its own.
        """
        await self.scrape(CREATION)
        rows = await self.rows()
        try:
            await self.delete(self.submissions, parallel, timeout)
        except KubeError as error:  # the measurement before it stays valid
            self.notes.append(f"the deletion was not observed to its end: {error}")
        await self.scrape(DELETION)
        left_behind = self.left(self.submissions)
        if left_behind:
            self.notes.append(f"left behind: {plural(left_behind, 'object')}")
        rows = with_deletion(rows, await self.rows())
        final = [row for row in rows if row.stage == stage]
        ok = [row for row in final if row.status == "ok"]
        mean, best = throughput([row.reached or 0.0 for row in ok if row.index < count])
        return rows, {
            "throughput_mean": mean,
            "throughput_best_5s": best,
            "success_ratio": len(ok) / len(final) if final else None,
            "censored": float(sum(row.status == "censored" for row in final)),
            "left_behind": float(left_behind),
        }

    def result(
        self,
        scenario: str,
        rows: list[Row],
        figures: dict[str, float | None],
        gates: Sequence[Gate],
        facts: dict[str, Any],
        count: int | None = None,
    ) -> Result:
        """Return the result of a session whose objects are deleted.

        `figures` and `facts` are those of the scenario; the session adds its own. `count` is the
        number of workloads, without replacements.
        """
        stages = summaries(rows)
        batches = [batch.summary() for batch in self.batches]
        lag = self.watch_lag.summary()
        created = sum(batch["created"] for batch in batches)
        percentiles = {
            f"{summary.stage}_{stat}": summary.seconds[stat]
            for summary in stages
            for stat in ("p50", "p95", "p99")
        }
        figures = {
            **percentiles,
            **api_metrics.figures(self.phases),
            "create_ratio": created / len(self.submissions),
            "watch_lag_p99": lag["p99_s"],
            "create_rate": batches[0]["create_rate_per_s"],
            "schedule_held": batches[0]["rate_share"],
            "submit_lag": batches[0]["lag_p99_s"],
            **figures,
        }
        all_calls = api_metrics.delta(self.scrapes[0], self.scrapes[-1]) if self.scrapes else []
        notes = [*self.notes]
        if broken := self.kube.counts["watches broken"]:
            notes.append(
                f"watches broke {plural(broken, 'time')}: what changed meanwhile has no receive "
                "time, but the API's, if any"
            )
        if self.observer.simulated is None:
            notes.append("no permission to list nodes: whether they are simulated is unknown")
        facts = {
            "run": self.context.run,
            "members": self.members,
            "watch_lag": lag,
            "server_clock_ahead_s": self.observer.ahead_s,
            "kube": dict(self.kube.counts),
            "absent_kinds": self.observer.absent,
            "generator": batches,
            "notes": notes,
            "simulated": on_simulated(rows),
            **facts,
        }
        calls = [
            {"phase": phase, "call": call.name, "count": call.count, "p99_s": call.p99}
            for phase, of_phase in self.phases.items()
            for call in of_phase
        ]
        return Result(
            scenario,
            count or len(self.submissions),
            self.context.run,
            rows,
            stages,
            figures,
            facts,
            evaluate(gates, figures | api_metrics.latencies(all_calls)),
            calls,
        )


def phase_counts(observer: Observer) -> dict[str, float | None]:
    """`<phase>-phase-count` -> VMIs in it now, as KubeVirt's audit names them."""
    phases = []
    for vmi in observer.of(VMI):
        if "gone" not in vmi.stages:
            phases += [phase for phase in VM_PHASES if phase in vmi.stages][-1:]
    return {f"{phase}-phase-count": float(phases.count(phase)) for phase in VM_PHASES}


@asynccontextmanager
async def open_session(
    kube: Kube,
    context: Context,
    template: Template,
    namespaces: Sequence[str],
    members: int | None,
) -> AsyncIterator[Session]:
    """Start a session in namespaces that exist, and delete what it made on exit.

    It has a first /metrics scrape, an observer and a probe of the watch lag. What the cluster lacks
    or refuses is raised before anything is created. Raises KubeError.
    """
    submitter = await api_submitter(kube, template)
    last = template.documents[-1]
    watched = kinds_of(last.api_version, last.kind)
    created = [(document.api_version, document.kind) for document in template.documents]
    observer = Observer(
        kube, context.run, [*created, *watched], namespaces, primary=[kind for _, kind in created]
    )
    session = Session(kube, context, template, [*namespaces], submitter, observer, members)
    async with AsyncExitStack() as stack:
        try:
            session.servers = await stack.enter_async_context(api_metrics.clients(kube))
            session.scrapes = [await api_metrics.scrape(session.servers)]
        except KubeError as error:
            session.notes.append(f"no API server metrics: {error}")
        await stack.enter_async_context(observer)
        try:
            await session.watch_lag.start(kube, context.run, namespaces[0])
            for namespace in namespaces:
                for document in template.shared:
                    await kube.create(orjson.loads(document.render("", namespace, 0)), namespace)
            yield session
        finally:
            await session.clean_up()


P = TypeVar("P", bound=ScenarioParams)


class ScenarioBenchmark(Benchmark[P], Generic[P]):
    """The base of the benchmarks that measure a cluster."""

    system: ClassVar[str]
    """What is measured. The fact `version` has its version."""
    size: ClassVar[Literal["vms", "objects"]]
    """The coordinate of API requests with the number of objects."""

    def check(self, params: P, shape: Shape) -> Iterator[Problem]:
        """See Benchmark."""
        try:
            params.check()
        except ValueError as error:
            yield Problem("wrong-params", str(error))

    @abstractmethod
    async def scenario(self, kube: Kube, params: P, context: Context) -> None:
        """Measure, and give the result of every size to `context.seen`. Raises KubeError."""

    async def measure(self, kube: Kube, params: P, context: Context) -> list[Result]:
        """Take the lock, make the namespaces, measure, and return the results by size.

        Raises ValueError, KubeError.
        """
        params.check()
        patience = max(0.0, min(params.lock_timeout, context.deadline - time.monotonic()))
        lock = ExclusiveRun(kube, context.run, patience)
        results: list[Result] = []

        def seen(result: Result) -> None:
            results.append(result)
            context.seen(result)

        try:
            async with lock:
                # Before anything is made: what a killed process leaves is deleted by this id.
                logger.info(f"run {context.run}: {self.name}")
                async with own_namespaces(kube, params.namespaces, context.run):
                    await self.scenario(kube, params, replace(context, seen=seen))
        except (KubeError, ValueError) as error:
            if not results:
                raise
            results[-1].error = f"a later size was not measured: {error}"
        finally:  # also of sizes that were measured before an interruption
            for result in results:
                result.error = lock.lost or result.error
        return results

    def run(self, gang: Gang, params: P) -> list[Measurement]:
        """Measure the scenario. Later stages than the gang's timeout are censored.

        Raises Skip (no cluster, no such system), Failed (invalid parameters), Infrastructure, and
        what `values` raises.
        """
        context = Context(deadline=time.monotonic() + gang.timeout)

        async def work() -> list[Result]:
            async with Kube(connections=connections(params.parallel)) as kube:
                return await self.measure(kube, params, context)

        try:
            results = signals.run(work())
        except ValueError as error:
            raise Failed(str(error)) from None
        except KubeError as error:
            raise sample_error(error, self.name) from None
        simulated = any(result.facts["simulated"] for result in results)
        version = results[-1].facts.get("version")
        tool = f"{self.system} {version}" if version else "perfdag"
        gang.output = Output(
            {"results": orjson.dumps(results).decode()},
            tool=f"{tool}, {SIMULATED}" if simulated else tool,
            facts={"simulated": simulated, "runs": [result.facts for result in results]},
        )
        return self.values(results)

    def values(self, results: Sequence[Result]) -> list[Measurement]:
        """Return the measurements of all results.

        Raises Invalid, with the measurements, if objects failed or were left behind, or a size was
        not measured. It does so too if the schedule was not held, or another run disturbed this
        one.
        """
        rows: list[Measurement] = []
        notes: list[str] = []
        headline = next(metric.name for metric in self.metrics if metric.headline)
        for result in results:
            members = (result.facts.get("members") or 1) if self.size == "vms" else 1
            size: dict[str, int] = {self.size: result.count * members}
            coords = {"count": result.count} if self.size == "vms" else {}
            rows += measurements(result, headline, coords, size)
            notes += result.facts["notes"]
            ratio = result.figures["success_ratio"] or 0.0
            if ratio < 1:
                notes.append(f"{1 - ratio:.1%} of {result.count} did not reach the goal")
            if result.late:
                notes.append(f"the open loop of {result.count} was late")
        failures = failure_text([row for result in results for row in result.rows], notes)
        error = next((item.error for item in results if item.error), "")
        if not error and not any(row.metric == headline for row in rows):
            error = "nothing reached the goal"
        if error or any(item.incomplete or item.late for item in results):
            raise Invalid("; ".join(filter(None, (error, failures))), measurements=rows)
        return rows


def sample_error(error: KubeError, benchmark: str) -> SampleError:
    """Convert an error of the cluster to the outcome of a sample.

    A missing cluster, kind or right skips the sample, and an outage is retried.
    """
    if error.reason in ("Config", "NoKind"):
        return Skip(str(error))
    if error.status in (401, 403):
        return Skip(
            f"{error}; `perfdag install --store ... --allow {benchmark}=NAMESPACE`, with its other "
            "options repeated, grants its pods what its own templates need there; bind a Role for "
            "other kinds"
        )
    return Infrastructure(str(error)) if error.transient else Failed(str(error))

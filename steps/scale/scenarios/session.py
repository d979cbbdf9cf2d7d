"""One measured run on a cluster: submissions, waits, deletion, rows and the result.

On exit, whatever happened, all objects are deleted and the session waits until they are gone.
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import orjson

from perfdag.kube.client import Kube, KubeError
from perfdag.steps.scale.cluster import removal, rights
from perfdag.steps.scale.cluster.nodes import simulated_nodes
from perfdag.steps.scale.cluster.removal import (
    namespace_stays,
    objects_of_run,
    own_namespaces,
    remove,
)
from perfdag.steps.scale.figures import api_metrics
from perfdag.steps.scale.figures.api_metrics import CREATION, DELETION
from perfdag.steps.scale.figures.gates import Gate, Verdict, breaches, evaluate
from perfdag.steps.scale.figures.rows import (
    Clocks,
    Row,
    Summary,
    on_simulated,
    rows_of,
    summaries,
    throughput,
)
from perfdag.steps.scale.measure.errors import Offset, SelfLoad, WatchLag, server_offset
from perfdag.steps.scale.measure.generator import (
    ApiSubmitter,
    GeneratorResult,
    Schedule,
    Submission,
    Submitter,
    generate,
)
from perfdag.steps.scale.measure.observer import Observer, expected_count, reached
from perfdag.steps.scale.model.stages import VM_PHASES, Record, kinds_of, remaining, top_owner
from perfdag.steps.scale.model.templates import Template, new_run
from perfdag.units import plural

LEFT_BEHIND = 300.0
"""Seconds to wait for deletion when a session ends early."""


@dataclass
class Session:
    """A run in progress, from `open_session`. Times are time.monotonic_ns() if not noted."""

    kube: Kube
    run: str
    template: Template
    namespaces: list[str]
    observer: Observer
    watch_lag: WatchLag
    submitter: Submitter
    offset: Offset
    scrapes: list[api_metrics.Scrape]
    """Scrapes of /metrics, one before the run and one after every phase. Empty if unavailable."""
    expected_pods: int | None = None
    servers: list[Kube] = field(default_factory=list)  # all API servers, for /metrics
    submissions: list[Submission] = field(default_factory=list)
    batches: list[tuple[GeneratorResult, Schedule]] = field(default_factory=list)
    deadline: float = math.inf
    """time.monotonic() after which only deletion is waited for."""
    notes: list[str] = field(default_factory=list)
    phases: dict[str, list[api_metrics.Calls]] = field(default_factory=dict)
    """API calls by phase; a phase without a scrape at both ends is absent."""
    self_load: SelfLoad = field(default_factory=SelfLoad)
    deleted: set[str] = field(default_factory=set)

    async def create(self, count: int, schedule: Schedule, parallel: int) -> GeneratorResult:
        """Create `count` more objects on a schedule, and return their submissions."""
        first = len(self.submissions)

        def plan(batch: GeneratorResult) -> None:
            self.submissions += batch.submissions
            self.batches.append((batch, schedule))

        creation = generate(
            self.submitter,
            self.template,
            count,
            self.namespaces,
            schedule,
            parallel,
            run=self.run,
            first=first,
            on_plan=plan,
        )
        try:
            async with asyncio.timeout(self.left_of(math.inf)):
                return await creation
        except TimeoutError:
            self.notes.append(f"the creation was stopped {self.wait_end(math.inf)}")
            return self.batches[-1][0]

    def left_of(self, timeout: float) -> float | None:
        """Return the lesser of `timeout` and the time left for the sample.

        None means no limit.
        """
        left = min(timeout, self.deadline - time.monotonic())
        return None if math.isinf(left) else max(0.0, left)

    def wait_end(self, timeout: float) -> str:
        """Return in words when a wait of at most `timeout` seconds ended."""
        late = time.monotonic() >= self.deadline
        return "at the time limit of the sample" if late else f"after {timeout:g} s"

    def reached(self, kind: str, *stages: str) -> int:
        """Count the objects of a kind that reached at least one of the stages."""
        return self.observer.reached(kind, *stages)

    async def wait(self, kind: str, count: int, timeout: float, *stages: str) -> bool:
        """Wait until `count` objects of a kind reached a stage. Return False at the time limit."""
        counts = self.observer.counts

        def enough() -> bool:
            # Cheap, and too high only if objects reached several of the stages.
            most = sum(counts[kind, stage] for stage in stages)
            return most >= count and self.reached(kind, *stages) >= count

        return await self.until(enough, timeout)

    def progress(self, goal: str = "ready") -> tuple[int, int]:
        """Return how many pods or VMIs reached the goal or failed, and how many are expected."""
        last, members = self.template.documents[-1], self.expected_pods
        enough = expected_count(self.submissions, members)
        return reached(self.observer, last.api_version, last.kind, members, enough, goal), enough

    async def all_reached(self, timeout: float, goal: str = "ready") -> bool:
        """Wait until all reached the goal. Return False at the time limit."""

        def enough() -> bool:
            got, wanted = self.progress(goal)
            return got >= wanted

        return await self.until(enough, timeout)

    def alive(self) -> list[Submission]:
        """Return the accepted submissions whose objects were not deleted since."""
        accepted = (item for item in self.submissions if item.answered_ns and not item.error)
        return [item for item in accepted if item.name not in self.deleted]

    def live(self, kind: str) -> Iterator[Record]:
        """Yield the records of a kind, without those of deleted workloads."""
        return (
            record
            for record in self.observer.of(kind)
            if top_owner(self.observer.records, record).name not in self.deleted
        )

    async def until(self, done: Callable[[], bool], timeout: float) -> bool:
        """Wait until `done()` holds. Return False at the time limit. Raises KubeError."""
        return await self.observer.until(done, self.left_of(timeout) or 0.0)

    async def delete(self, items: Sequence[Submission], parallel: int, timeout: float) -> bool:
        """Delete workloads and the objects that belong to them.

        Return False if some are left at the time limit.
        """
        documents = self.template.documents[::-1]  # the workload first, then what it needed
        resources = [
            await self.kube.resource(document.api_version, document.kind) for document in documents
        ]
        queue = iter([item for item in items if item.started_ns and item.name not in self.deleted])
        by_name = {
            (record.namespace, record.name): record
            for record in self.observer.of(self.template.kind)
        }

        async def worker() -> None:
            for item in queue:
                record = by_name.get((item.namespace, item.name))
                if record:
                    record.put("deleting", received_ns=time.monotonic_ns())
                for document, resource in zip(documents, resources, strict=True):
                    await self.kube.delete(resource, document.name_of(item.name), item.namespace)
                self.deleted.add(item.name)

        await asyncio.gather(*(worker() for _ in range(max(1, parallel))))
        names = self._names(items)
        patience = min(timeout, max(LEFT_BEHIND, self.deadline - time.monotonic()))
        return await self.observer.until(
            lambda: next(remaining(self.observer.records, names), None) is None, patience
        )

    async def delete_all(self, parallel: int, timeout: float) -> float:
        """Delete all workloads and return how many objects are left after `timeout` seconds.

        A failed deletion becomes a note, because the measurement before it stays valid.
        """
        try:
            gone = await self.delete(self.submissions, parallel, timeout)
            left = 0 if gone else self.left(self.submissions)
        except KubeError as error:
            self.notes.append(f"the deletion was not observed to its end: {error}")
            left = self.left(self.submissions)
            with suppress(KubeError):  # the watch broke, so count what a list shows
                documents = self.template.documents[::-1]
                kinds = [await self.kube.resource(doc.api_version, doc.kind) for doc in documents]
                left = await removal.remove(
                    self.kube, self.run, kinds, self.namespaces, parallel, timeout
                )
        await self.scrape(DELETION)
        return float(left)

    def left(self, items: Sequence[Submission], namespaces: Sequence[str] | None = None) -> int:
        """Count the objects of these workloads that still exist.

        `namespaces` None: in all of them.
        """
        left = remaining(self.observer.records, self._names(items))
        return sum(namespaces is None or record.namespace in namespaces for record in left)

    def _names(self, items: Sequence[Submission]) -> set[tuple[str, str, str]]:
        return {
            (document.kind, item.namespace, document.name_of(item.name))
            for document in self.template.documents
            for item in items
        }

    async def scrape(self, phase: str) -> None:
        """End a phase: count its API calls since the end of the phase before."""
        if not self.scrapes:
            return
        why = "another API server answered, or the server was restarted"
        try:
            after = await api_metrics.scrape(self.servers)
        except KubeError as error:
            why = str(error)
        else:
            why = "" if after.started == self.scrapes[-1].started else why
        if why:
            self.notes.append(f"no API server metrics of the {phase}: {why}")
            self.scrapes.clear()
            return
        self.phases[phase] = api_metrics.delta(self.scrapes[-1], after)
        self.scrapes.append(after)

    def gate_latencies(self) -> dict[str, float | None]:
        """Return the API latencies that gates compare, of the worse of creation and deletion."""
        whole = api_metrics.delta(self.scrapes[0], self.scrapes[-1]) if self.scrapes else []
        return api_metrics.gate_latencies(self.phases, whole)

    @property
    def in_flight(self) -> bool:
        """Tell whether a creation was sent and never answered."""
        return any(item.started_ns and not item.answered_ns for item in self.submissions)

    def clocks(self) -> Clocks:
        """Return how the clocks of this run relate."""
        shift = time.time_ns() - time.monotonic_ns()
        return Clocks(shift, self.offset.seconds)

    async def rows(self) -> list[Row]:
        """Return one row per workload and stage.

        The first call ends the measurement of the watch lag and of this process's load.
        """
        await self.watch_lag.stop()
        await self.self_load.stop()
        fake, why = await simulated_nodes(self.kube)
        if why and why not in self.notes:
            self.notes.append(why)
        return list(
            rows_of(
                self.submissions,
                self.observer.records,
                self.clocks(),
                run=self.run,
                kind=self.template.kind,
                api_version=self.template.documents[-1].api_version,
                until_ns=time.monotonic_ns(),
                expected_pods=self.expected_pods,
                simulated=fake,
                messages=self.observer.messages,
            )
        )

    def facts(self) -> dict[str, Any]:
        """Return what a reader must know to judge the figures."""
        doubts = [self.self_load.note] if self.self_load.note else []
        if count := self.kube.counts["replayed changes"]:
            doubts.append(
                f"watches were away: {count} changes have the API's time or none, no receive time"
            )
        return {
            "run": self.run,
            "members": self.expected_pods,
            "watch_lag": self.watch_lag.summary(),
            "server_clock_ahead_s": self.offset.seconds,
            "server_clock_bound_s": self.offset.bound,
            "harness_cpu": self.self_load.share,
            "kube": dict(self.kube.counts),
            "absent_kinds": self.observer.absent,
            "failure_reasons": dict(self.observer.reasons.most_common(20)),
            "generator": [batch.summary(schedule) for batch, schedule in self.batches],
            "notes": [*self.notes, *doubts],
        }


@dataclass
class Result:
    """One scenario at one size.

    `figures` are in SI units (None: no data), `trace` is (seconds, VMIs Running), `started` and
    `ended` are Unix seconds.
    """

    scenario: str
    count: int
    run: str
    rows: list[Row]
    stages: list[Summary]
    figures: dict[str, float | None]
    facts: dict[str, Any]
    verdicts: list[Verdict] = field(default_factory=list)
    trace: list[tuple[float, int]] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    started: float = 0.0
    ended: float = 0.0
    error: str = ""
    """The reason why this size was not measured, or empty."""
    disturbed: str = ""
    """Why the figures are void: another run measured too."""

    @property
    def breached(self) -> list[Verdict]:
        """Gates that failed or had no data."""
        return breaches(self.verdicts)

    @property
    def failed(self) -> bool:
        """Whether the run failed.

        A gate or a VMI failed, an object was left, or another run disturbed it.
        """
        return (
            bool(self.breached or self.disturbed or self.figures["left_behind"])
            or self.figures["success_ratio"] != 1.0
        )


def phase_counts(vmis: Iterable[Record]) -> dict[str, float]:
    """`<phase>-phase-count` -> VMIs in it now, as KubeVirt's audit names them."""
    counts = dict.fromkeys((f"{phase}-phase-count" for phase in VM_PHASES), 0.0)
    for vmi in vmis:
        reached = [stage for stage in vmi.stages if stage in VM_PHASES]
        if reached and "gone" not in vmi.stages:
            counts[f"{max(reached, key=VM_PHASES.index)}-phase-count"] += 1
    return counts


def figures_of(session: Session, rows: list[Row], stages: list[Summary]) -> dict[str, float | None]:
    """Return stage percentiles (s), throughput, success, API latency and counts, watch lag."""
    figures: dict[str, float | None] = {}
    for summary in stages:
        figures |= {
            f"{summary.stage}_p50": summary.p50,
            f"{summary.stage}_p95": summary.p95,
            f"{summary.stage}_p99": summary.p99,
        }
    final = [row for row in rows if row.stage == "creation_to_running"]
    every = len(session.submissions)
    first = session.batches[0][0].submissions if session.batches else []
    end = first[-1].index + 1 if first else 0
    # Without the churn after the ramp, which has its own pace.
    ramp = [row for row in final if row.index * every < end * len(final)]
    figures |= outcome_figures(final, ramp, len(final) or len(session.submissions))
    created = sum(1 for item in session.submissions if item.answered_ns and not item.error)
    figures |= {
        "create_ratio": created / len(session.submissions) if session.submissions else None,
        "watch_lag_p99": session.watch_lag.p99,
    }
    calls = session.phases.get(CREATION, [])
    if calls and api_metrics.worst(calls) is None:
        count = sum(call.count for call in calls if call.single)
        session.notes.append(
            f"no api_p99: it needs {api_metrics.NEEDED} requests of single objects, and there were "
            f"{count}"
        )
    figures |= api_metrics.named_figures(calls)
    rates = [batch.summary(schedule) for batch, schedule in session.batches]
    if rates:
        figures |= {
            "create_rate": rates[0]["create_rate_per_s"],
            "schedule_held": rates[0]["rate_share"],
            "submit_lag": rates[0]["lag_p99_s"],
        }
    return figures


def result_of(
    session: Session,
    scenario: str,
    count: int,
    rows: list[Row],
    figures: dict[str, float | None],
    gates: Sequence[Gate],
    facts: dict[str, Any],
    ended: float,
) -> Result:
    """Return the result of a session whose objects are deleted; `ended` is in Unix seconds.

    `figures` and `facts` are those of the scenario; the session adds its own.
    """
    stages = summaries(rows)
    figures = (
        figures_of(session, rows, stages) | api_metrics.deletion_figures(session.phases) | figures
    )
    return Result(
        scenario,
        count,
        session.run,
        rows,
        stages,
        figures,
        session.facts() | {"simulated": on_simulated(rows)} | facts,
        evaluate(gates, figures | session.gate_latencies()),
        calls=api_metrics.call_records(session.phases),
        started=session.batches[0][0].started_wall,
        ended=ended,
    )


def outcome_figures(
    final: Sequence[Row], paced: Sequence[Row], planned: int
) -> dict[str, float | None]:
    """Return the throughput of the `paced` rows, and what became of the `final` ones.

    `final` has the last stage of each workload, of `planned` in all.
    """
    mean, best = throughput([row.reached for row in paced if row.reached and row.status == "ok"])
    return {
        "throughput_mean": mean,
        "throughput_best_5s": best,
        "success_ratio": sum(row.status == "ok" for row in final) / planned if planned else None,
        "censored": float(sum(row.status == "censored" for row in final)),
    }


@dataclass
class RunSpec:
    """The parameters of all scenarios. `timeout` bounds every wait in seconds."""

    schedule: Schedule = field(default_factory=Schedule)
    parallel: int = 20
    timeout: float = 900.0
    variables: dict[str, Any] = field(default_factory=dict)
    deadline: float = math.inf
    """time.monotonic() after which only deletion is waited for. Later stages are censored."""
    log: Callable[[str], None] = lambda text: None
    run: str = field(default_factory=new_run)
    """The id that labels all objects; parts of the run append to it (removal.belongs)."""


IN_FLIGHT = 1.0
"""Seconds in which the server has done or dropped a request whose connection was cut."""
AGAIN = 2.0
"""Seconds to wait for deleted objects before new ones are looked for."""


class open_session:  # noqa: N801 - reads as a function: async with open_session(...)
    """Start a session, and stop it on exit.

    It has namespaces, a first /metrics scrape, an observer and a probe of the watch lag.
    `patience` is how many seconds the end waits for the deletion.
    """

    def __init__(
        self,
        kube: Kube,
        template: Template,
        namespaces: Sequence[str],
        run: str,
        *,
        expected_pods: int | None = None,
        deadline: float = math.inf,
        log: Callable[[str], None] = lambda text: None,
        patience: float | None = None,
    ) -> None:
        self._kube, self._template, self._namespaces, self._run, self._log = (
            kube,
            template,
            list(namespaces),
            run,
            log,
        )
        self._expected, self._deadline = expected_pods, deadline
        self._patience = LEFT_BEHIND if patience is None else patience
        self.stack = AsyncExitStack()
        self.session: Session | None = None

    async def __aenter__(self) -> Session:
        kube, template = self._kube, self._template
        # An unknown kind fails before anything is created.
        submitter = await ApiSubmitter.open(kube, template)
        last = template.documents[-1]
        watched = kinds_of(last.api_version, last.kind)
        await rights.check(kube, template, self._namespaces, watched)
        try:
            await self.stack.enter_async_context(own_namespaces(kube, self._namespaces, self._run))
            notes: list[str] = []
            scrapes: list[api_metrics.Scrape] = []
            servers: list[Kube] = []
            try:
                servers = await self.stack.enter_async_context(api_metrics.clients(kube))
                scrapes.append(await api_metrics.scrape(servers))
            except KubeError as error:
                notes.append(f"no API server metrics: {error}")
            kinds = [
                (document.api_version, document.kind) for document in template.documents
            ] + watched
            primary = [document.kind for document in template.documents]
            observer = await self.stack.enter_async_context(
                Observer(kube, self._run, kinds, self._namespaces, primary=primary)
            )
            beats = await self.stack.enter_async_context(
                WatchLag(kube, self._run, self._namespaces[0])
            )
            offset = await server_offset(kube)
            self_load = await self.stack.enter_async_context(SelfLoad())
        except BaseException:
            await self.close()
            raise
        self.session = Session(
            kube,
            self._run,
            template,
            self._namespaces,
            observer,
            beats,
            submitter,
            offset,
            scrapes,
            self._expected,
            servers,
            notes=notes,
            self_load=self_load,
        )
        self.session.deadline = self._deadline
        try:
            for namespace in self._namespaces:
                for document in template.shared:
                    body = document.render("", namespace, 0)
                    await kube.create(orjson.loads(body), namespace)
        except BaseException:
            await self.close()
            raise
        return self.session

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Delete the objects, close everything, then log what is left."""
        session, left, why, doubt = self.session, 0, "", "interrupted"
        if not session:
            await self.stack.aclose()
            return
        try:
            try:
                left = await self._remove(session)
                doubt = "interrupted" if left else ""
            except KubeError as error:
                why = str(error)
            finally:
                failed = await self._close_stack()
            if doubt:
                left, doubt = await self._left_in_namespaces(session)
            if failed:
                raise failed
        finally:
            self._log_left(left, why, doubt)

    async def _close_stack(self) -> KubeError | None:
        """Close what was opened, and return the error that prevented it."""
        try:
            await self.stack.aclose()
        except KubeError as error:
            return error
        return None

    def _log_left(self, left: int, why: str, doubt: str) -> None:
        """Log how many objects are left and `why`, or the `doubt` if that is unknown."""
        scope = f"of run {self._run} in {', '.join(self._namespaces)}"
        how = f"`perfdag scale delete --run {self._run}` deletes them"
        if doubt:
            reasons = dict.fromkeys(reason for reason in (why, doubt) if reason)
            self._log(f"whether objects {scope} are left is unknown ({'; '.join(reasons)}); {how}")
        elif left:
            reason = f" ({why})" if why else ""
            self._log(f"left behind: {plural(left, 'object')} {scope}{reason}; {how}")

    async def _left_in_namespaces(self, session: Session) -> tuple[int, str]:
        """Return how many objects are left in remaining namespaces, or why that is unknown."""
        kube = self._kube
        try:
            stay = [name for name in self._namespaces if await namespace_stays(kube, name)]
            resources = [
                await kube.resource(document.api_version, document.kind)
                for document in self._template.everything
            ]
            listed = await objects_of_run(kube, self._run, resources, stay)
        except KubeError as error:
            return 0, str(error)
        return max(len(listed), session.left(session.submissions, stay)), ""

    async def _remove(self, session: Session) -> int:
        """Delete by label, until no object is left or the patience ends.

        Labels also match objects whose creation was never answered. Returns how many objects are
        left. Raises KubeError.
        """
        kube = self._kube
        resources = [
            await kube.resource(document.api_version, document.kind)
            for document in self._template.everything[::-1]
        ]
        if session.in_flight:  # a busy server may still carry out a request that was cut off
            await remove(kube, self._run, resources, self._namespaces, 20, self._patience)
            await asyncio.sleep(IN_FLIGHT)
        deadline = time.monotonic() + self._patience
        while True:
            listed = await remove(
                kube,
                self._run,
                resources,
                self._namespaces,
                20,
                max(0.0, deadline - time.monotonic()),
            )
            try:
                gone = await session.observer.until(
                    lambda: not session.left(session.submissions), AGAIN
                )
            except KubeError:  # the watch broke: rely on the list
                return listed
            if (gone and not listed) or time.monotonic() >= deadline:
                return max(listed, session.left(session.submissions))

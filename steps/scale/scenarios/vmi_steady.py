"""A steady state: a constant number of VMIs, of which the oldest are replaced."""

import asyncio
import time

from perfdag.kube.client import Kube, KubeError
from perfdag.steps.scale.cluster.kubevirt import check_nodes
from perfdag.steps.scale.cluster.namespaces import own_namespaces
from perfdag.steps.scale.figures.api_metrics import CREATION
from perfdag.steps.scale.figures.rows import with_deletion
from perfdag.steps.scale.measure.generator import Submission
from perfdag.steps.scale.model.stages import VMI
from perfdag.steps.scale.scenarios.base import Result
from perfdag.steps.scale.scenarios.session import Session
from perfdag.steps.scale.scenarios.vmi import result_of
from perfdag.steps.scale.scenarios.vmi_primer import primed_session
from perfdag.steps.scale.scenarios.vmi_spec import Spec, all_settled, unsettled

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
        result = await result_of("steady", count, session, spec, nodes, rows, deleted, extra)
        result.trace = trace
        return result


def _live(session: Session) -> int:
    return sum(
        "running" in vmi.stages and "gone" not in vmi.stages for vmi in session.observer.of(VMI)
    )

"""The search for capacity: VMIs are added until a gate fails, then the limit is bisected.

The VMIs stay between the sizes, so that a search creates little more than its limit. Every size is
measured by the same burst of `step` objects, which makes sizes comparable.
"""

import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from perfdag.kube.client import Kube, KubeError
from perfdag.steps.scale.cluster.kubevirt import check_nodes
from perfdag.steps.scale.cluster.namespaces import own_namespaces
from perfdag.steps.scale.figures.api_metrics import CREATION
from perfdag.steps.scale.model.chains import DELETIONS
from perfdag.steps.scale.model.stages import VMI
from perfdag.steps.scale.scenarios.base import Result, phase_counts
from perfdag.steps.scale.scenarios.session import Session
from perfdag.steps.scale.scenarios.vmi import result_of
from perfdag.steps.scale.scenarios.vmi_primer import primed_session
from perfdag.steps.scale.scenarios.vmi_spec import Spec, all_settled
from perfdag.units import plural

PARTS = 8
"""The search ends when the limit is known to this part of a step."""
BISECTIONS = 4
"""Bisections of a step at most."""


class NotGoneError(Exception):
    """VMIs that had to go before the next size are still there."""


@dataclass(frozen=True)
class Capacity:
    """The largest size that held (0: none), and the smallest that did not (0: none).

    The capacity is between the two. A non-empty `stopped` is the reason why the search ended early,
    so that `passed` is a lower bound. `no_data` means that a gate of the next size had no data.
    """

    passed: int
    stopped: str = ""
    no_data: bool = False
    failed: int = 0

    @property
    def bracket(self) -> str:
        """The limit with its uncertainty, in words."""
        beyond = f"{self.failed} did not" if self.failed else "no larger size was decided"
        return f"{self.passed} held, {beyond}"


def next_size(interval: Capacity, step: int, limit: int) -> int | None:
    """Return the next size of the search, or None if it is over.

    The size grows by `step` until one fails. Then the middle of the interval is tried.
    """
    if not interval.failed:
        return min(interval.passed + step, limit) if interval.passed < limit else None
    width = interval.failed - interval.passed
    if not interval.passed or width <= max(1, step // PARTS):
        return None
    return interval.passed + width // 2


def most_sizes(step: int, limit: int) -> int:
    """Return how many sizes a search tries at most."""
    return math.ceil(limit / step) + BISECTIONS


async def search(
    measure: Callable[[int], Awaitable[Result]], spec: Spec, step: int, limit: int
) -> tuple[Capacity, list[Result]]:
    """Search the largest size that `measure` finds to pass its gates, up to `limit`.

    Raises KubeError if the first size cannot be measured.
    """
    results: list[Result] = []
    interval = Capacity(0)
    while (size := next_size(interval, step, limit)) is not None:
        try:
            result = await measure(size)
        except (KubeError, NotGoneError) as error:
            if not results:
                raise
            return replace(interval, stopped=str(error)), results
        results.append(result)
        spec.seen(result)
        if undecided := result.undecided:
            why = "; ".join(map(str, undecided))
            return replace(interval, stopped=why, no_data=True), results
        if not result.failed:
            interval = replace(interval, passed=size)
        elif time.monotonic() >= spec.deadline:
            return replace(interval, stopped="the time limit of the sample was reached"), results
        else:
            interval = replace(interval, failed=size)
    stopped = "" if interval.failed else f"the limit of {limit} was reached"
    return replace(interval, stopped=stopped), results


async def capacity(kube: Kube, spec: Spec, step: int, limit: int) -> tuple[Capacity, list[Result]]:
    """Search the most VMIs that may exist while a burst of `step` objects passes the gates.

    Raises TooDenseError or KubeError if the first size cannot be made.
    """
    nodes = await check_nodes(kube, step * spec.replicas, spec.per_node)
    free = spec.per_node * nodes["nodes"] - sum(nodes["vmis_before"].values())
    room = free // spec.replicas
    if room < limit:
        spec.log(f"the search ends at {room}: per_node ({spec.per_node}) allows no more")
        limit = room
    async with (
        own_namespaces(kube, spec.namespaces, spec.run),
        primed_session(kube, spec, limit) as session,
    ):
        population = _Population(session, spec, nodes, step)
        interval, results = await search(population.grow_to, spec, step, limit)
        spec.log(f"{interval.bracket}; deleting")
        last = results[-1]
        last.figures["left_behind"] = await session.delete_all(spec.parallel, spec.timeout)
        last.facts["notes"] += session.notes
    return interval, results


class _Population:
    """The VMIs of a search, of which the newest burst is measured."""

    def __init__(self, session: Session, spec: Spec, nodes: dict[str, int], step: int) -> None:
        self._session, self._spec, self._nodes, self._step = session, spec, nodes, step

    async def grow_to(self, size: int) -> Result:
        """Bring the number of objects to `size` with a burst of `step`, and measure that burst.

        The newest objects are deleted first if there are too many. Raises KubeError, NotGoneError.
        """
        session, spec = self._session, self._spec
        await self._shrink_to(max(0, size - self._step))
        await session.scrape("before")
        spec.log(f"run {spec.run}: {size} {session.template.kind}, the last {self._step} are new")
        batch = await session.create(self._step, spec.schedule, spec.parallel)
        await all_settled(session, spec)
        own = replace(
            session,
            submissions=batch.submissions,
            batches=session.batches[-1:],
            scrapes=session.scrapes[-1:],
            phases={},
            notes=session.notes,
        )
        session.notes = []
        await own.scrape(CREATION)
        rows = [row for row in await own.rows() if row.since not in DELETIONS]
        phases = phase_counts(session.observer.of(VMI))
        wanted, running = size * spec.replicas, phases["running-phase-count"]
        if running < wanted:
            own.notes.append(
                f"{wanted - running:g} of {wanted} VMIs not Running {own.wait_end(spec.timeout)}"
            )
        extra = {"left_behind": None, **phases, "success_ratio": running / wanted}
        nodes, now = dict(self._nodes), time.time()
        result = await result_of("capacity", size, own, spec, nodes, rows, now, extra)
        result.facts["added"] = self._step
        return result

    async def _shrink_to(self, size: int) -> None:
        session, spec = self._session, self._spec
        there = [item for item in session.submissions if item.name not in session.deleted]
        if newest := there[size:]:
            spec.log(f"deleting the newest {len(newest)}")
            if not await session.delete(newest, spec.parallel, spec.timeout):
                raise NotGoneError(f"{plural(session.left(newest), 'object')} left behind")

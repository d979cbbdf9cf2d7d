"""The primer: one object before the measurement, so that first-time costs are not measured."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace

from perfdag.kube.client import Kube
from perfdag.steps.scale.cluster import removal
from perfdag.steps.scale.figures.rows import error_text
from perfdag.steps.scale.model import tasks
from perfdag.steps.scale.model.schedule import Schedule
from perfdag.steps.scale.model.stages import VMI
from perfdag.steps.scale.scenarios.open_session import open_session
from perfdag.steps.scale.scenarios.session import Session
from perfdag.steps.scale.scenarios.vmi_spec import Spec, all_settled, template_of

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
            await tasks.cancel([keeping] if keeping else [])


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

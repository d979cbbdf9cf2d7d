"""An operation on all running VMs, its rows, and the objects that ask for it."""

import asyncio
import time

from perfdag.kube.client import KubeError
from perfdag.steps.scale.cluster.kwok_nodes import simulated_nodes
from perfdag.steps.scale.figures.family import Family
from perfdag.steps.scale.figures.rows import Row, Workload, rows_of_one
from perfdag.steps.scale.measure.generator import Submission
from perfdag.steps.scale.model.operations import OLD, OPERATIONS, SUBRESOURCES, Operation
from perfdag.steps.scale.model.records import Record
from perfdag.steps.scale.model.templates import RUN_LABEL
from perfdag.steps.scale.scenarios.session import Session
from perfdag.steps.scale.scenarios.vmi_spec import Spec


async def operate(session: Session, spec: Spec) -> tuple[list[Row], float | None]:
    """Do the spec's operation on every VM at once, and wait until all have completed it.

    Returns the rows and the share of the VMs that completed it. Raises KubeError.
    """
    assert spec.operation
    operation = OPERATIONS[spec.operation]
    if operation.name == "start":  # what runs is stopped first
        stop = OperationRun(session, spec, OPERATIONS["stop"])
        await stop.request()
        await stop.wait()
    spec.log(f"{operation.name} of {len(session.alive())} {session.template.kind}")
    work = OperationRun(session, spec, operation)
    await work.request()
    try:
        await work.wait()
        return await work.rows(), work.completed() / len(work.items) if work.items else None
    finally:
        await work.remove()


class OperationRun:
    """One operation in progress. `before` are the UIDs of all objects before it."""

    def __init__(self, session: Session, spec: Spec, operation: Operation) -> None:
        self._session, self._spec, self._operation = session, spec, operation
        observer = session.observer
        self._before = set(observer.records)
        self._uids = {
            (record.namespace, record.name): record.uid
            for record in observer.of(session.template.kind)
        }
        self.items = [
            Submission(item.index, item.name, item.namespace, 0, uid=self._uids[key])
            for item in session.alive()
            if (key := (item.namespace, item.name)) in self._uids
        ]

    async def request(self) -> None:
        """Ask for the operation on all VMs, with the spec's requests in flight."""
        queue = iter(self.items)

        async def worker() -> None:
            for item in queue:
                item.intended_ns = item.started_ns = time.monotonic_ns()
                try:
                    await self._ask(item)
                except KubeError as error:
                    item.error = str(error)
                item.answered_ns = time.monotonic_ns()

        self._session.measure()
        await asyncio.gather(*(worker() for _ in range(self._spec.parallel)))

    async def _ask(self, item: Submission) -> None:
        kube, operation = self._session.kube, self._operation
        if operation.subresource:
            where = f"namespaces/{item.namespace}/{operation.subresource}/{item.name}"
            path = f"{SUBRESOURCES}/{where}/{operation.name}"
            await kube.raw("PUT", path, body=b"{}", headers={"Accept": "*/*"})
        else:
            labels = {RUN_LABEL: self._session.run}
            await kube.create(operation.object(item.name, labels), item.namespace)

    async def wait(self) -> None:
        """Wait until all VMs completed the operation or cannot, at most the spec's timeout."""
        wanted = sum(not item.error for item in self.items)
        if not await self._session.until(lambda: self._over() >= wanted, self._spec.timeout):
            self._session.notes.append(
                f"{wanted - self.completed()} of {wanted} VMs did not complete "
                f"{self._operation.name} {self._session.wait_end(self._spec.timeout)}"
            )
        if errors := [item.error for item in self.items if item.error]:
            self._session.notes.append(
                f"{len(errors)} VMs refused {self._operation.name}: {errors[0]}"
            )

    def completed(self) -> int:
        """Count the VMs that completed it."""
        return self._reached(self._operation.stage)

    def _over(self) -> int:
        return self._reached(self._operation.stage, "failed")

    def _reached(self, *stages: str) -> int:
        family, kind = Family(self._session.observer.records), self._operation.kind
        return sum(
            any(
                stage in record.stages
                for record in self._below(family, item).get(kind, ())
                for stage in stages
            )
            for item in self.items
        )

    def _below(self, family: Family, item: Submission) -> dict[str, list[Record]]:
        """Return the objects of a VM by kind, those from before the operation as OLD kinds."""
        below: dict[str, list[Record]] = {}
        for kind, records in family.below(item.uid).items():
            for record in records:
                old = OLD if record.uid in self._before else ""
                below.setdefault(old + kind, []).append(record)
        if requests := self._operation.request_kind:
            name = f"{item.name}-{self._operation.name}"
            objects = self._session.observer.of(requests[1])
            below[requests[1]] = [
                record
                for record in objects
                if (record.namespace, record.name) == (item.namespace, name)
            ]
        return below

    async def rows(self) -> list[Row]:
        """Return one row per VM and step of the operation."""
        session, clocks, end = self._session, self._session.clocks(), time.time_ns()
        session.heartbeats.pause()
        session.self_load.pause()
        fake, _ = await simulated_nodes(session.kube)
        family = Family(session.observer.records)
        kind, messages, rows = session.template.kind, session.observer.messages, list[Row]()
        for item in self.items:
            record, below = session.observer.find(item.uid), self._below(family, item)
            pods = below.get("Pod", below.get(f"{OLD}Pod", []))
            work = Workload(item, record, item.index, item.name, below, len(pods) or None)
            steps = self._operation.steps
            rows += rows_of_one(work, clocks, session.run, kind, steps, end, fake, messages)
        return rows

    async def remove(self) -> None:
        """Delete the objects that asked for the operation."""
        if requests := self._operation.request_kind:
            resource = await self._session.kube.resource(*requests)
            for item in self.items:
                name = f"{item.name}-{self._operation.name}"
                await self._session.kube.delete(resource, name, item.namespace)

"""Run a changing load on queues and trace their scaler.

On this machine, backends are processes and a model of the HPA scales them.
On a cluster, backends are a Deployment that any autoscaler scales.
"""

import asyncio
import time
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import Any, TypeVar

from perfdag.kube.client import Kube
from perfdag.kube.errors import ignore_status
from perfdag.outcome import Failed
from perfdag.steps.queue.autoscale.params import QueueAutoscaleParams
from perfdag.steps.queue.autoscale.queue_gauges import GaugeReader, queue_gauges
from perfdag.steps.queue.autoscale.scores import HpaModel, Sample, needed
from perfdag.steps.queue.backend.processes import Processes
from perfdag.steps.queue.client.arrivals import Arrivals
from perfdag.steps.queue.client.load import OpenLoop
from perfdag.steps.queue.client.stats import ClientStats
from perfdag.steps.queue.client.wires import KeptWire, Work
from perfdag.steps.queue.frontend.dispatcher import clock
from perfdag.steps.queue.frontend.frontend import Frontend
from perfdag.steps.queue.validate import targets
from perfdag.steps.queue.validate.deployment import DeploymentTarget, as_outcome
from perfdag.steps.queue.validate.validate import Target, idle
from perfdag.steps.queue.wire import Address

T = TypeVar("T")
POLL_SECONDS = 0.1


@dataclass
class QueueRun:
    """The run of one queue: its trace and its client's statistics."""

    queue: str
    trace: list[Sample]
    client_stats: ClientStats

    def as_json(self) -> dict[str, Any]:
        """Return the trace as lists, with the client's statistics."""
        return trace_json(self.trace, self.client_stats.as_json())


def trace_json(trace: list[Sample], client: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trace as lists of the fields of Sample, with the client's statistics."""
    return {"trace": [astuple(sample) for sample in trace], "client": dict(client)}


async def run_on_target(
    arrivals: Arrivals,
    item_seconds: float,
    target: Target,
    load: targets.HttpLoad,
    read_gauges: GaugeReader,
    interval: float = 1.0,
) -> dict[str, Any]:
    """Let a client send one period of its load, and trace a target that a scaler scales.

    `read_gauges` returns the depth of the queue and the age of its oldest request. `interval`:
    seconds between samples. The last answers may take as long as the load.
    """
    await load.rate(None)
    await idle(target, load, arrivals.period)
    await load.reset()
    trace: list[Sample] = []
    await load.rate(arrivals, arrivals.period)
    start = time.monotonic()
    try:
        while time.monotonic() - start < arrivals.period:
            have, (depth, wait) = await asyncio.gather(target.ready(), read_gauges())
            now = time.monotonic() - start  # after the answers, so that no reaction looks faster
            want = needed(arrivals.rate_at(now), item_seconds)
            trace.append(Sample(now, want, have, depth, wait))
            await asyncio.sleep(interval)
        while (stats := await load.stats())["pending"]:
            if time.monotonic() - start > 2 * arrivals.period:
                break
            await asyncio.sleep(interval)
        return trace_json(trace, stats)
    finally:
        await load.rate(None)


async def run_locally(
    arrivals: Arrivals, item_seconds: float, queues: int, sync: float, model: HpaModel
) -> list[QueueRun]:
    """Run one period of the load on `queues` queues of local processes at once.

    Every queue has a copy of the model.
    `sync`: seconds between decisions of the scaler. Latencies run from the scheduled times.
    Raises Failed if a backend ends by itself.
    """
    names = [f"queue-{n + 1}" for n in range(queues)]
    anywhere = Address("127.0.0.1", 0)
    frontend = Frontend(names)
    await frontend.start(anywhere, anywhere, anywhere)
    clients, workers, _ = frontend.ports
    backends = {
        name: Processes(Address("127.0.0.1", workers), name, ["sleep", f"{item_seconds}"])
        for name in names
    }
    try:
        for processes in backends.values():
            await processes.scale(model.least)
        while any(len(frontend.parked[name]) < model.least for name in names):
            await _raise_if_lost(backends.values())
            await asyncio.sleep(0.05)
        start = time.monotonic()
        runs = [QueueRun(name, [], ClientStats()) for name in names]
        await _run_together(
            work
            for run in runs
            for work in (
                _send(
                    arrivals,
                    KeptWire(Address("127.0.0.1", clients), Work(run.queue)),
                    run.client_stats,
                ),
                _scale(
                    frontend, run, backends[run.queue], arrivals, item_seconds, sync, start, model
                ),
            )
        )
        return runs
    finally:
        await asyncio.gather(*(processes.stop() for processes in backends.values()))
        await frontend.stop()


async def _raise_if_lost(backends: Iterable[Processes]) -> None:
    for processes in backends:
        if lost := await processes.lost():
            raise Failed(f"{processes.queue}: {lost}")


async def _send(arrivals: Arrivals, wire: KeptWire, client_stats: ClientStats) -> None:
    loop = OpenLoop(wire, client_stats)
    try:
        await loop.send(arrivals, arrivals.period)
        if loop.flying:
            await asyncio.wait(loop.flying, timeout=arrivals.period)
    finally:
        await loop.cancel()
        await wire.close()


async def _scale(
    frontend: Frontend,
    run: QueueRun,
    backends: Processes,
    arrivals: Arrivals,
    item_seconds: float,
    sync: float,
    start: float,
    model: HpaModel,
) -> None:
    scaler = HpaModel(
        model.target, model.least, model.most, model.tolerance, model.window, model.period
    )
    queue, decided = frontend.queues[run.queue], -sync
    while (now := time.monotonic() - start) < arrivals.period:
        working = queue.running + len(frontend.parked[run.queue])
        run.trace.append(
            Sample(
                now,
                needed(arrivals.rate_at(now), item_seconds),
                working,
                queue.waiting,
                queue.oldest_wait(clock()),
            )
        )
        if now - decided >= sync:
            await _raise_if_lost([backends])
            decided = now
            have = len(backends.running)
            wanted = scaler.desired(now, queue.waiting + queue.running, have)
            if wanted != have:
                await backends.scale(wanted)
        await asyncio.sleep(POLL_SECONDS)


CLIENT_SECONDS = 30.0
"""Seconds that the clients of Deployments have to answer."""


async def _run_together(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all at once and return their results. If one fails, cancel the others and await them.

    gather alone would let them go on: a scaler would leave backends behind, a client would send.
    """
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def watch(arrivals: Arrivals, params: QueueAutoscaleParams) -> dict[str, Any]:
    """Trace the Deployments of the parameters, and return the traces by Deployment.

    Raises Failed, and Skip without the right to read them.
    """
    with as_outcome("queue-autoscale"):
        async with Kube() as kube:
            namespace = params.namespace or kube.namespace
            services = params.clients or [f"{name}-client" for name in params.deployments]
            watched = [DeploymentTarget(kube, namespace, name) for name in params.deployments]
            where = params.client_namespace or namespace
            token = await targets.token_of(kube, where)
            loads = [
                targets.HttpLoad(targets.send_by_service(kube, where, service, token))
                for service in services
            ]
            for target in watched:
                await target.find()
                await require_scaler(target)
            for load in loads:
                await load.up(CLIENT_SECONDS)
            lines = [queue_gauges(kube, namespace, target.containers) for target in watched]
            traces = await _run_together(
                run_on_target(arrivals, params.item, *arguments)
                for arguments in zip(watched, loads, lines, strict=True)
            )
            return dict(zip(params.deployments, traces, strict=True))


async def require_scaler(target: DeploymentTarget) -> None:
    """Raise ValueError for a Deployment without a scaler.

    Without the right to look for one, return: the trace shows whether it is scaled.
    """
    with ignore_status(403):
        if not await target.scaler():
            raise ValueError(
                f"nothing scales Deployment {target.name} in namespace {target.namespace}: it has "
                "no HorizontalPodAutoscaler, and no CronJob or ScaledJob of its name starts "
                "backends (`autoscale` of the queue makes one)"
            )

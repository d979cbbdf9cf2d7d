"""Drive queues with a changing load and watch a scaler follow: processes and a model of the HPA here, a Deployment and
whatever scales it on a cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import Any

from perfdag.benchmark import Failed
from perfdag.steps.queue.autoscale import HpaModel, Profile, Sample
from perfdag.steps.queue.fifo import clock
from perfdag.steps.queue.frontend import Frontend, Limits
from perfdag.steps.queue.line import Line
from perfdag.steps.queue.load import KeptWire, Work, request
from perfdag.steps.queue.processes import Processes
from perfdag.steps.queue.tally import Tally
from perfdag.steps.queue.validate import Load, Target
from perfdag.steps.queue.wire import Address

LOOK_SECONDS = 0.1
WAIT_SECONDS = 1.0
"""Sliding window of the longest wait: that of a frontend elsewhere, 30 s, would hide when the line was gone."""


@dataclass
class Followed:
    """What became of one queue: its trace, its client's statistics and whether the generator kept its schedule."""

    queue: str
    trace: list[Sample]
    tally: Tally

    def as_json(self) -> dict[str, Any]:
        """The trace as lists and the client's statistics."""
        return described(self.trace, self.tally.as_json())


def described(trace: list[Sample], client: Mapping[str, Any]) -> dict[str, Any]:
    """A trace as lists of seconds, needed, there, depth and wait (seconds), with its client's statistics."""
    return {"trace": [astuple(each) for each in trace], "client": dict(client)}


async def watch(
    profile: Profile, target: Target, load: Load, line: Line, look: float = 1.0
) -> dict[str, Any]:
    """Change the requests in parallel as the profile says and watch a target that something else scales.

    The profile's rates are requests in parallel, of which each keeps one backend busy. ``line`` tells depth and longest wait of its
    queue. ``look``: seconds between looks.
    """
    await load.reset()
    trace: list[Sample] = []
    sent = -1
    start = time.monotonic()
    try:
        while (now := time.monotonic() - start) < profile.seconds:
            wanted = round(profile.rate(now))
            if wanted != sent:
                sent = wanted
                allowed = await load.parallel(wanted)
                if allowed < wanted:
                    raise ValueError(
                        f"the client sends at most {allowed} requests in parallel: start it with --req-max {wanted}"
                    )
            have, (depth, wait) = await asyncio.gather(target.ready(), line())
            trace.append(Sample(now, wanted, have, depth, wait))
            await asyncio.sleep(look)
        return described(trace, await load.stats())
    finally:
        await load.parallel(0)


async def follow(
    profile: Profile, item_seconds: float, queues: int, sync: float, model: HpaModel
) -> list[Followed]:
    """Run the profile on each of ``queues`` queues at once. ``sync``: seconds between the scaler's looks.

    Every queue has a copy of the model. Latencies run from the scheduled times. Raises Failed where a backend ends by itself.
    """
    names = [f"queue-{n + 1}" for n in range(queues)]
    anywhere = Address("127.0.0.1", 0)
    frontend = Frontend(names, Limits(window=WAIT_SECONDS))
    await frontend.start(anywhere, anywhere, anywhere)
    clients, workers, _ = frontend.ports
    backends = {
        name: Processes(Address("127.0.0.1", workers), name, ["sleep", f"{item_seconds}"])
        for name in names
    }
    tasks: list[asyncio.Future[None]] = []
    try:
        for each in backends.values():
            await each.scale(model.least)
        while any(len(frontend.parked[name]) < model.least for name in names):
            _none_lost(backends.values())
            await asyncio.sleep(0.05)
        start = time.monotonic()
        results = [Followed(name, [], Tally()) for name in names]
        tasks += (
            asyncio.ensure_future(work)
            for one in results
            for work in (
                _send(
                    profile,
                    KeptWire(Address("127.0.0.1", clients), Work(one.queue)),
                    one.tally,
                    start,
                ),
                _scale(
                    frontend, one, backends[one.queue], profile, item_seconds, sync, start, model
                ),
            )
        )
        await asyncio.gather(*tasks)
        return results
    finally:
        for task in (
            tasks
        ):  # gather does not: a scaler that still looks would start backends that nobody ends
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(each.stop() for each in backends.values()))
        await frontend.stop()


def _none_lost(backends: Iterable[Processes]) -> None:
    for each in backends:
        if lost := each.lost():
            raise Failed(f"{each.queue}: {lost}")


async def _send(profile: Profile, wire: KeptWire, tally: Tally, start: float) -> None:
    flying: set[asyncio.Task[bool]] = set()
    due = 0.0
    try:
        while due < profile.seconds:
            await asyncio.sleep(max(0.0, start + due - time.monotonic()))
            tally.scheduled += 1
            tally.lag.add(max(0.0, time.monotonic() - start - due))
            task = asyncio.create_task(request(wire, tally, -1, start + due))
            flying.add(task)
            task.add_done_callback(flying.discard)
            due += 1 / profile.rate(due)
        if flying:
            await asyncio.wait(flying, timeout=profile.seconds)
    finally:
        for task in list(flying):
            task.cancel()
        await wire.close()


async def _scale(
    frontend: Frontend,
    one: Followed,
    backends: Processes,
    profile: Profile,
    item_seconds: float,
    sync: float,
    start: float,
    model: HpaModel,
) -> None:
    mine = HpaModel(
        model.target, model.least, model.most, model.tolerance, model.window, model.period
    )
    queue, looked = frontend.queues[one.queue], -sync
    while (now := time.monotonic() - start) < profile.seconds:
        working = queue.running + len(frontend.parked[one.queue])
        one.trace.append(
            Sample(
                now,
                profile.needed(now, item_seconds),
                working,
                queue.waiting,
                queue.longest_wait(clock()),
            )
        )
        if now - looked >= sync:
            _none_lost([backends])
            looked = now
            have = len(backends.running)
            wanted = mine.desired(now, queue.waiting + queue.running, have)
            if wanted != have:
                await backends.scale(wanted)
        await asyncio.sleep(LOOK_SECONDS)

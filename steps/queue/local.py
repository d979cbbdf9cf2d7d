"""A whole queue on this machine: frontend and client in this process, backends as processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perfdag.steps.queue.frontend import Frontend, Limits
from perfdag.steps.queue.load import ClosedLoop, KeptWire, Work
from perfdag.steps.queue.processes import Processes
from perfdag.steps.queue.tally import Tally
from perfdag.steps.queue.targets import LocalLoad, LocalTarget
from perfdag.steps.queue.wire import Address
from perfdag.steps.queue.workload import Workload

QUEUE = "local"


class Local:
    """An async context manager with ``target`` and ``load`` for the validator. ``most``: requests in parallel."""

    def __init__(self, command: Sequence[str], most: int, limits: Limits | None = None, **options: Any) -> None:
        Workload(command)  # says now what is wrong with it
        self.command, self.most, self.limits, self.options = list(command), most, limits, options

    async def __aenter__(self) -> Local:
        anywhere = Address("127.0.0.1", 0)
        self.frontend = Frontend([QUEUE], self.limits)
        await self.frontend.start(anywhere, anywhere, anywhere)
        clients, workers, _ = self.frontend.ports
        self.processes = Processes(Address("127.0.0.1", workers), QUEUE, self.command, **self.options)
        self.tally = Tally()
        self.wire = KeptWire(Address("127.0.0.1", clients), Work(QUEUE))
        self.loop = ClosedLoop(self.wire, self.tally, self.most)
        self.target, self.load = LocalTarget(self.processes), LocalLoad(self.loop, self.tally)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.loop.stop()
        await self.wire.close()
        await self.processes.stop()
        await self.frontend.stop()

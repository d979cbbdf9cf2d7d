"""A whole queue on this machine: frontend and client in this process, backends as processes."""

import math
from collections.abc import Sequence
from typing import Any

from perfdag.steps.queue.backend.processes import Processes
from perfdag.steps.queue.backend.workload import Workload, device
from perfdag.steps.queue.client.load import ClosedLoop
from perfdag.steps.queue.client.stats import ClientStats
from perfdag.steps.queue.client.wires import KeptWire, Work
from perfdag.steps.queue.frontend.dispatcher import Limits
from perfdag.steps.queue.frontend.frontend import Frontend
from perfdag.steps.queue.validate.targets import LocalLoad, LocalTarget
from perfdag.steps.queue.wire import Address

QUEUE = "local"


class Local:
    """An async context manager with ``target`` and ``load`` for the validator.

    ``most``: requests in parallel. ``glob``: its first match replaces FILENAME.
    ``item_limit``: seconds that an item may run, 0 for no limit.
    Raises ValueError for a command that cannot run, a glob without a match, and a bad limit.
    """

    def __init__(
        self,
        command: Sequence[str],
        most: int,
        limits: Limits | None = None,
        *,
        glob: str = "",
        item_limit: float = 0.0,
        **options: Any,
    ) -> None:
        if not 0 <= item_limit < math.inf:
            raise ValueError(f"item limit {item_limit:g} s is not a finite time from 0 (no limit)")
        file = device(glob)
        Workload(command, file)  # raises early for a bad command
        self.command, self.most, self.limits, self.item_limit = (
            list(command),
            most,
            limits,
            item_limit,
        )
        self.options = {"workload": {"command": self.command, "device": file}, **options}

    async def __aenter__(self) -> "Local":
        anywhere = Address("127.0.0.1", 0)
        self.frontend = Frontend([QUEUE], self.limits)
        await self.frontend.start(anywhere, anywhere, anywhere)
        clients, workers, _ = self.frontend.ports
        self.processes = Processes(
            Address("127.0.0.1", workers), QUEUE, self.command, **self.options
        )
        self.client_stats = ClientStats()
        self.wire = KeptWire(Address("127.0.0.1", clients), Work(QUEUE, limit=self.item_limit))
        self.loop = ClosedLoop(self.wire, self.client_stats, self.most)
        self.target, self.load = (
            LocalTarget(self.processes),
            LocalLoad(self.loop, self.client_stats),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.loop.stop()
        await self.wire.close()
        await self.processes.stop()
        await self.frontend.stop()

"""A queue on this machine: backends as processes, and its client and frontend in this one."""

import asyncio
import contextlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from perfdag.hosts import gpu_use
from perfdag.hosts.gpu_use import DeviceUse
from perfdag.hosts.local import LocalHost, signal_tree
from perfdag.steps.queue import wire
from perfdag.steps.queue.client import ClientStats, Load, Work
from perfdag.steps.queue.dispatcher import raise_file_limit
from perfdag.steps.queue.frontend import Frontend
from perfdag.steps.queue.steady_state import Stats
from perfdag.steps.queue.wire import Address
from perfdag.steps.queue.workload import Workload, device

QUEUE = "local"


class Processes:
    """Replicas of one backend, a Target of the validator.

    `workload` and `options`: fields of Workload and of the backend's Options. `grace`: seconds to
    end the current item before a replica is killed.
    """

    def __init__(
        self,
        frontend: wire.Address,
        queue: str,
        workload: Mapping[str, Any],
        grace: float = 30.0,
        **options: Any,
    ) -> None:
        self.queue, self.grace = queue, grace
        self.options = {
            "frontend": f"{frontend.host or 'localhost'}:{frontend.port}",
            "queue": queue,
            # In a pod the host name is the pod's.
            "node": os.environ.get("PERFDAG_NODE") or socket.gethostname(),
            "workload": workload,
            **options,
        }
        self.running: list[subprocess.Popen[bytes]] = []
        self.leaving: list[subprocess.Popen[bytes]] = []
        self.started = 0

    def _start(self) -> None:
        self.started += 1
        options = self.options | {"pod": f"{self.queue}-{self.started}"}
        process = subprocess.Popen(
            [sys.executable, "-m", "perfdag.steps.queue.backend", json.dumps(options)],
            stdin=subprocess.DEVNULL,
        )
        self.running.append(process)

    async def scale(self, replicas: int) -> None:
        """Start or end replicas, and replace lost ones.

        The youngest end first, after their current item.
        """
        self.running = [process for process in self.running if process.poll() is None]
        while len(self.running) < replicas:
            self._start()
        while len(self.running) > replicas:
            process = self.running.pop()
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            self.leaving.append(process)

    async def replicas(self) -> int:
        """Return the replicas that were requested and not scaled in since."""
        return len(self.running)

    async def ready(self) -> int:
        """Return the number of replicas that run and are not ending."""
        return sum(process.poll() is None for process in self.running)

    async def lost(self) -> str:
        """Return how many replicas ended by themselves, and how; "" for none."""
        codes = [code for process in self.running if (code := process.poll()) is not None]
        how = ", ".join(f"{count} by {_end(code)}" for code, count in Counter(codes).items())
        return (
            f"{len(codes)} of {len(self.running)} backends ended by themselves ({how})"
            if codes
            else ""
        )

    async def gone(self) -> bool:
        """Tell whether all replicas that were scaled in have ended."""
        self.leaving = [process for process in self.leaving if process.poll() is None]
        return not self.leaving

    async def why(self) -> str:
        """Return why replicas are missing, which `lost` tells for processes."""
        return ""

    def watch_devices(self) -> AbstractContextManager[dict[str, DeviceUse]]:
        """Return a context that fills a dictionary with the use of this machine's devices."""
        return gpu_use.devices_watched(LocalHost())

    async def drain(self) -> None:
        """Wait for ending replicas, then kill those beyond the grace."""
        for _ in range(int(self.grace / 0.02)):
            if await self.gone():
                return
            await asyncio.sleep(0.02)
        for process in self.leaving:
            signal_tree(process.pid, signal.SIGKILL)  # also its command, which has its own session
            process.wait()
        self.leaving.clear()

    async def stop(self) -> None:
        """End all replicas and wait for them."""
        await self.scale(0)
        await self.drain()


def _end(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


class LocalLoad:
    """A client in this process."""

    def __init__(self, load: Load) -> None:
        self.load, self.client_stats = load, load.client_stats

    async def parallel(self, requests: int) -> int:
        return self.load.set_parallel(requests)

    async def reset(self) -> None:
        self.client_stats.reset()

    async def stats(self) -> Stats:
        return self.client_stats.as_json()


class Local:
    """An async context manager with `target` and `load` for the validator.

    `most`: requests in parallel. `glob`: its first match replaces FILENAME.
    `item_limit`: seconds that an item may run, 0 for no limit.
    Raises ValueError for a command that cannot run, a glob without a match, and a bad limit.
    """

    def __init__(
        self,
        command: Sequence[str],
        most: int,
        glob: str = "",
        item_limit: float = 0.0,
    ) -> None:
        if not 0 <= item_limit < math.inf:
            raise ValueError(f"item limit {item_limit:g} s is not a finite time from 0 (no limit)")
        file = device(glob)
        Workload(command, file)  # raises early for a bad command
        self.most, self.item_limit = most, item_limit
        self.workload = {"command": list(command), "device": file}

    async def __aenter__(self) -> "Local":
        anywhere = Address("127.0.0.1", 0)
        # Both ends of the client's connections, and the frontend's of those to backends.
        raise_file_limit(3 * self.most)
        self.frontend = Frontend([QUEUE])
        await self.frontend.start(anywhere, anywhere, anywhere)
        clients, workers, _ = self.frontend.ports
        # Without a wait of its own a backend would end when the queue is empty between two steps.
        polling = {"backoff": 0.005, "backoff_max": 0.02}
        self.target = Processes(Address("127.0.0.1", workers), QUEUE, self.workload, **polling)
        work = Work(Address("127.0.0.1", clients), QUEUE, limit=self.item_limit)
        self.client_stats = ClientStats()
        self.client = Load(work, self.client_stats, self.most)
        self.load = LocalLoad(self.client)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.stop()
        await self.target.stop()
        await self.frontend.stop()

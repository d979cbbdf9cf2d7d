"""Backends as local processes, started, counted and ended like the replicas of a Deployment."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from perfdag.hosts import device_use
from perfdag.hosts.device_use import DeviceUse
from perfdag.hosts.local import LocalHost
from perfdag.hosts.processes import signal_tree
from perfdag.steps.queue import wire


class Processes:
    """Replicas of one backend, a Target of the validator.

    `grace`: seconds to end the current item before a replica is killed.
    """

    def __init__(
        self,
        frontend: wire.Address,
        queue: str,
        command: Sequence[str],
        grace: float = 30.0,
        **options: Any,
    ) -> None:
        self.frontend, self.queue, self.command, self.grace, self.options = (
            frontend,
            queue,
            list(command),
            grace,
            options,
        )
        self.running: list[subprocess.Popen[bytes]] = []
        self.leaving: list[subprocess.Popen[bytes]] = []
        self.started = 0

    def start(self) -> subprocess.Popen[bytes]:
        """Start one more replica."""
        self.started += 1
        options = {
            "frontend": f"{self.frontend.host or 'localhost'}:{self.frontend.port}",
            "queue": self.queue,
            "pod": f"{self.queue}-{self.started}",
            "node": os.environ.get("PERFDAG_NODE")
            or socket.gethostname(),  # in a pod the host name is the pod's
            "workload": {"command": self.command},
            **self.options,
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "perfdag.steps.queue.backend.backend", json.dumps(options)],
            stdin=subprocess.DEVNULL,
        )
        self.running.append(process)
        return process

    async def scale(self, replicas: int) -> None:
        """Start or end replicas, and replace lost ones.

        The youngest end first, after their current item.
        """
        self.running = [process for process in self.running if process.poll() is None]
        while len(self.running) < replicas:
            self.start()
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
        return device_use.watched(LocalHost())

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

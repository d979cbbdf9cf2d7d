"""How far the clocks are apart, and how late the watch is.

The API server's clock is read from its HTTP Date header, which has whole seconds: the moment it ticks over is caught within a
few ms. The lag of the watch is measured with an object of our own that is changed at a steady pace: from sending the change to
receiving it.
"""

import asyncio
import math
import time
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from perfdag.kube import MERGE_PATCH, Kube, KubeError
from perfdag.steps.scale.observer import PATIENCE
from perfdag.steps.scale.templates import RUN_LABEL


@dataclass(frozen=True)
class Offset:
    """Server clock minus local clock in seconds, good to +- `bound` seconds (half of the request that straddled the tick)."""

    seconds: float
    bound: float


async def server_offset(kube: Kube) -> Offset:
    """Catch a tick of the server's Date header; takes 1 to 2 s and about 100 requests. Raises KubeError."""
    previous, before = None, 0.0
    deadline = time.monotonic() + 3.0
    while time.monotonic() < deadline:
        start = time.time()
        _, headers, _ = await kube.raw("GET", "/version")
        end = time.time()
        second = parsedate_to_datetime(headers["Date"]).timestamp()
        if previous is not None and second > previous:
            # the tick to `second` fell between the midpoint of the last request and the end of this one
            middle, half = (before + end) / 2, (end - before) / 2
            return Offset(second - middle, half)
        previous, before = second, start
        await asyncio.sleep(0.01)
    raise KubeError(0, "Clock", "the API server's Date header does not tick", "is a proxy answering for it?")


class Heartbeat:
    """A ConfigMap changed every `interval` seconds; `lags` are the seconds from sending a change to its arrival on the watch.

    The server's own time for the change is in them, so they are an upper bound; `after_answer` is the lower one: from the answer to the
    arrival, 0 where the watch was first.
    """

    def __init__(self, kube: Kube, run: str, namespace: str, interval: float = 0.5) -> None:
        self._kube, self._namespace, self._interval = kube, namespace, interval
        self._run, self._name = run, f"perfdag-heartbeat-{run}"
        self._sent: dict[str, int] = {}
        self._answered: dict[str, int] = {}
        self._arrived: dict[str, int] = {}
        self.lags: list[float] = []
        self.lost = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Heartbeat":
        metadata = {"name": self._name, "labels": {RUN_LABEL: self._run}}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
        await self._kube.apply(body, self._namespace)
        self._tasks = [asyncio.create_task(self._beat()), asyncio.create_task(self._listen())]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError, KubeError):
                await task
        self.lost = len(self._sent)
        with suppress(KubeError):
            await self._kube.delete(await self._kube.resource("v1", "ConfigMap"), self._name, self._namespace)

    async def _beat(self) -> None:
        maps = await self._kube.resource("v1", "ConfigMap")
        path = maps.path(self._namespace, self._name)
        await asyncio.sleep(min(1.0, self._interval))  # the watch must stand first
        number = 0
        while True:
            number += 1
            self._sent[str(number)] = time.monotonic_ns()
            with suppress(KubeError):
                await self._kube.request("PATCH", path, json={"data": {"beat": str(number)}}, content_type=MERGE_PATCH)
                self._answered[str(number)] = time.monotonic_ns()
            await asyncio.sleep(self._interval)

    async def _listen(self) -> None:
        maps = await self._kube.resource("v1", "ConfigMap")
        async for event in self._kube.watch(maps, self._namespace, fields=f"metadata.name={self._name}", patience=PATIENCE):
            beat = (event.object.get("data") or {}).get("beat", "")
            sent = self._sent.pop(beat, 0)
            if sent and not event.listed:
                self.lags.append((event.received_ns - sent) / 1e9)
                self._arrived[beat] = event.received_ns

    @property
    def after_answer(self) -> list[float]:
        """Seconds from the server's answer to a change to its arrival on the watch, 0 where it arrived first."""
        both = self._arrived.keys() & self._answered.keys()
        return [max(0.0, (self._arrived[beat] - self._answered[beat]) / 1e9) for beat in both]

    def summary(self) -> dict[str, float | int | None]:
        """Seconds: median, p99 (nearest rank; None below 100 beats) and maximum, the p99 after the answer, and how many beats there were."""
        ordered = sorted(self.lags)
        n = len(ordered)
        return {
            "beats": n,
            "median_s": ordered[n // 2] if n else None,
            "p99_s": _p99(ordered),
            "max_s": ordered[-1] if n else None,
            "after_answer_p99_s": _p99(sorted(self.after_answer)),
        }


def _p99(ordered: list[float]) -> float | None:
    return ordered[math.ceil(0.99 * len(ordered)) - 1] if len(ordered) >= 100 else None

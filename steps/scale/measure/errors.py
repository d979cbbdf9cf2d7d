"""How wrong the times of a run may be: clocks, lag of the watches, load of this process."""

import asyncio
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from perfdag import signals
from perfdag.kube.client import MERGE_PATCH, Kube, KubeError, Resource
from perfdag.kube.config import ignore_status
from perfdag.steps.scale.measure.observer import PATIENCE
from perfdag.steps.scale.model.templates import PROBE, RUN_LABEL


@dataclass(frozen=True)
class Offset:
    """Server clock minus local clock in seconds, accurate to +- `bound` seconds."""

    seconds: float
    bound: float


async def server_offset(kube: Kube) -> Offset:
    """Measure the offset at a tick of the server's Date header. Raises KubeError.

    Takes 1 to 2 s and about 100 requests.
    """
    previous, before = None, 0.0
    deadline = time.monotonic() + 3.0
    while time.monotonic() < deadline:
        start = time.time()
        _, headers, _ = await kube.raw("GET", "/version")
        end = time.time()
        second = parsedate_to_datetime(headers["Date"]).timestamp()
        if previous is not None and second > previous:
            # `second` began between the middle of the last request and the end of this one.
            middle, half = (before + end) / 2, (end - before) / 2
            return Offset(second - middle, half)
        previous, before = second, start
        await asyncio.sleep(0.01)
    raise KubeError(
        0, "Clock", "the API server's Date header does not tick", "is a proxy answering for it?"
    )


BEAT = "perfdag/beat"
"""Annotation with the number of the last change."""


class WatchLag:
    """Change a ConfigMap every `interval` seconds until `stop`. Use as an async context manager.

    `lags` are the seconds from the sending of each change to its receipt, so they include the
    server's write. A change that never came counts with its age at the end. Entering raises
    KubeError if the ConfigMap is refused.
    """

    def __init__(self, kube: Kube, run: str, namespace: str, interval: float = 0.5) -> None:
        self._kube, self._run, self._namespace, self._interval = kube, run, namespace, interval
        self._name = f"perfdag-{PROBE}-{run}"
        self.lags: list[float] = []
        self.error = ""
        self._sent: dict[int, int] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "WatchLag":
        # The label is that of a part of the run: the observer does not take it for a workload.
        metadata = {"name": self._name, "labels": {RUN_LABEL: f"{self._run}-{PROBE}"}}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
        await self._kube.apply(body, self._namespace)
        maps = await self._kube.resource("v1", "ConfigMap")
        self._tasks = [asyncio.create_task(work(maps)) for work in (self._listen, self._beat)]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        with ignore_status(0, 403, 404):
            maps = await self._kube.resource("v1", "ConfigMap")
            await self._kube.delete(maps, self._name, self._namespace)

    async def stop(self) -> None:
        """End the probe, because later work of this process is not the watch's fault."""
        self._take(max(self._sent, default=0), time.monotonic_ns())
        await signals.cancel(self._tasks)
        self._tasks = []

    def _take(self, number: int, now: int) -> None:
        """Note the age of a change and of those before it, which its arrival overtook."""
        for sent in [sent for sent in self._sent if sent <= number]:
            self.lags.append((now - self._sent.pop(sent)) / 1e9)

    async def _beat(self, maps: Resource) -> None:
        for number in itertools.count(1):
            await asyncio.sleep(self._interval)
            self._sent[number] = time.monotonic_ns()
            patch = {"metadata": {"annotations": {BEAT: str(number)}}}
            try:
                await self._kube.patch(
                    maps, self._name, patch, self._namespace, content_type=MERGE_PATCH
                )
            except KubeError as error:
                self.error = str(error)

    async def _listen(self, maps: Resource) -> None:
        only = f"metadata.name={self._name}"
        try:
            async for event in self._kube.watch(
                maps, self._namespace, fields=only, patience=PATIENCE
            ):
                beat = (event.object["metadata"].get("annotations") or {}).get(BEAT, 0)
                self._take(int(beat), event.received_ns)
        except KubeError as error:
            self.error = str(error)

    @property
    def p99(self) -> float | None:
        """The p99 of the lags in seconds, however few they are; None without any."""
        ordered = sorted(self.lags)
        return ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))] if ordered else None

    def summary(self) -> dict[str, Any]:
        """Return the p99 in seconds, how many changes were seen, and what failed."""
        return {"p99_s": self.p99, "changes": len(self.lags), "error": self.error}


BUSY = 0.7
"""Share of a core beyond which times may be our own."""
WINDOW = 5.0
"""Window of the CPU share in seconds. Short bursts of load count, not the mean of a long run."""


class SelfLoad:
    """CPU use of the thread that sends all requests and receives all events."""

    def __init__(self, interval: float = 1.0) -> None:
        self._interval = interval
        self.usage: list[tuple[float, float]] = []
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "SelfLoad":
        self._look()
        self._task = asyncio.create_task(self._keep_looking())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """End the measurement, before this process computes figures."""
        if self._task:
            self._look()
            await signals.cancel([self._task])
            self._task = None

    def _look(self) -> None:
        self.usage.append((time.monotonic(), time.thread_time()))

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            self._look()

    @property
    def share(self) -> float | None:
        """Share of a core in the busiest seconds until now."""
        if self._task:
            self._look()
        return busiest(self.usage)

    @property
    def note(self) -> str:
        """A warning if the process was too busy, else empty."""
        share = self.share or 0.0
        if share <= BUSY:
            return ""
        return (
            f"this process took {share:.0%} of a core for {WINDOW:g} s and may have delayed the "
            "times; use a faster machine, or a lower rate"
        )


def busiest(seen: Sequence[tuple[float, float]], window: float = WINDOW) -> float | None:
    """Return the largest CPU share over `window` seconds of (time, CPU time); None if too short."""
    largest, start = None, 0
    for at, used in seen:
        while start + 1 < len(seen) and at - seen[start + 1][0] >= window:
            start += 1
        if at - seen[start][0] >= window:
            share = (used - seen[start][1]) / (at - seen[start][0])
            largest = share if largest is None else max(largest, share)
    return largest

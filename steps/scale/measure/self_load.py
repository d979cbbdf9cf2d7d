"""The CPU use of this process while it measures: a harness short of CPU measures itself."""

import asyncio
import time
from collections.abc import Sequence

from perfdag.steps.scale.model import tasks

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
            await tasks.cancel([self._task])
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

"""The offset between clocks, and the lag of the watch.

The API server's clock is read from its HTTP Date header, whose tick is caught within a few ms. The
watch lag is measured with a ConfigMap that is changed on a fixed schedule. It is the time from when
a change is due to its receipt.
"""

import asyncio
import itertools
import math
import time
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from perfdag.kube.client import MERGE_PATCH, Kube, KubeError
from perfdag.steps.scale.measure.observer import PATIENCE
from perfdag.steps.scale.model import tasks
from perfdag.steps.scale.model.templates import RUN_LABEL

DRIFT = 0.1
"""Clock drift in seconds above which a run gets a note. API times have whole seconds."""

IN_FLIGHT = 20
"""Maximum of concurrent heartbeat requests, so that they do not crowd out measured requests."""


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


async def drift(kube: Kube, start: Offset) -> tuple[dict[str, float], str]:
    """Return the drift since `start` and its bound (s), with a note if it matters.

    Takes as long as server_offset. Does not raise.
    """
    try:
        end = await server_offset(kube)
    except KubeError as error:
        return {}, f"whether the API server's clock moved against ours is not known: {error}"
    moved, bound = end.seconds - start.seconds, end.bound + start.bound
    note = (
        f"the API server's clock moved by {moved:+.3f} s against ours during the run: its times "
        "are off by as much"
    )
    return {"server_clock_drift_s": moved, "server_clock_drift_bound_s": bound}, note if abs(
        moved
    ) - bound > DRIFT else ""


class Heartbeat:
    """Change a ConfigMap every `interval` seconds and measure when the watch reports it.

    `lags` count from when a change was due, so they are an upper bound. `after_answer` counts from
    the server's answer and is the lower bound. A change that only a list showed, or that was never
    answered, is `lost` and counts with its age. `stopped` is the reason why heartbeats ended early.
    """

    def __init__(self, kube: Kube, run: str, namespace: str, interval: float = 0.5) -> None:
        self._kube, self._namespace, self._interval = kube, namespace, interval
        self._run, self._name = run, f"perfdag-heartbeat-{run}"
        self._due: dict[str, int] = {}
        self.answered: dict[str, int] = {}
        self.arrived: dict[str, int] = {}
        self._lags: list[float] = []
        self._ends: list[int] = []
        self._lost = 0
        self._paused, self._resumed = False, 0
        self.stopped = ""
        self._listening, self._room = asyncio.Event(), asyncio.Semaphore(IN_FLIGHT)
        self.tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Heartbeat":
        metadata = {"name": self._name, "labels": {RUN_LABEL: self._run}}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
        await self._kube.apply(body, self._namespace)
        self.tasks = [asyncio.create_task(self._beat()), asyncio.create_task(self._listen())]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.pause()
        await tasks.cancel(self.tasks)
        with suppress(KubeError):
            await self._kube.delete(
                await self._kube.resource("v1", "ConfigMap"), self._name, self._namespace
            )

    def pause(self) -> None:
        """Skip heartbeats until `resume`.

        While this process computes figures, a late heartbeat is not the fault of the watch.
        """
        self._paused = True
        self._lose_late()

    def resume(self) -> None:
        """Go on after a pause; without one nothing is changed."""
        if self._paused:
            self._paused, self._resumed = False, time.monotonic_ns()

    async def _beat(self) -> None:
        maps = await self._kube.resource("v1", "ConfigMap")
        path = maps.path(self._namespace, self._name)
        await self._listening.wait()
        start = time.monotonic_ns()
        async with asyncio.TaskGroup() as beats:
            for number in itertools.count(1):
                due = start + round(number * self._interval * 1e9)
                await asyncio.sleep((due - time.monotonic_ns()) / 1e9)
                if self.stopped:
                    return
                if self._paused or due < self._resumed:
                    continue
                self._due[str(number)] = due
                beats.create_task(self._send(path, str(number)))

    async def _send(self, path: str, beat: str) -> None:
        async with self._room:
            while True:
                try:
                    await self._kube.request(
                        "PATCH", path, json={"data": {"beat": beat}}, content_type=MERGE_PATCH
                    )
                    self.answered[beat] = time.monotonic_ns()
                except KubeError as error:
                    if error.status == 409:
                        continue  # it conflicted with another beat
                    if error.status in (0, 429) or error.status >= 500:
                        self._lose(beat, time.monotonic_ns())
                    else:
                        self._stop(error)
                return

    async def _listen(self) -> None:
        try:
            maps = await self._kube.resource("v1", "ConfigMap")
            async for event in self._kube.watch(
                maps, self._namespace, fields=f"metadata.name={self._name}", patience=PATIENCE
            ):
                self._listening.set()
                beat = (event.object.get("data") or {}).get("beat", "")
                if event.listed or event.replayed:
                    for beat_due in [
                        beat_due for beat_due in self._due if beat_due in self.answered
                    ]:
                        self._lose(beat_due, event.received_ns)
                elif due := self._due.pop(beat, 0):
                    self._note(due, event.received_ns)
                    self.arrived[beat] = event.received_ns
        except KubeError as error:
            self._stop(error)

    def _lose(self, beat: str, now: int) -> None:
        if due := self._due.pop(beat, 0):
            self._note(due, now)
            self._lost += 1

    def _note(self, due: int, end: int) -> None:
        self._lags.append((end - due) / 1e9)
        self._ends.append(end)

    def _stop(self, error: KubeError) -> None:
        self.stopped = self.stopped or str(error)
        self._lose_late()
        self._listening.set()

    def _lose_late(self) -> None:
        for late in self._late():
            self._lose(late, time.monotonic_ns())
        self._due.clear()

    def _late(self) -> list[str]:
        """Return the beats under way for longer than the median lag."""
        now, usual = (
            time.monotonic_ns(),
            sorted(self._lags)[len(self._lags) // 2] if self._lags else 0.0,
        )
        return [beat for beat, due in self._due.items() if (now - due) / 1e9 > usual]

    @property
    def lags(self) -> list[float]:
        """Lag in seconds of every change, late and lost ones included (a lower bound for those)."""
        now = time.monotonic_ns()
        return [*self._lags, *((now - self._due[beat]) / 1e9 for beat in self._late())]

    @property
    def timeline(self) -> list[tuple[int, float]]:
        """Arrival or loss (time.monotonic_ns()) of each heartbeat with its lag (s), in order."""
        return sorted(zip(self._ends, self._lags, strict=True))

    @property
    def lost(self) -> int:
        """Changes whose arrival was not seen, those that are late now included."""
        return self._lost + len(self._late())

    @property
    def note(self) -> str:
        """A note if the lag or receive times are unknown for a part of the run, else empty."""
        texts = []
        if self.stopped:
            texts.append(
                f"the watch lag is that of the first {len(self._lags)} heartbeats: {self.stopped}"
            )
        if count := self._kube.counts["replayed changes"]:
            texts.append(
                f"watches were away: {count} changes have the API's time or none, no receive time"
            )
        return "; ".join(texts)

    @property
    def after_answer(self) -> list[float]:
        """Seconds from the server's answer to the watch event; 0 if the event came first."""
        both = self.arrived.keys() & self.answered.keys()
        return [max(0.0, (self.arrived[beat] - self.answered[beat]) / 1e9) for beat in both]

    @property
    def error_bar(self) -> float | None:
        """The p99 of the lags in seconds, however few they are; None without any."""
        ordered = sorted(self.lags)
        return ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))] if ordered else None

    def summary(self) -> dict[str, Any]:
        """Return the lags in seconds, with the number of beats and losses.

        p99 is None below 100 beats.
        """
        ordered = sorted(self.lags)
        n = len(ordered)
        return {
            "beats": n,
            "lost": self.lost,
            "median_s": ordered[n // 2] if n else None,
            "p99_s": _p99(ordered),
            "max_s": ordered[-1] if n else None,
            "after_answer_p99_s": _p99(sorted(self.after_answer)),
        }


def _p99(ordered: list[float]) -> float | None:
    return ordered[math.ceil(0.99 * len(ordered)) - 1] if len(ordered) >= 100 else None

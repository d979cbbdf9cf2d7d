"""The lag of the watch, measured with an object that is changed on a fixed schedule.

It is the time from when a change is due to its receipt. Each kind has its own watch cache in the
API server, so the object is of the kind that is measured: a Pod, or a VMI. No scheduler places it.
"""

import asyncio
import itertools
import math
import time
from collections import Counter
from contextlib import suppress
from typing import Any

import orjson

from perfdag.kube.client import MERGE_PATCH, Kube, KubeError, Object, Resource
from perfdag.steps.scale.measure.observer import PATIENCE
from perfdag.steps.scale.model import tasks
from perfdag.steps.scale.model.stages import VMI
from perfdag.steps.scale.model.templates import HEARTBEAT, RUN_LABEL

IN_FLIGHT = 20
"""Maximum of concurrent heartbeat requests, so that they do not crowd out measured requests."""
BEAT = "perfdag/beat"
"""Annotation with the number of the last change."""
_UNCOUNTED = {"connection", "429"}
"""Failures of a try that are not in the server's histogram of requests."""
_RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
_POD = {
    "schedulingGates": [{"name": "perfdag/heartbeat"}],
    "automountServiceAccountToken": False,
    "containers": [{"name": "main", "image": "none", "securityContext": _RESTRICTED}],
}
_VMI = {
    "schedulerName": "perfdag-heartbeat",  # there is none of this name: its pod stays Pending
    "terminationGracePeriodSeconds": 0,
    "domain": {"devices": {}, "resources": {"requests": {"memory": "1Mi"}}},
}
_BODIES: dict[str, Object] = {
    "Pod": {"apiVersion": "v1", "kind": "Pod", "spec": _POD},
    VMI: {"apiVersion": "kubevirt.io/v1", "kind": VMI, "spec": _VMI},
    "ConfigMap": {"apiVersion": "v1", "kind": "ConfigMap"},
}


class Heartbeat:
    """Change an object every `interval` seconds and measure when the watch reports it.

    `kind` is Pod, VirtualMachineInstance or ConfigMap. Entering raises KubeError if it is refused.

    `lags` count from when a change was due, so they are an upper bound. `after_answer` counts from
    the server's answer and is the lower bound. A change that only a list showed, or that was never
    answered, is `lost` and counts with its age. `stopped` is the reason why heartbeats ended early.
    `requests` is how many PATCHes of `plural` the server counted, those that timed out included.
    """

    def __init__(
        self,
        kube: Kube,
        run: str,
        namespace: str,
        interval: float,
        kind: str,
    ) -> None:
        self._kube, self._namespace, self._interval = kube, namespace, interval
        self._run, self._name = run, f"perfdag-heartbeat-{run}"
        self.kind = kind
        self.requests, self.plural = 0, ""
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
        # The label is that of a part of the run: the observer does not take it for a workload.
        metadata = {"name": self._name, "labels": {RUN_LABEL: f"{self._run}-{HEARTBEAT}"}}
        await self._kube.apply(_BODIES[self.kind] | {"metadata": metadata}, self._namespace)
        self.tasks = [asyncio.create_task(self._beat()), asyncio.create_task(self._listen())]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.pause()
        await tasks.cancel(self.tasks)
        with suppress(KubeError):
            await self._kube.delete(await self._resource(), self._name, self._namespace)

    async def _resource(self) -> Resource:
        return await self._kube.resource(_BODIES[self.kind]["apiVersion"], self.kind)

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
        resource = await self._resource()
        self.plural, path = resource.plural, resource.path(self._namespace, self._name)
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
                retries: Counter[str] = Counter()
                last_counted = True
                try:
                    patch = orjson.dumps({"metadata": {"annotations": {BEAT: beat}}})
                    await self._kube.raw(
                        "PATCH", path, body=patch, content_type=MERGE_PATCH, tally=retries
                    )
                    self.answered[beat] = time.monotonic_ns()
                except KubeError as error:
                    last_counted = error.reason == "Timeout" or error.status not in (0, 429)
                    if error.status == 409:
                        continue  # it conflicted with another beat
                    if error.status in (0, 429) or error.status >= 500:
                        self._lose(beat, time.monotonic_ns())
                    else:
                        self._stop(error)
                finally:
                    self.requests += last_counted
                    self.requests += sum(retries[cause] for cause in retries.keys() - _UNCOUNTED)
                return

    async def _listen(self) -> None:
        try:
            async for event in self._kube.watch(
                await self._resource(),
                self._namespace,
                fields=f"metadata.name={self._name}",
                patience=PATIENCE,
            ):
                self._listening.set()
                beat = (event.object["metadata"].get("annotations") or {}).get(BEAT, "")
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
        """Arrival or loss (time.monotonic_ns()) of each heartbeat with its lag (s), in order.

        Those that are late now end now.
        """
        now, lags = time.monotonic_ns(), self.lags
        ends = [*self._ends, *[now] * (len(lags) - len(self._ends))]
        return sorted(zip(ends, lags, strict=True))

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
                f"the watch lag of {self.kind}s is that of the first {len(self._lags)} heartbeats: "
                f"{self.stopped}"
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
    def p99(self) -> float | None:
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
            "kind": self.kind,
            "beats": n,
            "lost": self.lost,
            "median_s": ordered[n // 2] if n else None,
            "p99_s": _p99(ordered),
            "max_s": ordered[-1] if n else None,
            "after_answer_p99_s": _p99(sorted(self.after_answer)),
        }


def _p99(ordered: list[float]) -> float | None:
    return ordered[math.ceil(0.99 * len(ordered)) - 1] if len(ordered) >= 100 else None

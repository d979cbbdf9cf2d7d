"""How late the watches of this process are: a ConfigMap is changed, and its watch reports it.

The receive times of a run cannot be better than this lag. The probe shares the process, the
connection pool and the API server with the run, so it waits where the run's own watches wait.
"""

import asyncio
import itertools
import time
from typing import Any

from perfdag.kube.client import MERGE_PATCH, Kube, KubeError, Resource
from perfdag.kube.errors import ignore_status
from perfdag.steps.scale.measure.observer import PATIENCE
from perfdag.steps.scale.model import tasks
from perfdag.steps.scale.model.templates import PROBE, RUN_LABEL

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
        self._take(len(self.lags) + len(self._sent), time.monotonic_ns())
        await tasks.cancel(self._tasks)
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

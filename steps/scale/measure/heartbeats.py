"""The heartbeats of a run: one for each watch cache whose receive times have error bars.

A run of VMIs measures VMIs and their pods, so it has two. The right to write a Pod is not needed
for VMIs: without it their pods have the lag of the VMIs.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from perfdag.kube.client import Kube, KubeError
from perfdag.steps.scale.measure.heartbeat import Heartbeat
from perfdag.steps.scale.model.stages import VMI

Lags = dict[str, list[tuple[int, float]]]
"""By kind: the arrival of each heartbeat (time.monotonic_ns()) with its lag in seconds."""


def heartbeat_kinds(measured: str) -> list[str]:
    """Return the kinds of the heartbeats for a measured kind, that of the workload first."""
    return [VMI, "Pod"] if measured.startswith("VirtualMachine") else ["Pod"]


@dataclass
class Heartbeats:
    """Heartbeats at work, that of the workload's kind first.

    `refusal` says why that kind has none.
    """

    beats: list[Heartbeat]
    refusal: str = ""

    def pause(self) -> None:
        """Skip heartbeats until `resume`."""
        for beat in self.beats:
            beat.pause()

    def resume(self) -> None:
        """Go on after a pause; without one nothing is changed."""
        for beat in self.beats:
            beat.resume()

    @property
    def lags(self) -> Lags:
        """The lags by kind. Any other kind has those of the first."""
        return {beat.kind: beat.timeline for beat in self.beats}

    @property
    def requests(self) -> dict[str, int]:
        """How many PATCHes of each resource the server counted."""
        return {beat.plural: beat.requests for beat in self.beats}

    @property
    def p99(self) -> float | None:
        """The largest p99 of the kinds in seconds; None without any heartbeat."""
        return max((beat.p99 for beat in self.beats if beat.p99 is not None), default=None)

    @property
    def note(self) -> str:
        """A note if a lag or receive times are unknown for a part of the run, else empty."""
        notes = [self.refusal, *(beat.note for beat in self.beats)]
        return "; ".join(dict.fromkeys(note for note in notes if note))

    def summary(self) -> list[dict[str, Any]]:
        """Return the lags of each kind in seconds, with the number of beats and losses."""
        return [beat.summary() for beat in self.beats]


@asynccontextmanager
async def heartbeats(
    kube: Kube, run: str, namespace: str, measured: str, interval: float = 0.5
) -> AsyncIterator[Heartbeats]:
    """Start the heartbeats of a measured kind, one every `interval` seconds.

    If all are refused, there is one of a ConfigMap. Raises KubeError if that is refused too.
    """
    async with AsyncExitStack() as stack:
        beats: list[Heartbeat] = []
        refusals: dict[str, KubeError] = {}
        kinds = heartbeat_kinds(measured)
        for kind in kinds:
            heartbeat = Heartbeat(kube, run, namespace, interval, kind)
            try:
                beats.append(await stack.enter_async_context(heartbeat))
            except KubeError as error:
                refusals[kind] = error
        if not beats:
            heartbeat = Heartbeat(kube, run, namespace, interval, "ConfigMap")
            beats.append(await stack.enter_async_context(heartbeat))
        refusal = ""
        if kinds[0] in refusals:
            why = refusals[kinds[0]]
            refusal = f"the watch lag is that of {beats[0].kind}s, not of {kinds[0]}s: {why}"
        yield Heartbeats(beats, refusal)

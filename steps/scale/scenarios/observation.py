"""An observation without a submission of its own: watches, clocks, rows and facts."""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from perfdag.kube.client import Kube, KubeError
from perfdag.steps.scale.cluster.kwok_nodes import simulated_nodes
from perfdag.steps.scale.cluster.removal import SAMPLE
from perfdag.steps.scale.figures.moments import Clocks
from perfdag.steps.scale.figures.percentiles import summaries
from perfdag.steps.scale.figures.rows import Row, on_simulated, rows_of
from perfdag.steps.scale.measure.clock import Offset, server_offset
from perfdag.steps.scale.measure.generator import Submission
from perfdag.steps.scale.measure.observer import Observer
from perfdag.steps.scale.measure.self_load import SelfLoad
from perfdag.steps.scale.measure.watch_lag import WatchLag


@dataclass
class Observation:
    """An observer at work. `watch_lag` is None where it is not measured."""

    kube: Kube
    observer: Observer
    offset: Offset
    watch_lag: WatchLag | None
    self_load: SelfLoad
    simulated: set[str] | None = field(default_factory=set)
    until_ns: int = 0
    notes: list[str] = field(default_factory=list)

    async def end(self) -> dict[str, Any]:
        """End the observation and return the facts of its clocks."""
        self.until_ns = time.monotonic_ns()
        busy = self.self_load.share
        self.simulated, why = await simulated_nodes(self.kube)
        notes = (self.self_load.note, why)
        self.notes += [note for note in notes if note]
        return {
            "server_clock_ahead_s": self.offset.seconds,
            "server_clock_bound_s": self.offset.bound,
            "watch_lag": self.watch_lag.summary() if self.watch_lag else None,
            "harness_cpu": busy,
        }

    def rows(
        self, submissions: Sequence[Submission], api_version: str, kind: str, pods: int | None
    ) -> list[Row]:
        """Return the rows until the end; `pods` are expected of a workload (None: unknown)."""
        shift = time.time_ns() - time.monotonic_ns()
        return list(
            rows_of(
                submissions,
                self.observer.records,
                Clocks(shift, self.offset.seconds),
                run=self.observer.run,
                kind=kind,
                api_version=api_version,
                until_ns=self.until_ns,
                expected_pods=pods,
                simulated=self.simulated,
                messages=self.observer.messages,
            )
        )

    def summary(self, rows: Sequence[Row]) -> dict[str, Any]:
        """Return the part of summary.json that describes rows."""
        return {
            "run": self.observer.run,
            "simulated": on_simulated(rows),
            "notes": self.notes,
            "stages": [asdict(summary) for summary in summaries(rows)],
            "failure_reasons": dict(self.observer.reasons.most_common(20)),
        }


@asynccontextmanager
async def observation(
    kube: Kube, observer: Observer, probe_in: str | None
) -> AsyncIterator[Observation]:
    """Start the observer, and the probe of the watch lag in a namespace (None: no probe).

    Raises KubeError.
    """
    offset = await server_offset(kube)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(observer)
        lag: WatchLag | None = None
        if probe_in:
            with suppress(KubeError):  # without a right on ConfigMaps the lag is unknown
                probe = WatchLag(kube, f"{observer.run}-{SAMPLE}", probe_in)
                lag = await stack.enter_async_context(probe)
        self_load = await stack.enter_async_context(SelfLoad())
        yield Observation(kube, observer, offset, lag, self_load)

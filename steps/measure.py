"""The measuring loop: the samples of a plan in turn, over the hosts of a site.

Each sample is in the store before the next begins, a failed one too. Samples in the store are skipped:
a killed run that is resumed loses and repeats nothing. One machine and a gang of pods share this loop.
"""

import contextlib
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from perfdag.benchmark import registry
from perfdag.benchmark.contract import Benchmark, Gang, Output
from perfdag.hosts import canary, disturbance
from perfdag.hosts.base import Host
from perfdag.hosts.facts import env_class
from perfdag.outcome import Failed, Infrastructure, SampleError, Skip
from perfdag.plan.order import concurrent_groups
from perfdag.plan.plan import Plan
from perfdag.results.samples import (
    SampleRecord,
    as_row,
    headline,
    now,
    read_sample,
    sample_key,
    stored_samples,
)
from perfdag.shape import Shape
from perfdag.stats.robust import relative_precision
from perfdag.steps.concurrent import at_once, not_together, two_of
from perfdag.store.base import Store, StoreError
from perfdag.suite.point import Point

PRECISE = "precise enough"
"""Why a sample is skipped whose point `until` does not repeat again."""


class ProgressListener(Protocol):
    """Receives the progress of a loop."""

    def started(self, point: Point, repetition: int) -> None: ...
    def ended(self, point: Point, part: SampleRecord) -> None: ...
    def passed(self, point: Point, repetition: int, why: str) -> None:
        """Receive a sample that is not measured: stored before, or its point is precise enough."""
        ...


@dataclass
class Site:
    """Where samples are measured: the hosts for a shape, and provenance (image digest, Workflow)."""

    hosts_for: Callable[[Shape], Sequence[Host]]
    refuses: Callable[[Shape], str | None] = lambda shape: None
    volume: str | None = None
    where: dict[str, Any] = field(default_factory=dict)
    placed: Callable[[Shape, Sequence[Host]], str | None] = lambda shape, hosts: None
    """Returns why the hosts break the placement of the shape, or None."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Facts of every sample measured here."""
    advice: Callable[[Shape, str], str | None] = lambda shape, error: None
    """Returns what to do about the error of a sample, or None."""
    lost: Callable[[], str | None] = lambda: None
    """Called after a failed sample; returns why that is no result (a peer is gone), or None."""


class NoScratch(StoreError):
    """No temporary folder can be created: the run ends, and can be resumed."""


class GangLost(Exception):
    """A host is gone: the sample under way is not stored, and another gang may measure it."""


class MeasuringLoop:
    """Measures samples of one plan.

    Raises StoreError where a sample cannot be stored or no temporary folder can be created.
    KeyboardInterrupt passes through.
    """

    def __init__(
        self,
        plan: Plan,
        store: Store,
        place: Site,
        watcher: ProgressListener,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.plan, self.store, self.place, self.watcher, self._clock = (
            plan,
            store,
            place,
            watcher,
            clock,
        )
        self._stored = stored_samples(store, plan.run_id)
        self._shapes = [Shape.model_validate(shape) for shape in plan.shapes]
        self._headlines: dict[int, list[float]] = {}
        self._facts: dict[str, dict[str, Any]] = {}
        self._canaries = 0
        self._halted = threading.Event()
        self.counts: dict[str, int] = {}

    def measure(
        self, positions: Sequence[int], batch: int = 0, deadline: float | None = None
    ) -> bool:
        """Measure samples, by position in the plan's order; return False where `deadline` ended it.

        `deadline` is on the loop's clock. A canary frames every round. Concurrent pairs run together
        again where one is not stored, so that all have their load; only missing ones are stored.
        """
        round_now: int | None = None
        in_time = True
        for group in concurrent_groups(self.plan.points, self.plan.order, positions):
            left = [position for position in group if not self._passed(position)]
            if not left:
                continue
            if deadline is not None and self._clock() >= deadline:
                in_time = False
                break
            repetition = self.plan.order[group[0]][1]
            if round_now != repetition:
                self._canary(batch)
                round_now = repetition
            for position in left:
                self.watcher.started(self.plan.points[self.plan.order[position][0]], repetition)
            for position, part in zip(group, self._group(group, batch), strict=True):
                if position in left:
                    self._keep(position, part)
        if round_now is not None:
            self._canary(batch)
        return in_time

    def _passed(self, position: int) -> bool:
        """Return whether a sample need not be measured, and tell the listener."""
        index, repetition = self.plan.order[position]
        point, name = self.plan.points[index], self.plan.key(position)
        why = None
        if name in self._stored and self._recall(index, name):
            why = "stored before"
        elif self._precise(point, index, repetition):
            why = PRECISE
        if why:
            self.watcher.passed(point, repetition, why)
        return why is not None

    def _keep(self, position: int, part: SampleRecord) -> None:
        index, repetition = self.plan.order[position]
        name = self.plan.key(position)
        self.store.put(sample_key(self.plan.run_id, name), part.dump())
        self._stored.add(name)
        self._remember(index, repetition, part)
        self.counts[part.status] = self.counts.get(part.status, 0) + 1
        self.watcher.ended(self.plan.points[index], part)

    def _group(self, group: Sequence[int], batch: int) -> list[SampleRecord]:
        """Return the samples of a group, measured at once; one that ran alone is invalid."""
        if len(group) == 1:
            return [self._sample(group[0], batch)]
        samples = [partial(self._sample, position, batch) for position in group]
        parts = at_once(samples, self._halted.set)
        for part in parts:
            part.facts["pairs_at_once"] = len(group)
        for part, wrong in zip(parts, not_together(parts), strict=True):
            if wrong and part.status == "ok":
                part.status, part.error = "invalid", wrong
        return parts

    # -- precision ------------------------------------------------------------------------------

    def _recall(self, index: int, name: str) -> bool:
        """Read the value of a stored sample for `until`; return False where it is damaged."""
        if self.plan.points[index].until is not None and "-w" not in name:
            try:
                part = read_sample(self.store.get(sample_key(self.plan.run_id, name)))
            except ValueError:
                return False
            self._remember(index, part.repetition, part)
        return True

    def _remember(self, index: int, repetition: int, part: SampleRecord) -> None:
        value = headline(part.rows)
        if repetition > 0 and part.status == "ok" and value is not None:
            self._headlines.setdefault(index, []).append(value)

    def _precise(self, point: Point, index: int, repetition: int) -> bool:
        if point.until is None or repetition <= point.repetitions:
            return False
        reached = relative_precision(self._headlines.get(index, []))
        return reached is not None and reached <= point.until.relative_spread

    # -- one sample -----------------------------------------------------------------------------

    def _sample(self, position: int, batch: int) -> SampleRecord:
        index, repetition = self.plan.order[position]
        point, attempt = self.plan.points[index], 1
        while True:
            part = self._attempt(point, repetition)
            if part.status in ("failed", "infrastructure") and (why := self.place.lost()):
                raise GangLost(f"{why} ({part.error})")
            if part.status != "infrastructure":
                break
            if attempt > point.retries or self._halted.is_set():
                part.status = "failed"
                break
            time.sleep(min(2.0 * attempt, 10.0))
            attempt += 1
        part.batch, part.order_index, part.attempt = batch, position, attempt
        return part

    def _attempt(self, point: Point, repetition: int) -> SampleRecord:
        shape = self._shapes[point.shape]
        part = SampleRecord(
            point.id,
            repetition,
            "ok",
            started_at=now(),
            where=dict(self.place.where),
            facts=dict(self.place.facts),
        )
        benchmark: Benchmark[Any] = registry.get(point.benchmark)
        part.benchmark_version = str(benchmark.version)
        guard = disturbance.Guard()
        try:
            hosts = self.place.hosts_for(shape)
            starter = hosts[0] if hosts else None
            if point.pair is not None:
                hosts, shape = two_of(hosts, point.pair), shape.pair()
            self._provenance(part, hosts)
            if refused := self.place.refuses(shape):
                raise Skip(refused)
            guard.include(hosts)
            self._measure(part, benchmark, point, shape, hosts, starter)
            wrong = self.place.placed(shape, hosts) or guard.throttled()
            if wrong:
                part.status, part.error = "invalid", wrong
        except Infrastructure as error:
            part.status, part.error, part.texts = (
                "infrastructure",
                str(error),
                {**part.texts, **error.texts},
            )
        except SampleError as error:
            part.status, part.error, part.texts = (
                error.status,
                str(error),
                {**part.texts, **error.texts},
            )
            _keep_values(part, benchmark, error)
        except NoScratch:
            raise
        except Exception as error:
            # a benchmark of another package may raise anything; its fault is a row, never the end of the run
            part.status, part.error, part.rows = "failed", f"{type(error).__name__}: {error}", []
        part.noise = guard.disturbed(part.env.get("cpu_threads") or 1)
        if part.error:
            part.error = "; ".join(
                each
                for each in (part.error, guard.starved(), self.place.advice(shape, part.error))
                if each
            )
        if part.error:
            part.error = " ".join(part.error.split())
        part.finished_at = now()
        return part

    def _measure(
        self,
        part: SampleRecord,
        benchmark: Benchmark[Any],
        point: Point,
        shape: Shape,
        hosts: Sequence[Host],
        starter: Host | None,
    ) -> None:
        params = benchmark.Params.model_validate(point.params)
        with _scratch() as scratch:
            gang = Gang(hosts, shape, point.timeout, scratch, self.place.volume, starter=starter)
            absent = benchmark.missing(gang, params)
            if absent:
                raise Skip(
                    "; ".join(
                        f"{tool.program} is not installed ({tool.advice or how_to_get(tool.packages)})"
                        for tool in absent
                    )
                )
            benchmark.prepare(gang, params)
            part.facts |= benchmark.provenance(gang, params)
            part.started_at = now()
            try:
                output: Output = benchmark.run(gang, params)
            finally:
                for host in (each for each in hosts if each is not starter):
                    with contextlib.suppress(SampleError, OSError):
                        host.remove(scratch)
        part.texts, part.commands, part.tool = output.texts, output.argv, output.tool
        part.facts |= output.facts
        series = benchmark.series(output)
        part.benchmark_version = f"{benchmark.version} {series}".strip()
        measured = benchmark.parse(output, params)
        if not measured:
            raise Failed(f"{benchmark.name} yielded no value", output.texts)
        part.rows = [as_row(benchmark, each) for each in measured]

    def _provenance(self, part: SampleRecord, hosts: Sequence[Host]) -> None:
        for host in hosts:
            if host.name not in self._facts:
                self._facts[host.name] = host.facts()
        part.nodes = [host.name for host in hosts]
        if hosts:
            part.env = self._facts[hosts[0].name]
            others = {name: self._facts[name] for name in part.nodes if name != hosts[0].name}
            if others:
                part.env = {**part.env, "peers": others}
            part.env_class = env_class(*(self._facts[name] for name in part.nodes))

    def _canary(self, batch: int) -> None:
        before = disturbance.moment()
        part = SampleRecord(
            "canary",
            0,
            "ok",
            started_at=now(),
            batch=batch,
            benchmark_version="1",
            where=dict(self.place.where),
        )
        values = canary.canary()
        part.rows = canary.canary_rows(values, 0.0)
        refused = [name for name, value in values.items() if value is None]
        part.noise = (
            f"no canary of {', '.join(refused)}: the system refused it" if refused else None
        )
        part.rows[-1]["value"] = disturbance.steal(before, disturbance.moment())
        local = self.place.hosts_for(Shape())[:1]
        self._provenance(part, local)
        part.finished_at = now()
        while (name := f"canary-b{batch}n{self._canaries}") in self._stored:
            self._canaries += 1
        part.repetition = self._canaries
        self.store.put(sample_key(self.plan.run_id, name), part.dump())
        self._stored.add(name)
        self._canaries += 1


def _keep_values(part: SampleRecord, benchmark: Benchmark[Any], error: SampleError) -> None:
    """Keep the measurements of a failed sample; append a bad value's fault to the error."""
    try:
        part.rows = [as_row(benchmark, each) for each in error.measurements]
    except Exception as fault:
        part.error, part.rows = f"{part.error}; {type(fault).__name__}: {fault}", []


def _scratch() -> "tempfile.TemporaryDirectory[str]":
    try:
        return tempfile.TemporaryDirectory(prefix="perfdag-", ignore_cleanup_errors=True)
    except OSError as error:
        raise NoScratch(
            f"no temporary folder can be made: {error}; free some space, or name another folder with TMPDIR"
        ) from error


def how_to_get(packages: Any) -> str:
    """Return the command that installs a tool with a manager of this machine, else all packages."""
    import shutil
    import sys
    from importlib.util import find_spec  # an environment that uv made has no pip

    commands = {
        "apt": ("apt-get", "apt-get install"),
        "dnf": ("dnf", "dnf install"),
        "zypper": ("zypper", "zypper install"),
        "pacman": ("pacman", "pacman -S"),
        "brew": ("brew", "brew install"),
        "pip": (
            "",
            f"{sys.executable} -m pip install"
            if find_spec("pip")
            else f"uv pip install --python {sys.executable}",
        ),
    }
    for manager, (program, command) in commands.items():
        if manager in packages and (not program or shutil.which(program)):
            return f"{command} {packages[manager]}"
    return (
        ", ".join(f"{commands.get(m, ('', m))[1]} {p}" for m, p in packages.items())
        or "not packaged"
    )

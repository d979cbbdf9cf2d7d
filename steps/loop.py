"""The measuring loop: the samples of a plan in turn, over a pool of hosts.

The loop stores each sample before the next begins, a failed one too. It skips samples in the store:
a killed run that is resumed loses and repeats nothing. One machine and a gang of pods share this
loop.
"""

import contextlib
import os
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, Protocol

from perfdag.benchmark import registry
from perfdag.benchmark.contract import (
    Benchmark,
    Failed,
    Gang,
    Invalid,
    Measurement,
    Metric,
    SampleError,
    Skip,
)
from perfdag.benchmark.declarations import find_remarks, state_of_stderr
from perfdag.hosts import disturbance
from perfdag.hosts.base import Host, plain
from perfdag.hosts.facts import env_class
from perfdag.hosts.local import LocalHost, descendants
from perfdag.plan import Plan, concurrent_groups
from perfdag.results.samples import (
    MissingReason,
    SampleRecord,
    as_row,
    as_rows,
    headline,
    now,
    read_sample,
    sample_key,
    stored_samples,
    write_reason,
)
from perfdag.shape import ACROSS, NATIVE, Shape
from perfdag.stats.robust import relative_precision
from perfdag.store.base import Store, StoreError
from perfdag.suite.pairs import Pair
from perfdag.suite.points import Point
from perfdag.units import parse_quantity, plural

HOSTS_AT_ONCE = 8
"""Hosts whose facts are read at the same time."""
PRECISE = "precise enough"
"""Reason for a skipped sample: its point has reached the precision of `until`."""
OVERLAP = 0.5
"""Least share of the longest sample in which all pairs of its group are measured."""


class ProgressListener(Protocol):
    """Receives the progress of a loop."""

    def started(self, point: Point, repetition: int) -> None:
        """Receive a sample that begins."""

    def finished(self, point: Point, record: SampleRecord) -> None:
        """Receive a sample that is stored."""

    def skipped(self, point: Point, repetition: int, why: str) -> None:
        """Receive a sample that is not measured: stored before, or its point is precise enough."""


class GangLost(Exception):
    """A host is gone: the sample under way is not stored, and another gang may measure it."""


@dataclass
class LocalPool:
    """This machine, once for each host of a shape, at its loopback address.

    Another pool of hosts overrides what differs. `where` is the provenance of every sample (image
    digest, Workflow), `facts` are facts of every sample. `volume` is where the volume of the shape
    is mounted, `earlier_attempts` counts attempts at the batch before this one. `zones` has the
    zones by node name, if hosts are numbered by zone. `beside` tells what else measures here now.
    """

    where: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    volume: str | None = None
    earlier_attempts: int = 0
    zones: Mapping[str, str] = field(default_factory=dict)
    beside: Callable[[], str] = str

    def hosts_for(self, shape: Shape) -> Sequence[Host]:
        """Return the hosts for a shape."""
        address = "::1" if shape.network.family == "ipv6" else "127.0.0.1"
        return [LocalHost(address) for _ in range(shape.hosts.count)]

    def check(self, point: Point, shape: Shape) -> None:
        """Raise Skip if the hosts cannot provide a shape, or Failed if a point may not run."""
        if reason := needs_cluster(shape) or lacking_gpus(shape, LocalHost()):
            raise Skip(reason)

    def mismatch(self, hosts: Sequence[Host]) -> str | None:
        """Return why these hosts cannot be measured together, or None."""
        return None

    def lost(self) -> str | None:
        """Return why the failure of a sample does not count, or None."""
        return None


def needs_cluster(shape: Shape) -> str | None:
    """Return why one machine cannot provide a shape, as the reason of a skipped sample, or None."""
    network = shape.network
    hosts = shape.hosts
    # Devices that a plugin of the cluster hands out. A machine has its GPUs without one.
    devices = sorted(set(shape.resources.both) - set(NATIVE) - set(shape.gpus()))
    needs = {
        "network.host: false (a pod network)": network.host is False,
        f"network.path: {network.path}": network.forwarded,
        "network.name (Multus)": network.name is not None,
        "network.mtu": network.mtu is not None,
        # Traffic of a machine to itself passes none of its interfaces, whatever the address.
        "network.interface": network.interface not in (None, "lo") and hosts.count > 1,
        "hosts.placement: spread": hosts.placement == "spread" and hosts.count > 1,
        "hosts.exclusive": hosts.exclusive,
        "hosts.roles": hosts.roles is not None,
        "hosts.pairs: across-zones": hosts.pairs == ACROSS,
        f"resources: {', '.join(devices)}": bool(devices),
        "hugepages": bool(shape.hugepages),
        "a volume": shape.volume is not None,
        "node_selector or zones": bool(shape.node_selector or shape.zones),
        # `rdma` is a permission of a pod. On a machine the benchmark itself reports what is absent.
        "privileges": bool(set(shape.privileges) - {"rdma", "block"}),
        "scheduler: volcano": shape.scheduler != "default",
        "runtime_class": shape.runtime_class is not None,
    }
    reasons = [need for need, is_needed in needs.items() if is_needed]
    return f"{', '.join(reasons)}: needs a cluster (perfdag submit)" if reasons else None


def lacking_gpus(shape: Shape, host: Host) -> str | None:
    """Return of which GPU resource one machine has too few devices for a shape, or None.

    It sets no limits of CPU and memory, so whatever a shape says of them can be measured.
    """
    names = shape.gpus()
    if not names:
        return None
    from perfdag.hosts import gpu_use

    for name in names:
        requested = int(parse_quantity(shape.resources.both[name])) * shape.hosts.count
        visible = gpu_use.count(host, name)
        if visible < requested:
            return (
                f"resources: {name}: {plural(requested, 'device')} wanted, {visible} visible on"
                f" {host.name}; ask for fewer, or use a cluster that has them (perfdag submit)"
            )
    return None


def by_number(hosts: Sequence[Host], zones: Mapping[str, str]) -> list[Host]:
    """Return hosts in the order of their numbers in pairs.

    That is the order of the zones of their nodes, where `zones` has them, then of the names.
    """
    return sorted(hosts, key=lambda host: (zones.get(host.name, ""), host.name))


@dataclass
class Sampler:
    """Measures samples of points, once each, on a pool of hosts.

    `host_facts` has the facts of the nodes so far, `counters` what a Guard read of peers last.
    """

    pool: LocalPool
    host_facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    counters: dict[Host, disturbance.Moment] = field(default_factory=dict)

    def measure(self, point: Point, shape: Shape, repetition: int) -> SampleRecord:
        """Return the record of one attempt at a sample.

        Its status is `infrastructure` if another attempt may succeed. Whatever a benchmark raises
        becomes a row. Raises StoreError if no temporary folder can be created.
        """
        try:
            folder = tempfile.TemporaryDirectory(prefix="perfdag-", ignore_cleanup_errors=True)
        except OSError as error:  # the run ends, and can be resumed
            raise StoreError(
                f"cannot create a temporary folder: {error}; "
                "free some space, or name another folder with TMPDIR"
            ) from error
        with folder as scratch:
            return self._measure(point, shape, repetition, scratch)

    def _measure(self, point: Point, shape: Shape, repetition: int, scratch: str) -> SampleRecord:
        record = SampleRecord(
            point.id,
            repetition,
            "ok",
            started_at=now(),
            where=dict(self.pool.where),
            facts=dict(self.pool.facts),
        )
        benchmark: Benchmark[Any] = registry.get(point.benchmark)
        record.benchmark_version = str(benchmark.version)
        # Before facts are read and hosts asked, whose load would be taken for that of others.
        guard = disturbance.Guard(self.counters)
        beside = self.pool.beside()
        try:
            hosts = self.pool.hosts_for(shape)
            starter = hosts[0]
            of_gang = shape
            if point.pair is not None:
                numbered = by_number(hosts, self.pool.zones)
                hosts = [numbered[point.pair.first], numbered[point.pair.second]]
                shape = shape.pair()
            self.add_provenance(record, hosts)
            self.pool.check(point, of_gang)
            guard.include(hosts)
            gang = Gang(hosts, shape, point.timeout, scratch, self.pool.volume, starter=starter)
            self._run(record, benchmark, point, gang, guard.unseen())
            if fault := self.pool.mismatch(hosts):
                record.status, record.error = "invalid", fault
        except SampleError as error:
            record.status, record.error = error.status, str(error)
            record.texts = record.texts or error.texts
            if error.status != "infrastructure":  # what a failed sample measured is kept
                try:
                    record.rows = as_rows(benchmark, error.measurements, point.params)
                except Exception as fault:
                    record.error = f"{record.error}; {type(fault).__name__}: {fault}"
        except Exception as error:  # a benchmark of another package may raise anything
            record.status, record.rows = "failed", []
            record.error = f"{type(error).__name__}: {error}"
            record.texts["traceback"] = traceback.format_exc()
        seen = guard.end(record.env.get("cpu_threads") or 1)
        beside = self.pool.beside() or beside
        record.noise = ", ".join(filter(None, (seen.noise, beside))) or None
        if record.status == "ok" and seen.throttled:
            record.status, record.error = "invalid", seen.throttled
        if record.error:
            parts = filter(None, (record.error, seen.starved))
            record.error = " ".join(plain("; ".join(parts)).split())
        record.finished_at = now()
        return record

    def _run(
        self,
        record: SampleRecord,
        benchmark: Benchmark[Any],
        point: Point,
        gang: Gang,
        unseen: Sequence[str],
    ) -> None:
        params = benchmark.Params.model_validate(point.params)
        benchmark.require(gang, params)
        record.started_at = now()
        began = time.monotonic()
        try:
            measurements = benchmark.run(gang, params)
        finally:
            wall = time.monotonic() - began
            for host in gang.hosts if gang.used_scratch else ():
                if host is not gang.starter:  # which removes its folder itself
                    with contextlib.suppress(SampleError, OSError):
                        host.remove(gang.scratch)
            output = gang.output
            record.texts, record.commands, record.tool = output.texts, output.argv, output.tool
            record.facts |= output.facts
            if not output.comparable:
                record.benchmark_version = f"{benchmark.version} {output.tool}".strip()
        if not measurements:
            raise Failed(f"{benchmark.name} yielded no value")
        record.rows = as_rows(benchmark, measurements, point.params, wall)
        record.facts["stderr"] = state_of_stderr(record.texts)
        notes = [*output.notes]
        notes += [f"not seen: {figure}, no file of its cgroup" for figure in unseen]
        for effect, line in find_remarks(benchmark.remarks, record.texts):
            if effect == "note":
                notes.append(line)
            else:
                error = Failed if effect == "failed" else Invalid
                raise error(f"{record.tool} says: {line}", measurements=measurements)
        if notes:
            record.facts["notes"] = sorted(set(notes))

    def add_provenance(self, record: SampleRecord, hosts: Sequence[Host]) -> None:
        """Add the nodes and facts of hosts to a record."""
        new = {host.name: host for host in hosts if host.name not in self.host_facts}
        if new:
            with ThreadPoolExecutor(HOSTS_AT_ONCE) as pool:  # each starts a Python on its node
                facts = pool.map(lambda host: host.facts(), new.values())
                self.host_facts |= zip(new, facts, strict=True)
        record.nodes = [host.name for host in hosts]
        first = record.nodes[0]
        record.env = self.host_facts[first]
        record.env_class = env_class(*(self.host_facts[name] for name in record.nodes))
        if peers := {name: self.host_facts[name] for name in record.nodes if name != first}:
            record.env = {**record.env, "peers": peers}

    def canary(self, batch: int) -> SampleRecord:
        """Return the record of a canary: a short fixed load that shows changes of the machine."""
        before = disturbance.moment()
        record = SampleRecord(
            "canary",
            0,
            "ok",
            started_at=now(),
            batch=batch,
            benchmark_version="1",
            where=dict(self.pool.where),
        )
        values = disturbance.canary()
        values["steal"] = disturbance.moment().steal_since(before)
        record.rows = [
            as_row(Metric(name, unit, better, "the machine's own speed"), Measurement(name, value))
            for name, (unit, better) in disturbance.CANARY_METRICS.items()
            if (value := values[name]) is not None
        ]
        refused = ", ".join(name for name, value in values.items() if value is None)
        record.noise = f"no canary of {refused}: the system refused it" if refused else None
        self.add_provenance(record, self.pool.hosts_for(Shape())[:1])
        record.finished_at = now()
        return record


class MeasuringLoop:
    """Measures samples of one plan.

    `note` is the reason of the samples under way, stored before them: their pod may be lost.
    `stored` names the samples that the store has, where they were listed already: a large run has
    100,000 of them.
    Raises StoreError if a sample cannot be stored or no temporary folder can be created.
    KeyboardInterrupt passes through.
    """

    def __init__(
        self,
        plan: Plan,
        store: Store,
        pool: LocalPool,
        listener: ProgressListener,
        note: MissingReason | None = None,
        stored: set[str] | None = None,
    ) -> None:
        self.plan, self.store, self._pool, self._listener = plan, store, pool, listener
        self._note, self._sampler = note, Sampler(pool)
        self._stored = stored_samples(store, plan.run_id) if stored is None else stored
        self._headlines: dict[int, list[float]] = {}
        self._canaries = 0
        self._halted = threading.Event()

    def measure(
        self, positions: Sequence[int], batch: int = 0, deadline: float | None = None
    ) -> bool:
        """Measure samples, by position in the plan's order; return False if `deadline` ended it.

        `deadline` is in monotonic seconds. A canary frames every round. If one of several
        concurrent pairs is not stored, all run again, so that each has its load; only missing ones
        are stored.
        """
        round_now: int | None = None
        in_time = True
        for group in concurrent_groups(self.plan.points, self.plan.order, positions):
            missing = [position for position in group if not self._skipped(position)]
            if not missing:
                continue
            if deadline is not None and time.monotonic() >= deadline:
                in_time = False
                break
            repetition = self.plan.order[group[0]][1]
            if round_now != repetition:  # a canary on each side shows what changed within it
                self._canary(batch)
                round_now = repetition
            if self._note:
                samples = tuple(self.plan.key(position) for position in missing)
                note = replace(self._note, samples=samples)
                write_reason(self.store, self.plan.run_id, note)
            for position in missing:
                self._listener.started(self.plan.point_at(position), repetition)
            is_alone = len(group) == 1
            records = [self._sample(group[0], batch)] if is_alone else self._group(group, batch)
            for position, record in zip(group, records, strict=True):
                if position in missing:
                    self.store.put(
                        sample_key(self.plan.run_id, self.plan.key(position)), record.dump()
                    )
                    self._remember(self.plan.order[position][0], record)
                    self._listener.finished(self.plan.point_at(position), record)
        if round_now is not None:
            self._canary(batch)
        return in_time

    def _skipped(self, position: int) -> bool:
        """Return whether a sample need not be measured, and tell the listener.

        What is stored of a point with `until` counts for its precision. A damaged sample is
        measured again.
        """
        index, repetition = self.plan.order[position]
        point, name = self.plan.points[index], self.plan.key(position)
        reason = "stored before" if name in self._stored else ""
        if reason and point.until is not None:
            try:
                self._remember(
                    index, read_sample(self.store.get(sample_key(self.plan.run_id, name)))
                )
            except ValueError:
                reason = ""
        elif point.until is not None and repetition > point.repetitions:
            reached = relative_precision(self._headlines.get(index, []))
            if reached is not None and reached <= point.until.relative_spread:
                reason = PRECISE
        if reason:
            self._listener.skipped(point, repetition, reason)
        return bool(reason)

    def _remember(self, index: int, record: SampleRecord) -> None:
        value = headline(record.rows)
        if record.repetition > 0 and record.status == "ok" and value is not None:
            self._headlines.setdefault(index, []).append(value)

    def _canary(self, batch: int) -> None:
        record = self._sampler.canary(batch)
        while (name := f"canary-b{batch}n{self._canaries}") in self._stored:
            self._canaries += 1
        record.repetition = self._canaries
        self.store.put(sample_key(self.plan.run_id, name), record.dump())
        self._stored.add(name)

    def _group(self, group: Sequence[int], batch: int) -> list[SampleRecord]:
        """Return the samples of a group, measured at once; all are invalid if one ran alone."""
        records = self._at_once([partial(self._sample, position, batch) for position in group])
        wrong = missing_overlap(records)
        for record in records:
            record.facts["pairs_at_once"] = len(group)
            if wrong and record.status == "ok":
                record.status, record.error = "invalid", wrong
        return records

    def _at_once(self, samples: Sequence[Callable[[], SampleRecord]]) -> list[SampleRecord]:
        """Measure samples at once; return their records in order.

        Raises the exception of a sample after all have ended. An interrupt kills every child
        process: these samples are not stored.
        """
        with ThreadPoolExecutor(len(samples)) as pool:
            running = [pool.submit(sample) for sample in samples]
            try:
                return [future.result() for future in running]
            except (KeyboardInterrupt, SystemExit):
                # A thread cannot be interrupted: it ends when the program that it waits for does.
                self._halted.set()
                for pid in descendants(os.getpid()):
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL)
                raise

    def _sample(self, position: int, batch: int) -> SampleRecord:
        """Measure a sample, and again while its status is `infrastructure`. Raises GangLost."""
        index, repetition = self.plan.order[position]
        point, attempt = self.plan.points[index], 1
        shape = self.plan.shapes[point.shape]
        measure = self._hunt if shape.hosts.pairs == "hunt" else self._sampler.measure
        while True:
            record = measure(point, shape, repetition)
            if record.status in ("failed", "infrastructure") and (cause := self._pool.lost()):
                raise GangLost(f"{cause} ({record.error})")
            if record.status != "infrastructure":
                break
            if attempt > point.retries or self._halted.is_set():
                record.status = "failed"
                break
            time.sleep(min(2.0 * attempt, 10.0))  # a node or a network may come back
            attempt += 1
        record.batch, record.order_index = batch, position
        record.attempt = self._pool.earlier_attempts + attempt
        return record

    def _hunt(self, point: Point, shape: Shape, repetition: int) -> SampleRecord:
        """Return the record of a hunt for slow hosts. Raises GangLost."""
        from perfdag.steps.hunt import hunt  # which a run without one does not load

        hosts = by_number(self._pool.hosts_for(shape), self._pool.zones)

        def measure(pairs: Sequence[tuple[int, int]]) -> list[SampleRecord]:
            points = [replace(point, pair=Pair(a, b, 0, 0, point.id)) for a, b in pairs]
            records = self._at_once(
                [partial(self._sampler.measure, pair, shape, repetition) for pair in points]
            )
            if any(record.status != "ok" for record in records) and (cause := self._pool.lost()):
                raise GangLost(cause)
            return records

        nodes = [host.name for host in hosts]
        seed = f"{point.id}:{repetition}"
        record = hunt(nodes, self._sampler.host_facts, shape, seed, measure)
        if record.status == "ok":
            self._sampler.add_provenance(record, hosts)
        return record


def missing_overlap(group: Sequence[SampleRecord]) -> str | None:
    """Return why samples were not measured at once, or None if they were."""
    claim = f"{len(group)} pairs were to be measured at once"
    if failed := next((record for record in group if record.status != "ok"), None):
        return f"{claim}, but another of them was {failed.status}: {failed.error}"
    starts = [datetime.fromisoformat(record.started_at) for record in group]
    ends = [datetime.fromisoformat(record.finished_at) for record in group]
    shared = max(0.0, (min(ends) - max(starts)).total_seconds())
    took = max((end - start).total_seconds() for start, end in zip(starts, ends, strict=True))
    if shared < OVERLAP * took:
        return f"{claim}, but they shared {shared:.2f} s of {took:.2f} s"
    return None

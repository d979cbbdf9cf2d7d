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
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Protocol

import orjson

from perfdag.benchmark import registry
from perfdag.benchmark.contract import Benchmark, Gang
from perfdag.hosts import disturbance
from perfdag.hosts.base import Host, plain
from perfdag.hosts.facts import env_class
from perfdag.hosts.local import LocalHost, descendants
from perfdag.outcome import (
    VERDICT,
    VERDICT_VALUES,
    Failed,
    Infrastructure,
    SampleError,
    Skip,
    VerdictWord,
)
from perfdag.plan.plan import Plan, concurrent_groups
from perfdag.results.labels import difference
from perfdag.results.runs import RunStore, sample_key
from perfdag.results.samples import SampleRecord, as_rows, headline, now, read_sample
from perfdag.shape import ACROSS, Resources, Shape
from perfdag.stats.design import Hunt
from perfdag.stats.robust import median, relative_precision
from perfdag.store.base import Store, StoreError
from perfdag.suite.points import Pair, Point

HOSTS_AT_ONCE = 8
"""Hosts whose facts are read at the same time."""
PRECISE = "precise enough"
"""Reason for a skipped sample: its point has reached the precision of `until`."""


class ProgressListener(Protocol):
    """Receives the progress of a loop."""

    def started(self, point: Point, repetition: int) -> None: ...
    def finished(self, point: Point, record: SampleRecord) -> None: ...
    def skipped(self, point: Point, repetition: int, why: str) -> None:
        """Receive a sample that is not measured: stored before, or its point is precise enough."""
        ...


NO_ZONES: Mapping[str, str] = {}


class GangLost(Exception):
    """A host is gone: the sample under way is not stored, and another gang may measure it."""


class LocalPool:
    """This machine, once for each host of a shape, at its loopback address.

    Another pool of hosts overrides what differs.
    """

    volume: str | None = None
    """The folder where the volume of the shape is mounted."""
    earlier_attempts = 0
    """Attempts at the batch before this one."""
    zones = NO_ZONES
    """Zones by node name, if hosts are numbered by zone."""

    def __init__(
        self, where: Mapping[str, Any] | None = None, facts: Mapping[str, Any] | None = None
    ) -> None:
        self.where, self.facts = dict(where or {}), dict(facts or {})
        """Provenance (image digest, Workflow) and facts of every sample."""

    def hosts_for(self, shape: Shape) -> Sequence[Host]:
        """Return the hosts for a shape."""
        address = "::1" if shape.network.family == "ipv6" else "127.0.0.1"
        return [LocalHost(address) for _ in range(shape.hosts.count)]

    def refuses(self, shape: Shape) -> str | None:
        """Return why the hosts cannot provide a shape, or None."""
        return needs_cluster(shape)

    def misplacement(self, shape: Shape, hosts: Sequence[Host]) -> str | None:
        """Return why the hosts break the placement of the shape, or None."""
        return None

    def advice(self, shape: Shape, error: str) -> str | None:
        """Return what to do about the error of a sample, or None."""
        return None

    def lost(self) -> str | None:
        """Return why the failure of a sample does not count, or None."""
        return None


def needs_cluster(shape: Shape) -> str | None:
    """Return why one machine cannot provide a shape, as the reason of a skipped sample, or None."""
    network, hosts = shape.network, shape.hosts
    requests = {
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
        "resources": shape.resources != Resources() or bool(shape.hugepages),
        "a volume": shape.volume is not None,
        "node_selector or zones": bool(shape.node_selector or shape.zones),
        # `rdma` is a permission of a pod. On a machine the benchmark itself reports what is absent.
        "privileges": bool(set(shape.privileges) - {"rdma", "block"}),
        "scheduler: volcano": shape.scheduler != "default",
        "runtime_class": shape.runtime_class is not None,
    }
    reasons = [name for name, requested in requests.items() if requested]
    return f"{', '.join(reasons)}: needs a cluster (perfdag submit)" if reasons else None


def by_number(hosts: Sequence[Host], zones: Mapping[str, str] = NO_ZONES) -> list[Host]:
    """Return hosts in the order of their numbers in pairs.

    That is the order of the zones of their nodes, where `zones` has them, then of the names.
    """
    return sorted(hosts, key=lambda host: (zones.get(host.name, ""), host.name))


def two_of(hosts: Sequence[Host], pair: Pair, zones: Mapping[str, str] = NO_ZONES) -> list[Host]:
    """Return the two hosts of a pair."""
    ranked = by_number(hosts, zones)
    return [ranked[pair.first], ranked[pair.second]]


class NoScratch(StoreError):
    """No temporary folder can be created: the run ends, and can be resumed."""


class Sampler:
    """Measures samples of points, once each, on a pool of hosts.

    `host_facts` has the facts of the nodes so far.
    """

    def __init__(self, pool: LocalPool) -> None:
        self._pool = pool
        self.host_facts: dict[str, dict[str, Any]] = {}

    def measure(self, point: Point, shape: Shape, repetition: int) -> SampleRecord:
        """Return the record of one attempt at a sample.

        Its status is `infrastructure` if another attempt may succeed. Whatever a benchmark raises
        becomes a row. Raises NoScratch.
        """
        record = SampleRecord(
            point.id,
            repetition,
            "ok",
            started_at=now(),
            where=dict(self._pool.where),
            facts=dict(self._pool.facts),
        )
        benchmark: Benchmark[Any] = registry.get(point.benchmark)
        record.benchmark_version = str(benchmark.version)
        # Before facts are read and hosts asked, whose load would be taken for that of others.
        guard = disturbance.Guard()
        try:
            hosts = self._pool.hosts_for(shape)
            starter = hosts[0] if hosts else None
            refusal = self._pool.refuses(shape)
            if point.pair is not None:
                hosts, shape = two_of(hosts, point.pair, self._pool.zones), shape.pair()
            self.add_provenance(record, hosts)
            if refusal:
                raise Skip(refusal)
            guard.include(hosts)
            self._run(record, benchmark, point, shape, hosts, starter)
            if fault := self._pool.misplacement(shape, hosts):
                record.status, record.error = "invalid", fault
        except SampleError as error:
            retryable = isinstance(error, Infrastructure)
            record.status = "infrastructure" if retryable else error.status
            record.error, record.texts = str(error), record.texts or error.texts
            if not retryable:  # what a failed sample measured is kept
                try:
                    record.rows = as_rows(benchmark, error.measurements, point.params)
                except Exception as fault:
                    record.error = f"{record.error}; {type(fault).__name__}: {fault}"
        except NoScratch:
            raise
        except Exception as error:  # a benchmark of another package may raise anything
            record.status, record.rows = "failed", []
            record.error = f"{type(error).__name__}: {error}"
            record.texts["traceback"] = traceback.format_exc()
        seen = guard.end(record.env.get("cpu_threads") or 1)
        record.noise = seen.noise
        if record.status == "ok" and seen.throttled:
            record.status, record.error = "invalid", seen.throttled
        if record.error:
            parts = (record.error, seen.starved, self._pool.advice(shape, record.error))
            record.error = " ".join(plain("; ".join(part for part in parts if part)).split())
        record.finished_at = now()
        return record

    def _run(
        self,
        record: SampleRecord,
        benchmark: Benchmark[Any],
        point: Point,
        shape: Shape,
        hosts: Sequence[Host],
        starter: Host | None,
    ) -> None:
        params = benchmark.Params.model_validate(point.params)
        try:
            folder = tempfile.TemporaryDirectory(prefix="perfdag-", ignore_cleanup_errors=True)
        except OSError as error:
            raise NoScratch(
                f"cannot create a temporary folder: {error}; "
                "free some space, or name another folder with TMPDIR"
            ) from error
        with folder as scratch:
            gang = Gang(
                hosts,
                shape,
                point.timeout,
                scratch,
                self._pool.volume,
                starter=starter,
            )
            benchmark.require(gang, params)
            record.started_at = now()
            try:
                measurements = benchmark.run(gang, params)
            finally:
                for host in hosts:
                    if host is not starter:  # whose folder the `with` removes
                        with contextlib.suppress(SampleError, OSError):
                            host.remove(scratch)
                output = gang.output
                record.texts, record.commands, record.tool = output.texts, output.argv, output.tool
                record.facts |= output.facts
                if not output.comparable:
                    record.benchmark_version = f"{benchmark.version} {output.tool}".strip()
        if not measurements:
            raise Failed(f"{benchmark.name} yielded no value")
        record.rows = as_rows(benchmark, measurements, point.params)

    def add_provenance(self, record: SampleRecord, hosts: Sequence[Host]) -> None:
        """Add the nodes and facts of hosts to a record."""
        new = {host.name: host for host in hosts if host.name not in self.host_facts}
        if new:
            with ThreadPoolExecutor(HOSTS_AT_ONCE) as pool:  # each starts a Python on its node
                facts = pool.map(lambda host: host.facts(), new.values())
                self.host_facts |= zip(new, facts, strict=True)
        record.nodes = [host.name for host in hosts]
        if hosts:
            first, *others = record.nodes
            record.env = self.host_facts[first]
            record.env_class = env_class(*(self.host_facts[name] for name in record.nodes))
            if peers := {name: self.host_facts[name] for name in others if name != first}:
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
            where=dict(self._pool.where),
        )
        values = disturbance.canary()
        values["steal"] = disturbance.moment().steal_since(before)
        record.rows = [
            {
                "metric": name,
                "stat": "value",
                "value": values[name],
                "unit": unit,
                "better": better,
                "headline": False,
            }
            for name, (unit, better) in disturbance.CANARY_METRICS.items()
            if values[name] is not None
        ]
        refused = ", ".join(name for name, value in values.items() if value is None)
        record.noise = f"no canary of {refused}: the system refused it" if refused else None
        self.add_provenance(record, self._pool.hosts_for(Shape())[:1])
        record.finished_at = now()
        return record


class MeasuringLoop:
    """Measures samples of one plan.

    Raises StoreError if a sample cannot be stored or no temporary folder can be created.
    KeyboardInterrupt passes through.
    """

    def __init__(
        self,
        plan: Plan,
        store: Store,
        pool: LocalPool,
        listener: ProgressListener,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.plan, self.store, self._pool, self._listener = plan, store, pool, listener
        self._clock = clock
        self._sampler = Sampler(pool)
        self._stored = RunStore(store).samples(plan.run_id)
        self._shapes = plan.shapes
        self._headlines: dict[int, list[float]] = {}
        self._canaries = 0
        self._halted = threading.Event()
        self.counts: dict[str, int] = {}

    def measure(
        self, positions: Sequence[int], batch: int = 0, deadline: float | None = None
    ) -> bool:
        """Measure samples, by position in the plan's order; return False if `deadline` ended it.

        `deadline` is on the loop's clock. A canary frames every round. If one of several concurrent
        pairs is not stored, all run again, so that each has its load; only missing ones are stored.
        """
        round_now: int | None = None
        in_time = True
        for group in concurrent_groups(self.plan.points, self.plan.order, positions):
            left = [position for position in group if not self._skipped(position)]
            if not left:
                continue
            if deadline is not None and self._clock() >= deadline:
                in_time = False
                break
            repetition = self.plan.order[group[0]][1]
            if round_now != repetition:  # a canary on each side shows what changed within it
                self._canary(batch)
                round_now = repetition
            for position in left:
                self._listener.started(self.plan.point_at(position), repetition)
            for position, record in zip(group, self._group(group, batch), strict=True):
                if position in left:
                    self._keep(position, record)
        if round_now is not None:
            self._canary(batch)
        return in_time

    def _skipped(self, position: int) -> bool:
        """Return whether a sample need not be measured, and tell the listener."""
        index, repetition = self.plan.order[position]
        point, name = self.plan.points[index], self.plan.key(position)
        why = None
        if name in self._stored and self._recall(index, name):
            why = "stored before"
        elif point.until is not None and repetition > point.repetitions:
            reached = relative_precision(self._headlines.get(index, []))
            if reached is not None and reached <= point.until.relative_spread:
                why = PRECISE
        if why:
            self._listener.skipped(point, repetition, why)
        return why is not None

    def _keep(self, position: int, record: SampleRecord) -> None:
        index, repetition = self.plan.order[position]
        name = self.plan.key(position)
        self._put(name, record)
        self._remember(index, repetition, record)
        self.counts[record.status] = self.counts.get(record.status, 0) + 1
        self._listener.finished(self.plan.points[index], record)

    def _put(self, name: str, record: SampleRecord) -> None:
        self.store.put(sample_key(self.plan.run_id, name), record.dump())
        self._stored.add(name)

    def _group(self, group: Sequence[int], batch: int) -> list[SampleRecord]:
        """Return the samples of a group, measured at once; one that ran alone is invalid."""
        if len(group) == 1:
            return [self._sample(group[0], batch)]
        samples = [partial(self._sample, position, batch) for position in group]
        records = run_concurrently(samples, self._halted.set)
        for record in records:
            record.facts["pairs_at_once"] = len(group)
        for record, wrong in zip(records, missing_overlaps(records), strict=True):
            if wrong and record.status == "ok":
                record.status, record.error = "invalid", wrong
        return records

    # -- precision ------------------------------------------------------------------------------

    def _recall(self, index: int, name: str) -> bool:
        """Read the value of a stored sample for `until`; return False if it is damaged."""
        if self.plan.points[index].until is not None and "-w" not in name:
            try:
                record = read_sample(self.store.get(sample_key(self.plan.run_id, name)))
            except ValueError:
                return False
            self._remember(index, record.repetition, record)
        return True

    def _remember(self, index: int, repetition: int, record: SampleRecord) -> None:
        value = headline(record.rows)
        if repetition > 0 and record.status == "ok" and value is not None:
            self._headlines.setdefault(index, []).append(value)

    # -- one sample -----------------------------------------------------------------------------

    def _sample(self, position: int, batch: int) -> SampleRecord:
        """Measure a sample, and again while its status is `infrastructure`. Raises GangLost."""
        index, repetition = self.plan.order[position]
        point, attempt = self.plan.points[index], 1
        shape = self._shapes[point.shape]
        measure: Callable[[Point, Shape, int], SampleRecord] = self._sampler.measure
        if shape.hosts.pairs == "hunt":
            measure = partial(hunt, self._sampler, self._pool, self._halted.set)
        while True:
            record = measure(point, shape, repetition)
            if record.status in ("failed", "infrastructure") and (why := self._pool.lost()):
                raise GangLost(f"{why} ({record.error})")
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

    def _canary(self, batch: int) -> None:
        record = self._sampler.canary(batch)
        while (name := f"canary-b{batch}n{self._canaries}") in self._stored:
            self._canaries += 1
        record.repetition = self._canaries
        self._put(name, record)
        self._canaries += 1


# -- pairs of hosts that are measured at once -----------------------------------------------------

OVERLAP = 0.5
"""Least share of a sample's time that each companion must overlap."""


def run_concurrently(
    samples: Sequence[Callable[[], SampleRecord]], halt: Callable[[], None]
) -> list[SampleRecord]:
    """Run samples concurrently; return their records in order.

    Raises the exception of a sample after all have ended. An interrupt calls `halt` and kills
    every child process: these samples are not stored.
    """
    with ThreadPoolExecutor(len(samples)) as pool:
        running = [pool.submit(sample) for sample in samples]
        try:
            return [future.result() for future in running]
        except (KeyboardInterrupt, SystemExit):
            halt()
            for pid in descendants(os.getpid()):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            raise


def missing_overlaps(records: Sequence[SampleRecord]) -> list[str | None]:
    """Return for each sample why its companions did not overlap with it; None if they did."""
    return [
        _missing_overlap(record, [other for other in records if other is not record])
        for record in records
    ]


def _missing_overlap(record: SampleRecord, others: Sequence[SampleRecord]) -> str | None:
    claim = f"{len(others) + 1} pairs were to be measured at once"
    start, end = _times(record)
    for other in others:
        if other.status != "ok":
            return f"{claim}, but another of them was {other.status}: {other.error}"
        begin, stop = _times(other)
        shared = max(0.0, (min(end, stop) - max(start, begin)).total_seconds())
        if shared < OVERLAP * (end - start).total_seconds():
            total = (end - start).total_seconds()
            return f"{claim}, but this one shared {shared:.2f} s of its {total:.2f} s with another"
    return None


def _times(record: SampleRecord) -> tuple[datetime, datetime]:
    return datetime.fromisoformat(record.started_at), datetime.fromisoformat(record.finished_at)


# -- `hosts.pairs: hunt` ---------------------------------------------------------------------------

SLOWNESS = "slowness"
"""The score of a host: the part of the typical speed that its pairs lack."""
RULE = "no slow host"
EXPLAINED = 200
"""Characters of the facts in which a slow host differs from the others."""
Measured = tuple[str, int, int, SampleRecord]
"""A pair by its hosts' names, its round (0: alone), the pairs at once, and its record."""


def hunt(
    sampler: Sampler,
    pool: LocalPool,
    halt: Callable[[], None],
    point: Point,
    shape: Shape,
    repetition: int,
) -> SampleRecord:
    """Return the record of a hunt, with a row for each pair and host, and a verdict.

    If no pair of the first round can be measured, return the record of one. Raises GangLost.
    """
    hosts = by_number(pool.hosts_for(shape))
    names = _names(hosts)
    state = Hunt(len(hosts), f"{point.id}:{repetition}")
    measured: list[Measured] = []
    while pairs := state.pairs():
        limit = shape.hosts.parallel_pairs if shape.hosts.parallel_pairs > 1 else len(pairs)
        alone = len(pairs) == 1
        speeds: list[float | None] = []
        for start in range(0, len(pairs), limit):
            group = pairs[start : start + limit]
            points = [replace(point, pair=Pair(a, b, 0, 0, point.id)) for a, b in group]
            samples = [
                partial(sampler.measure, pair_point, shape, repetition) for pair_point in points
            ]
            records = [samples[0]()] if alone else run_concurrently(samples, halt)
            if any(r.status != "ok" for r in records) and (why := pool.lost()):
                raise GangLost(why)
            speeds += map(_speed, records)
            measured += [
                (f"{names[a]} - {names[b]}", 0 if alone else state.rounds + 1, len(group), record)
                for (a, b), record in zip(group, records, strict=True)
            ]
        if not any(record.status == "ok" for *_, record in measured):
            return measured[0][-1]
        state.record(pairs, speeds)
    record = _merged(measured)
    sampler.add_provenance(record, hosts)
    facts = {name: sampler.host_facts[host.name] for name, host in zip(names, hosts, strict=True)}
    record.rows += [_slowness(name, state.slowness(at)) for at, name in enumerate(names)]
    record.rows.append(_verdict(state, names, facts))
    return record


def _names(hosts: Sequence[Host]) -> list[str]:
    """Return the nodes of hosts, or `3 (node)` where a node has several."""
    nodes = [host.name for host in hosts]
    distinct = len(set(nodes)) == len(nodes)
    return nodes if distinct else [f"{number} ({node})" for number, node in enumerate(nodes)]


def _headline(record: SampleRecord) -> dict[str, Any] | None:
    return next((row for row in record.rows if row["headline"]), None)


def _speed(record: SampleRecord) -> float | None:
    """Return a value whose higher is better: that of a latency is inverted."""
    row = _headline(record)
    if record.status != "ok" or row is None or not row["value"] > 0:
        return None
    return float(row["value"] if row["better"] == "higher" else 1 / row["value"])


def _merged(measured: Sequence[Measured]) -> SampleRecord:
    """Return one record of all pairs: their medians at once, then the headline of each pair."""
    good = [(name, number, at_once, r) for name, number, at_once, r in measured if r.status == "ok"]
    failed = [f"{name}: {r.error}" for name, _, _, r in measured if r.status != "ok"]
    first, noise = good[0][-1], [r.noise for *_, r in measured if r.noise]
    series: dict[bytes, list[dict[str, Any]]] = {}
    rows: list[dict[str, Any]] = []
    for name, number, together, record in good:
        if number:
            for row in record.rows:
                key = orjson.dumps([row["metric"], row["stat"], row.get("coords")])
                series.setdefault(key, []).append(row)
        if (own := _headline(record)) is not None:
            coords = {**own.get("coords", {}), "round": number, "pairs_at_once": together}
            rows.append({**own, "coords": coords, "subject": name, "headline": False})
    medians = [
        {**group[0], "value": median([row["value"] for row in group]), "n": len(group)}
        for group in series.values()
        if group[0].get("subject") is None
    ]
    return replace(
        first,
        rows=[*medians, *rows],
        texts={},
        facts={**first.facts, "pairs": len(measured), "failed_pairs": failed[:20]},
        noise=f"{noise[0]} ({len(noise)} of {len(measured)} pairs)" if noise else None,
        finished_at=now(),
    )


def _slowness(name: str, value: float) -> dict[str, Any]:
    return {**_ROW, "metric": SLOWNESS, "value": value, "better": "lower", "subject": name}


_ROW = {"stat": "value", "unit": "1", "headline": False}


def _verdict(state: Hunt, names: Sequence[str], facts: dict[str, Any]) -> dict[str, Any]:
    """Return the row that names the slow hosts and the facts in which each differs."""
    word: VerdictWord = "passed"
    notes = []
    for slow in state.slow:
        differs = difference(facts, names[slow.host], EXPLAINED)
        why = f" ({differs})" if differs else ""
        notes.append(f"{names[slow.host]} is {100 * slow.slowness:.0f} % slow{why}")
    if state.unknown:
        notes.append(f"undecided: {', '.join(names[host] for host in state.unknown[:6])}")
        word = "inconclusive"
    if state.slow:
        word = "failed"
    note = "; ".join(notes) or f"{len(names)} hosts cleared in {state.rounds} rounds"
    value = VERDICT_VALUES[word]
    return {
        **_ROW,
        "metric": VERDICT,
        "value": value,
        "better": "higher",
        "subject": RULE,
        "note": note,
    }

"""Measure one sample: run a benchmark, and record what it printed and what disturbed it."""

import contextlib
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from perfdag.benchmark import registry
from perfdag.benchmark.contract import Benchmark, Gang
from perfdag.hosts import disturbance
from perfdag.hosts.base import Host, plain
from perfdag.hosts.facts import env_class
from perfdag.outcome import Failed, Infrastructure, SampleError, Skip
from perfdag.results.samples import SampleRecord, as_rows, now
from perfdag.shape import Shape
from perfdag.steps.loop.pools import LocalPool, two_of
from perfdag.store.base import StoreError
from perfdag.suite.points import Point

HOSTS_AT_ONCE = 8
"""Hosts whose facts are read at the same time."""


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
            fault = self._pool.misplacement(shape, hosts) or guard.throttled()
            if fault:
                record.status, record.error = "invalid", fault
        except SampleError as error:
            retryable = isinstance(error, Infrastructure)
            record.status = "infrastructure" if retryable else error.status
            record.error, record.texts = str(error), record.texts or error.texts
            if not retryable:
                _keep_values(record, benchmark, point.params, error)
        except NoScratch:
            raise
        except Exception as error:  # a benchmark of another package may raise anything
            record.status, record.rows = "failed", []
            record.error = f"{type(error).__name__}: {error}"
            record.texts["traceback"] = traceback.format_exc()
        record.noise = guard.disturbed(record.env.get("cpu_threads") or 1)
        if record.error:
            parts = (record.error, guard.starved(), self._pool.advice(shape, record.error))
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
        with _scratch_folder() as scratch:
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
                    if host is not starter:
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
        with ThreadPoolExecutor(HOSTS_AT_ONCE) as pool:  # each starts a Python on its node
            self.host_facts |= zip(
                new, pool.map(lambda host: host.facts(), new.values()), strict=True
            )
        record.nodes = [host.name for host in hosts]
        if hosts:
            facts = {name: self.host_facts[name] for name in record.nodes}
            record.env = facts[hosts[0].name]
            record.env_class = env_class(*(facts[name] for name in record.nodes))
            peers = {name: facts[name] for name in facts if name != hosts[0].name}
            if peers:
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
        steal = disturbance.steal(before, disturbance.moment())
        record.rows = disturbance.canary_rows(values, steal)
        refused = ", ".join(name for name, value in values.items() if value is None)
        record.noise = f"no canary of {refused}: the system refused it" if refused else None
        self.add_provenance(record, self._pool.hosts_for(Shape())[:1])
        record.finished_at = now()
        return record


def _keep_values(
    record: SampleRecord,
    benchmark: Benchmark[Any],
    params: Mapping[str, Any],
    error: SampleError,
) -> None:
    """Keep the measurements of a failed sample; append the fault of a bad value to the error."""
    try:
        record.rows = as_rows(benchmark, error.measurements, params)
    except Exception as fault:
        record.error, record.rows = f"{record.error}; {type(fault).__name__}: {fault}", []


def _scratch_folder() -> "tempfile.TemporaryDirectory[str]":
    try:
        return tempfile.TemporaryDirectory(prefix="perfdag-", ignore_cleanup_errors=True)
    except OSError as error:
        raise NoScratch(
            f"cannot create a temporary folder: {error}; "
            "free some space, or name another folder with TMPDIR"
        ) from error

"""Pairs of a gang's hosts: the hosts of a pair, concurrent pairs, and whether they overlapped."""

import contextlib
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

from perfdag.hosts.base import Host
from perfdag.hosts.local import descendants
from perfdag.results.samples import SampleRecord
from perfdag.steps.loop.pools import NO_ZONES
from perfdag.suite.points import Pair

OVERLAP = 0.5
"""Least share of a sample's time that each companion must overlap."""


def by_number(hosts: Sequence[Host], zones: Mapping[str, str] = NO_ZONES) -> list[Host]:
    """Return hosts in the order of their numbers in pairs.

    That is the order of the zones of their nodes, where `zones` has them, then of the names.
    """
    return sorted(hosts, key=lambda host: (zones.get(host.name, ""), host.name))


def two_of(hosts: Sequence[Host], pair: Pair, zones: Mapping[str, str] = NO_ZONES) -> list[Host]:
    """Return the two hosts of a pair."""
    ranked = by_number(hosts, zones)
    return [ranked[pair.first], ranked[pair.second]]


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

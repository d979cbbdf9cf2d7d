"""Pairs of a gang's hosts: which two hosts a pair is, several pairs at once, and whether they really ran together."""

import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

from perfdag.hosts import Host
from perfdag.pairs import Pair
from perfdag.processes import descendants
from perfdag.samples import SampleRecord

OVERLAP = 0.5  # least part of a sample's time that each companion shares


def two_of(hosts: Sequence[Host], pair: Pair) -> list[Host]:
    """The two hosts of a pair; hosts are numbered by their node's name, in the order given where nodes are equal."""
    ranked = sorted(hosts, key=lambda host: host.name)
    return [ranked[pair.first], ranked[pair.second]]


def at_once(
    samples: Sequence[Callable[[], SampleRecord]], halt: Callable[[], None]
) -> list[SampleRecord]:
    """Run samples side by side and return their parts in order; raises what one of them raises, once all have ended.

    An interrupt calls `halt` and ends every process below this one, or it would wait for samples that nobody keeps.
    """
    with ThreadPoolExecutor(len(samples)) as pool:
        running = [pool.submit(sample) for sample in samples]
        try:
            return [each.result() for each in running]
        except (KeyboardInterrupt, SystemExit):
            halt()
            for pid in descendants(os.getpid()):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            raise


def not_together(parts: Sequence[SampleRecord]) -> list[str | None]:
    """For each sample why it had not the company it claims: a companion was not measured, or hardly at the same time. None: it had."""
    return [_alone(part, [each for each in parts if each is not part]) for part in parts]


def _alone(part: SampleRecord, others: Sequence[SampleRecord]) -> str | None:
    asked = f"{len(others) + 1} pairs were to be measured at once"
    start, end = _times(part)
    for other in others:
        if other.status != "ok":
            return f"{asked}, but another of them was {other.status}: {other.error}"
        begin, stop = _times(other)
        shared = max(0.0, (min(end, stop) - max(start, begin)).total_seconds())
        if shared < OVERLAP * (end - start).total_seconds():
            return f"{asked}, but this one shared {shared:.2f} s of its {(end - start).total_seconds():.2f} s with another"
    return None


def _times(part: SampleRecord) -> tuple[datetime, datetime]:
    return datetime.fromisoformat(part.started_at), datetime.fromisoformat(part.finished_at)

"""Prove that the pods of one variant are idle while the other variant measures."""

import time
from collections.abc import Sequence

from perfdag.hosts.base import Host
from perfdag.plan.plan import Plan
from perfdag.results.samples import read_sample, sample_key, stored_samples
from perfdag.store.base import Store

IDLE_LIMIT = 0.1
"""CPUs that an idle pod may use: an idle sshd and reading its counters need less than 0.05."""
_COUNTERS = [
    "sh",
    "-c",
    "cat /sys/fs/cgroup/cpu.stat /sys/fs/cgroup/cpuacct/cpuacct.usage 2>/dev/null; true",
]


def cpu_seconds(text: str) -> float | None:
    """Return the CPU time of a cgroup in seconds, or None if the text has none.

    The text is cpu.stat of cgroup version 2 (usage_usec), or cpuacct.usage of version 1 (ns).
    """
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == "usage_usec":
            return int(value) / 1e6
        if name.isdigit() and not value:
            return int(name) / 1e9
    return None


class IdleMeter:
    """Measures the CPU use of pods from its creation on."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._hosts = hosts
        self._before, self._start = self._read(), time.monotonic()

    def _read(self) -> list[float | None]:
        return [cpu_seconds(host.run(_COUNTERS, timeout=15).stdout) for host in self._hosts]

    def most(self) -> float | None:
        """Return the CPUs that the busiest pod used; None if the counters of one are unknown."""
        seconds = time.monotonic() - self._start
        rates = []
        for before, after in zip(self._before, self._read(), strict=True):
            if before is None or after is None:
                return None
            rates.append((after - before) / seconds)
        return max(rates)


def mark(store: Store, plan: Plan, samples: Sequence[int], cpus: float | None) -> None:
    """Write the CPU use of the idle pods into the samples of a round.

    Samples are invalid if it is unknown or above IDLE_LIMIT. Raises StoreError.
    """
    for position in samples:
        key = sample_key(plan.run_id, plan.key(position))
        record = read_sample(store.get(key))
        record.facts["idle_cpus"] = None if cpus is None else round(cpus, 4)
        if record.status == "ok" and (cpus is None or cpus > IDLE_LIMIT):
            usage = "could not be read" if cpus is None else f"was {cpus:.2f}, over {IDLE_LIMIT:g}"
            record.status = "invalid"
            record.error = (
                f"the CPU use of the other variant's pods {usage}: they are not proven idle"
            )
        store.put(key, record.dump())


def forget_unmarked(store: Store, plan: Plan, samples: Sequence[int]) -> None:
    """Remove samples that are damaged or not marked, so that they are measured again."""
    stored = stored_samples(store, plan.run_id)
    for position in samples:
        name = plan.key(position)
        if name in stored and not _is_marked(store.get(sample_key(plan.run_id, name))):
            store.delete(sample_key(plan.run_id, name))


def _is_marked(data: bytes) -> bool:
    try:
        return "idle_cpus" in read_sample(data).facts
    except ValueError:
        return False

"""Two variants of a suite side by side: both gangs stand on the same nodes, one measures while the other is idle.

Rank 0 leads variant A and says whose turn it is; the first pod of variant B leads its own gang when it is told to. Before and after each
round the CPU time of the pods that should be idle is read; what they used is in the rows of the round, and too much makes them invalid.
"""

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from perfdag import signals
from perfdag.benchmark import registry
from perfdag.hosts.base import Host
from perfdag.hosts.ssh import SshHost
from perfdag.kube.client import KubeError
from perfdag.outcome import Infrastructure
from perfdag.plan.ab import Duet, positions, stored_duet
from perfdag.plan.plan import Plan
from perfdag.results import missing_reason
from perfdag.results.runs import variants
from perfdag.results.samples import read_sample, sample_key, stored_samples
from perfdag.steps.measure import GangLost, MeasuringLoop
from perfdag.steps.runner import budget
from perfdag.steps.runner.gang import (
    GangUnavailable,
    Hosts,
    ProgressReporter,
    add_peers,
    connect,
    fell_apart,
    own_host,
    place_for,
    running,
    ssh_config,
)
from perfdag.steps.runner.pod_context import PodContext
from perfdag.steps.runner.quarantine import CrashHistory, known, skip_crashers
from perfdag.store.base import Store

IDLE_LIMIT = 0.1
"""CPUs that a pod may use while it should be idle: reading its counters and an idle sshd need less than 0.05."""
ORDERS, ANSWERS = "orders", "answers"
SLACK = 120.0  # seconds beyond the longest that a round's samples may take
_COUNTERS = [
    "sh",
    "-c",
    "cat /sys/fs/cgroup/cpu.stat /sys/fs/cgroup/cpuacct/cpuacct.usage 2>/dev/null; true",
]


def recalled(store: Store, plan: Plan) -> Duet:
    """The duel that a stored plan is one side of. Raises StoreError."""
    return stored_duet(*variants(store, plan))


def cpu_seconds(text: str) -> float | None:
    """CPU time of a cgroup in seconds, from cpu.stat (version 2: usage_usec) or cpuacct.usage (version 1: ns); None where neither is."""
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == "usage_usec":
            return int(value) / 1e6
        if name.isdigit() and not value:
            return int(name) / 1e9
    return None


class Idle:
    """What pods use of the CPU from now on, in CPUs."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._hosts = hosts
        self._before, self._start = self._read(), time.monotonic()

    def _read(self) -> list[float | None]:
        return [cpu_seconds(host.run(_COUNTERS, timeout=15).stdout) for host in self._hosts]

    def most(self) -> float | None:
        """Of the pod that used most, from the start until now; None where one cannot be read."""
        seconds = time.monotonic() - self._start
        used = [
            None if a is None or b is None else (b - a) / seconds
            for a, b in zip(self._before, self._read(), strict=True)
        ]
        known = [each for each in used if each is not None]
        return max(known) if len(known) == len(used) else None


def mark(store: Store, plan: Plan, samples: Sequence[int], idle: float | None) -> None:
    """Write the CPU use of the idle pods into the samples of a round; too much or unknown is invalid."""
    for position in samples:
        key = sample_key(plan.run_id, plan.key(position))
        part = read_sample(store.get(key))
        part.facts["idle_cpus"] = None if idle is None else round(idle, 4)
        if part.status == "ok" and (idle is None or idle > IDLE_LIMIT):
            used = "could not be read" if idle is None else f"was {idle:.2f}, over {IDLE_LIMIT:g}"
            part.status, part.error = (
                "invalid",
                f"the CPU use of the other variant's pods {used}: they are not proven idle",
            )
        store.put(key, part.dump())


def forget_unmarked(store: Store, plan: Plan, samples: Sequence[int]) -> None:
    """Remove damaged samples, and those of a round that was not marked: they are measured again."""
    stored = stored_samples(store, plan.run_id)
    for position in samples:
        name = plan.key(position)
        if name in stored and not _marked(store.get(sample_key(plan.run_id, name))):
            store.delete(sample_key(plan.run_id, name))


def _marked(data: bytes) -> bool:
    try:
        return "idle_cpus" in read_sample(data).facts
    except ValueError:
        return False


def of_pairs(duel: Duet, crashes: CrashHistory) -> CrashHistory:
    """Return the crashes of pairs: a point and its counterpart in the other variant share theirs.

    Pairs with a common point share theirs too: a crash does not tell which pair was measured.
    """
    groups: list[set[str]] = []
    for a, b in zip(duel.a.points, duel.b.points, strict=True):
        near = [group for group in groups if not group.isdisjoint({a.id, b.id})]
        groups = [group for group in groups if group not in near] + [{a.id, b.id}.union(*near)]
    found: dict[str, list[str]] = {}
    for group in groups:
        if how := [each for name in sorted(group) for each in crashes.get(name, ())]:
            found |= dict.fromkeys(group, how)
    return found


def lead(here: PodContext, store: Store, plan: Plan, number: int, attempt: int, last: bool) -> int:
    """Drive batch `number` of both variants; return 0, or RETRYABLE or REFUSED where a gang fell apart.

    Raises StoreError, KubeError.
    """
    duel = recalled(store, plan)
    for each in (duel.a, duel.b):
        forget_unmarked(store, each, each.batches[number].samples)
    try:
        crashes = of_pairs(duel, known(here, store, number, attempt))
        for each in (duel.a, duel.b):
            mark(store, each, list(skip_crashers(here, store, each, number, crashes)), None)
        drive_batch(here, store, duel, number, attempt)
        return 0
    except (GangUnavailable, GangLost, Infrastructure, KubeError) as error:
        return fell_apart(
            store, [duel.a, duel.b], number, f"batch {number}, attempt {attempt}", last, error
        )


def drive_batch(here: PodContext, store: Store, duel: Duet, number: int, attempt: int) -> None:
    shapes = {letter: plan.shape_of(number) for letter, plan in (("A", duel.a), ("B", duel.b))}
    n, family = shapes["A"].hosts.count, shapes["A"].network.family
    limit = float(duel.a.options.get("pending_limit", 600))
    pods = signals.run(running(here, here.run_id, number, attempt, 2 * n, limit, family))
    by_rank = {pod.rank or 0: pod for pod in pods.values()}
    for rank in range(n):
        if by_rank[rank].node != by_rank[n + rank].node:
            raise GangUnavailable(
                f"host {rank} of A is on {by_rank[rank].node} and of B on {by_rank[n + rank].node}: not side by side"
            )
    config = ssh_config()
    mine = Hosts([own_host(here, pods, shapes["A"])], pods)
    others = Hosts([], pods)
    measured = False
    try:
        add_peers(mine, [by_rank[rank] for rank in range(1, n)], config, shapes["A"], here.run_id)
        connect(others, [by_rank[n + rank] for rank in range(n)], config, shapes["B"], here.run_id)
        for plan in (duel.a, duel.b):
            missing_reason.forget_batch(store, plan.run_id, number)
        measure_rounds(here, store, duel, number, mine, others)
        measured = True
    finally:
        others.dismiss(measured)
        mine.dismiss(measured)


def measure_rounds(
    here: PodContext, store: Store, duel: Duet, number: int, mine: Hosts, others: Hosts
) -> None:
    plans = {"A": duel.a, "B": duel.b}
    samples = {letter: set(plan.batches[number].samples) for letter, plan in plans.items()}
    said = ProgressReporter(sum(len(each) for each in samples.values()))
    measuring = MeasuringLoop(duel.a, store, place_for(here, duel.a.shape_of(number), mine), said)
    second: SshHost = others.peers[0]
    until = budget.deadline(store, here.run_id, duel.a)
    for letter, repetition in [("A", 0), ("B", 0), *duel.rounds()]:
        plan = plans[letter]
        stored = stored_samples(store, plan.run_id)
        asked = [
            each
            for each in positions(plan, repetition)
            if each in samples[letter] and plan.key(each) not in stored
        ]
        if not asked:
            continue
        if until is not None and time.monotonic() >= until:
            spent = missing_reason.budget_spent(duel.a.budget or 0, number)
            for each_plan in plans.values():
                missing_reason.write(store, each_plan.run_id, spent)
            return
        idle = Idle(others.peers if letter == "A" else mine.hosts)
        if letter == "A":
            measuring.measure(asked, batch=number)
        else:
            answer = second.ask(str(repetition), patience(plan, asked))
            if answer != "measured":
                raise GangLost(f"variant B: {answer}")
            said.count(len(asked))
        mark(store, plan, asked, idle.most())


def patience(plan: Plan, samples: Sequence[int]) -> float:
    """Seconds after which samples, each tried as often as it may be, have ended or never will."""
    seconds = SLACK
    for point in (plan.points[plan.order[each][0]] for each in samples):
        benchmark = registry.get(point.benchmark)
        seconds += (1 + point.retries) * benchmark.longest(
            benchmark.Params.model_validate(point.params), point.timeout
        )
    return seconds


def follow(here: PodContext, plan: Plan, number: int, attempt: int, home: Path) -> None:
    """In the first pod of variant B: make the pipes for orders, and measure a round for each order, in a thread of its own."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name in (ORDERS, ANSWERS):
        (home / name).unlink(missing_ok=True)
        os.mkfifo(home / name)
    threading.Thread(target=_obey, args=(here, plan, number, attempt, home), daemon=True).start()


def _obey(here: PodContext, plan: Plan, number: int, attempt: int, home: Path) -> None:
    measuring: MeasuringLoop | None = None
    while True:
        order = (home / ORDERS).read_text().strip()
        try:
            if measuring is None:
                measuring = second_variant(here, plan, number, attempt)
            wanted = set(plan.batches[number].samples)
            measuring.measure(
                [each for each in positions(plan, int(order)) if each in wanted], batch=number
            )
            answer = "measured"
        except (
            Exception
        ) as error:  # it has to reach the pod that gives the orders: nobody else asks
            answer = " ".join(f"{type(error).__name__}: {error}".split())
        (home / ANSWERS).write_text(f"{answer}\n")


def second_variant(here: PodContext, plan: Plan, number: int, attempt: int) -> MeasuringLoop:
    shape = plan.shape_of(number)
    n = shape.hosts.count
    limit = float(plan.options.get("pending_limit", 600))
    pods = signals.run(
        running(here, here.run_id, number, attempt, 2 * n, limit, shape.network.family)
    )
    gang = Hosts([own_host(here, pods, shape)], pods)
    by_rank = {pod.rank or 0: pod for pod in pods.values()}
    add_peers(
        gang, [by_rank[rank] for rank in range(n + 1, 2 * n)], ssh_config(), shape, here.run_id
    )
    return MeasuringLoop(
        plan,
        here.open(),
        place_for(here, shape, gang),
        ProgressReporter(len(plan.batches[number].samples)),
    )

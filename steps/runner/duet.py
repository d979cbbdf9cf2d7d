"""Two variants of a suite side by side on the same nodes: one measures while the other is idle.

Rank 0 leads variant A and gives both variants their turns. The first pod of variant B leads its own
gang, one round for each order. The CPU time of the idle pods is read before and after each round:
it is in the rows of the round, and too much makes them invalid.
"""

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from perfdag.benchmark import registry
from perfdag.kube.client import KubeError
from perfdag.outcome import Infrastructure
from perfdag.plan.ab import Duet, positions, stored_duet
from perfdag.plan.plan import Plan
from perfdag.results import missing_reason
from perfdag.results.runs import variants
from perfdag.results.samples import stored_samples
from perfdag.steps.measure import MeasuringLoop
from perfdag.steps.runner import budget
from perfdag.steps.runner.credentials import lead_config
from perfdag.steps.runner.end_reason import record_failed_attempt
from perfdag.steps.runner.gather import (
    GangUnavailable,
    Hosts,
    add_peers,
    by_rank,
    connect,
    own_host,
    wait_for_pods,
)
from perfdag.steps.runner.idle import IdleMeter, forget_unmarked, mark
from perfdag.steps.runner.limits import check_account
from perfdag.steps.runner.placement import forward, site_of
from perfdag.steps.runner.pod_context import PodContext
from perfdag.steps.runner.progress import ProgressReporter
from perfdag.steps.runner.quarantine import CrashHistory, known_crashes, skip_crashers
from perfdag.steps.site import GangLost
from perfdag.store.base import Store

ORDERS, ANSWERS = "orders", "answers"
SLACK = 120.0
"""Seconds beyond the longest time that the samples of a round may take."""


def load_duet(store: Store, plan: Plan) -> Duet:
    """Return the duet that a stored plan is one side of. Raises StoreError."""
    return stored_duet(*variants(store, plan))


def shared_crashes(duet: Duet, crashes: CrashHistory) -> CrashHistory:
    """Return the crashes of pairs: a point and its counterpart in the other variant share theirs.

    Pairs with a common point share theirs too: a crash does not tell which pair was measured.
    """
    groups: list[set[str]] = []
    for a, b in zip(duet.a.points, duet.b.points, strict=True):
        near = [group for group in groups if not group.isdisjoint({a.id, b.id})]
        groups = [group for group in groups if group not in near] + [{a.id, b.id}.union(*near)]
    shared: dict[str, list[str]] = {}
    for group in groups:
        if ends := [end for name in sorted(group) for end in crashes.get(name, ())]:
            shared |= dict.fromkeys(group, ends)
    return shared


def lead(
    context: PodContext, store: Store, plan: Plan, number: int, attempt: int, last: bool
) -> int:
    """Measure batch `number` of both variants; return 0, or EXIT_RETRYABLE or EXIT_REFUSED.

    Raises StoreError, KubeError.
    """
    duet = load_duet(store, plan)
    plans = [duet.a, duet.b]
    for variant in plans:
        check_account(context.account, variant, number)
        forget_unmarked(store, variant, variant.batches[number].samples)
    try:
        crashes = shared_crashes(duet, known_crashes(context, store, number, attempt))
        for variant in plans:
            skipped = skip_crashers(context, store, variant, number, crashes)
            mark(store, variant, list(skipped), None)
        drive_batch(context, store, duet, number, attempt)
        return 0
    except (GangUnavailable, GangLost, Infrastructure, KubeError) as error:
        name = f"batch {number}, attempt {attempt}"
        return record_failed_attempt(store, plans, number, name, last, error)


def drive_batch(context: PodContext, store: Store, duet: Duet, number: int, attempt: int) -> None:
    """Gather the gangs of both variants, measure the rounds and dismiss all peers."""
    shape_a, shape_b = duet.a.shape_of(number), duet.b.shape_of(number)
    count, run_id = shape_a.hosts.count, context.run_id
    pods = wait_for_pods(context, duet.a, shape_a, number, attempt, 2 * count)
    ranked = by_rank(pods)
    for rank in range(count):
        node_a, node_b = ranked[rank].node, ranked[count + rank].node
        if node_a != node_b:
            raise GangUnavailable(
                f"host {rank} of A is on {node_a} and of B on {node_b}: not side by side"
            )
    config = lead_config()
    gang_a, gang_b = Hosts([own_host(context, pods, shape_a)], pods), Hosts([], pods)
    measured = False
    try:
        add_peers(gang_a, [ranked[rank] for rank in range(1, count)], config, shape_a, run_id)
        pods_b = [ranked[count + rank] for rank in range(count)]
        connect(gang_b, pods_b, config, shape_b, run_id)
        forward(context, store, shape_a, number, gang_a)
        for plan in (duet.a, duet.b):
            missing_reason.forget_batch(store, plan.run_id, number)
        with gang_a.watched(), gang_b.watched():
            measure_rounds(context, store, duet, number, gang_a, gang_b)
        measured = True
    finally:
        gang_b.dismiss(measured)
        gang_a.dismiss(measured)


def measure_rounds(
    context: PodContext, store: Store, duet: Duet, number: int, gang_a: Hosts, gang_b: Hosts
) -> None:
    """Measure the rounds of a batch, the variants in turn, until the budget is spent."""
    plans = {"A": duet.a, "B": duet.b}
    progress = ProgressReporter(sum(len(plan.batches[number].samples) for plan in plans.values()))
    site = site_of(context, duet.a.shape_of(number), gang_a, duet.a.where.get("nodes"))
    loop = MeasuringLoop(duet.a, store, site, progress)
    deadline = budget.deadline(store, context.run_id, duet.a)
    for letter, repetition in [("A", 0), ("B", 0), *duet.rounds()]:
        plan = plans[letter]
        stored = stored_samples(store, plan.run_id)
        samples = [
            position
            for position in _samples_of_round(plan, number, repetition)
            if plan.key(position) not in stored
        ]
        if not samples:
            continue
        if deadline is not None and time.monotonic() >= deadline:
            reason = missing_reason.budget_spent(duet.a.budget or 0, number)
            for variant in plans.values():
                missing_reason.write(store, variant.run_id, reason)
            return
        meter = IdleMeter(gang_b.peers if letter == "A" else gang_a.hosts)
        if letter == "A":
            loop.measure(samples, number)
        else:
            answer = gang_b.peers[0].ask(str(repetition), patience(plan, samples))
            if answer != "measured":
                raise GangLost(f"variant B: {answer}")
            progress.count(len(samples))
        mark(store, plan, samples, meter.most())


def _samples_of_round(plan: Plan, number: int, repetition: int) -> list[int]:
    wanted = set(plan.batches[number].samples)
    return [position for position in positions(plan, repetition) if position in wanted]


def patience(plan: Plan, samples: Sequence[int]) -> float:
    """Return the seconds after which samples, with all their retries, must have ended."""
    seconds = SLACK
    for point in (plan.point_at(position) for position in samples):
        benchmark = registry.get(point.benchmark)
        params = benchmark.Params.model_validate(point.params)
        seconds += (1 + point.retries) * benchmark.longest(params, point.timeout)
    return seconds


def follow(context: PodContext, plan: Plan, number: int, attempt: int, home: Path) -> None:
    """Measure a round for each order, in a thread of the first pod of variant B.

    Orders and answers go through two named pipes in `home`.
    """
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name in (ORDERS, ANSWERS):
        (home / name).unlink(missing_ok=True)
        os.mkfifo(home / name)
    args = (context, plan, number, attempt, home)
    threading.Thread(target=_follow_orders, args=args, daemon=True).start()


def _follow_orders(context: PodContext, plan: Plan, number: int, attempt: int, home: Path) -> None:
    loop: MeasuringLoop | None = None
    while True:
        order = (home / ORDERS).read_text().strip()
        try:
            if loop is None:
                loop = loop_of_b(context, plan, number, attempt)
            loop.measure(_samples_of_round(plan, number, int(order)), number)
            answer = "measured"
        except Exception as error:  # the pod that gives the orders reports it: nobody else asks
            answer = " ".join(f"{type(error).__name__}: {error}".split())
        (home / ANSWERS).write_text(f"{answer}\n")


def loop_of_b(context: PodContext, plan: Plan, number: int, attempt: int) -> MeasuringLoop:
    """Return the measuring loop of variant B. Raises GangUnavailable, KubeError."""
    check_account(context.account, plan, number)
    shape = plan.shape_of(number)
    count = shape.hosts.count
    pods = wait_for_pods(context, plan, shape, number, attempt, 2 * count)
    gang, ranked = Hosts([own_host(context, pods, shape)], pods), by_rank(pods)
    peers = [ranked[rank] for rank in range(count + 1, 2 * count)]
    add_peers(gang, peers, lead_config(), shape, context.run_id)
    store = context.open()
    forward(context, store, shape, number, gang, 1)
    progress = ProgressReporter(len(plan.batches[number].samples))
    site = site_of(context, shape, gang, plan.where.get("nodes"))
    return MeasuringLoop(plan, store, site, progress)

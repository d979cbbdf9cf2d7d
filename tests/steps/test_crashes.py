"""Points that kill their pod, on a store in a folder: here a command kills its lead as the
kernel does where memory ends.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from unittest.mock import Mock

import pytest

from perfdag.hosts.local import LocalHost
from perfdag.plan import Batch, Plan, make_plan
from perfdag.results.collect import gather
from perfdag.results.samples import MissingReason, stored_samples, write_reason
from perfdag.steps.loop import GangLost
from perfdag.steps.pods import lead
from perfdag.steps.pods.context import EXIT_RETRYABLE
from perfdag.steps.pods.lead import GangPool, crashed_points
from perfdag.store.base import FolderStore
from perfdag.suite.load import parse_suite

from .test_duet import duet_of
from .test_plan_step import place

KILLS = "[sh, -c, 'kill -9 $PPID']"
LOST = "2 pods were lost while they measured this point"


@pytest.fixture(autouse=True)
def _complete_gangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        lead, "assembled", lambda *_: contextlib.nullcontext(GangPool(hosts=[LocalHost()]))
    )


def in_a_process(work: Callable[[], int]) -> int | None:
    """The exit code of work in a process of its own, None if it was killed."""
    child = os.fork()
    if not child:
        code = 99
        try:
            code = work()
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    if not os.WIFSIGNALED(status):
        return os.WEXITSTATUS(status)
    assert os.WTERMSIG(status) == signal.SIGKILL
    return None


def attempts(store: FolderStore, plan: Plan) -> list[int | None]:
    """The exit codes of three attempts at the first batch."""
    here = place(plan.run_id)
    return [
        in_a_process(lambda: lead.lead(here, store, plan, 0, number))  # noqa: B023
        for number in range(3)
    ]


def suite(good: int, bad: int, repetitions: int) -> Plan:
    fine = [
        f"  - {{benchmark: command, name: good{each}, params: {{argv: ['true', '{each}']}}}}\n"
        for each in range(good)
    ]
    kills = [
        (
            f"  - {{benchmark: command, name: bad{each}, params: {{argv: {KILLS}, expected: "
            f"{each + 1}}}}}\n"
        )
        for each in range(bad)
    ]
    entries = "".join(fine + kills)
    text = f"name: s\nrepetitions: {repetitions}\nentries:\n{entries}"
    return in_one_batch(make_plan(parse_suite(text)))


def in_one_batch(plan: Plan) -> Plan:
    plan.batches = [Batch(0, [*range(len(plan.order))], 0.0)]
    return plan


def errors(store: FolderStore, plans: Sequence[Plan]) -> dict[str, set[tuple[str, str | None]]]:
    """Status and error of the rows of each entry."""
    result: dict[str, set[tuple[str, str | None]]] = {}
    for plan in plans:
        for row in gather(store, plan)[0].to_pylist():
            result.setdefault(row["entry"], set()).add((row["status"], row["error"]))
    result.pop("canary", None)
    return result


def test_a_point_that_kills_its_pod_twice_is_failed_and_the_others_are_measured(
    store: FolderStore,
) -> None:
    plan = suite(3, 1, 3)
    assert attempts(store, plan) == [None, None, 0]
    rows = errors(store, [plan])
    assert rows.pop("bad0") == {("failed", LOST)}
    assert set(rows) == {"good0", "good1", "good2"}
    assert all(found == {("ok", None)} for found in rows.values())


def test_rows_tell_which_sample_was_in_flight_when_the_last_pod_was_lost(
    store: FolderStore,
) -> None:
    plan = suite(0, 2, 1)
    assert attempts(store, plan) == [None, None, None]
    rows = [row for row in gather(store, plan)[0].to_pylist() if row["entry"] != "canary"]
    first, second = sorted(rows, key=lambda row: row["order_index"])
    assert (first["status"], first["error"]) == ("failed", LOST)
    assert second["error"] == "in flight when its pod ended (attempt 3 on node)"
    assert (second["status"], second["attempt"], second["nodes"]) == ("failed", 3, ["node"])


@pytest.mark.parametrize(
    "change", ["one.env.X=x", "bad.expected=2"], ids=["another point", "the point itself"]
)
def test_a_point_that_kills_the_pods_of_variants_leaves_the_others_of_both(
    store: FolderStore, change: str
) -> None:
    text = (
        f"name: s\nentries:\n  - {{benchmark: command, name: one, params: {{argv: ['true']}}}}\n"
        f"  - {{benchmark: command, name: bad, params: {{argv: {KILLS}}}}}\n"
    )
    duet = duet_of(text, b=(change,))
    for plan in map(in_one_batch, (duet.a, duet.b)):
        store.put(f"runs/{plan.run_id}/plan.json", plan.dump())
    assert attempts(store, duet.a) == [None, None, 0], "two pods for the pair"
    assert errors(store, [duet.a, duet.b]) == {"one": {("ok", None)}, "bad": {("failed", LOST)}}


@pytest.mark.parametrize(("end", "counts"), [(GangLost("a peer"), True), (SystemExit(75), False)])
def test_a_lost_gang_counts_and_a_pod_that_was_told_to_end_does_not(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch, end: BaseException, counts: bool
) -> None:
    plan = suite(1, 0, 2)
    monkeypatch.setattr("perfdag.steps.loop.Sampler.measure", Mock(side_effect=end))
    for attempt in range(2):
        with contextlib.suppress(SystemExit):
            assert lead.lead(place(plan.run_id), store, plan, 0, attempt) == EXIT_RETRYABLE
    assert crashed(store, plan) == ({plan.points[0].id} if counts else set())


def crashed(store: FolderStore, plan: Plan, batch: int = 0) -> set[str]:
    stored = {plan.run_id: stored_samples(store, plan.run_id)}
    return crashed_points(store, [plan], batch, stored)


def test_a_sample_that_another_attempt_stored_is_no_crash(store: FolderStore) -> None:
    plan = suite(1, 0, 2)
    for attempt in (1, 2):
        names = (plan.points[0].key(1),)
        write_reason(store, plan.run_id, MissingReason("sample", "failed", "x", 0, names, attempt))
    assert crashed(store, plan) == {plan.points[0].id}
    assert crashed(store, plan, 1) == set(), "of another batch"
    store.put(f"runs/{plan.run_id}/parts/{plan.points[0].key(1)}.json", b"{}")
    assert crashed(store, plan) == set()

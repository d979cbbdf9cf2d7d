"""Points that kill their pod, on a store in a folder: here a command kills its lead as the
kernel does where memory ends.
"""

import contextlib
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from unittest.mock import Mock

import pytest

from perfdag.hosts.local import LocalHost
from perfdag.plan.plan import Batch, Plan, make_plan
from perfdag.results.collect import gather
from perfdag.results.samples import stored_reasons, stored_samples
from perfdag.steps.loop import GangLost
from perfdag.steps.pods import lead
from perfdag.steps.pods.gather import Hosts
from perfdag.steps.pods.lead import ProgressReporter, UnderWay, crashes
from perfdag.store.base import FolderStore
from perfdag.suite.load import parse_suite

from .test_duet import duet_of
from .test_plan_step import place

KILLS = "[sh, -c, 'kill -9 $PPID']"
LOST = "2 pods were lost while they measured this point"


@pytest.fixture(autouse=True)
def _complete_gangs(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = Hosts([LocalHost()], {})
    monkeypatch.setattr(lead, "assembled", lambda *_: contextlib.nullcontext(hosts))


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
    assert (first["status"], first["error"], first["attempt"]) == ("failed", LOST, 2)
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


def lost_pods(store: FolderStore, plan: Plan, batch: int) -> Counter[int]:
    return crashes(store, plan, batch, stored_samples(store, plan.run_id))


@pytest.mark.parametrize(("end", "counts"), [(GangLost("a peer is gone"), 1), (SystemExit(75), 0)])
def test_a_lost_gang_counts_and_a_pod_that_was_told_to_end_does_not(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch, end: BaseException, counts: int
) -> None:
    plan = suite(1, 0, 2)

    def measure(_: object, __: object, ___: object, ____: int, listeners: list[UnderWay]) -> None:
        listeners[0].started(plan.points[0], 1)
        listeners[0].finished(plan.points[0], Mock(repetition=1, status="ok", error=None, rows=[]))
        listeners[0].started(plan.points[0], 2)
        raise end

    monkeypatch.setattr(lead, "measure_batch", measure)
    monkeypatch.setattr(lead, "STOP_SECONDS", 0.0)
    with contextlib.suppress(SystemExit):
        lead.lead(place(plan.run_id), store, plan, 0, 0)
    lost = lost_pods(store, plan, 0)
    assert lost[0] == counts


def test_a_gang_whose_pods_are_told_to_end_one_after_the_other_has_no_reason(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(*_: object) -> None:
        threading.Timer(0.2, signal.raise_signal, [signal.SIGTERM]).start()
        raise GangLost("the peer on n-2 is gone")

    plan = suite(1, 0, 2)
    monkeypatch.setattr(lead, "measure_batch", measure)
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
    try:
        with pytest.raises(SystemExit):
            lead.lead(place(plan.run_id), store, plan, 0, 0)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not stored_reasons(store, plan.run_id)


def test_a_sample_that_another_attempt_stored_is_no_crash(store: FolderStore) -> None:
    plan = suite(1, 0, 2)
    under_way = UnderWay(place(), store, plan, 0, 0, ProgressReporter(2))
    under_way.started(plan.points[0], 1)
    assert lost_pods(store, plan, 0)[0] == 1
    assert lost_pods(store, plan, 1)[0] == 0, "of another batch"
    store.put(f"runs/{plan.run_id}/parts/{plan.points[0].key(1)}.json", b"{}")
    assert lost_pods(store, plan, 0)[0] == 0

"""Points that kill their pod, on a store in a folder: here a command kills its lead as the
kernel does where memory ends.
"""

import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfdag.hosts.local import LocalHost
from perfdag.plan.ab import positions
from perfdag.plan.plan import Plan, make_plan
from perfdag.results.samples import SampleRecord, read_sample, sample_key, stored_samples
from perfdag.steps.measure import MeasuringLoop
from perfdag.steps.runner import duet, gang, idle, progress, quarantine
from perfdag.steps.runner.gather import Hosts
from perfdag.steps.runner.progress import ProgressReporter, UnderWay
from perfdag.steps.runner.quarantine import killed, known_crashes
from perfdag.steps.site import Site
from perfdag.store.folder import FolderStore
from perfdag.suite.load import parse_suite
from tests.fakes.api_server import ApiServer

from .objects import gang_pod
from .test_duet import duet_of
from .test_plan_step import place

OOM = {"exitCode": 137, "reason": "OOMKilled"}
SPEC = {"containers": [{"name": "main", "resources": {"limits": {"memory": "300Mi"}}}]}
KILLS = "[sh, -c, 'kill -9 $PPID']"


def ended_pod(
    state: dict[str, Any], message: str = "", attempt: int = 0, rank: int = 0
) -> dict[str, Any]:
    """A pod whose main container ended with this state and message."""
    main = {"name": "main", "state": {"terminated": {"exitCode": 0, "message": message, **state}}}
    return gang_pod({"phase": "Failed", "containerStatuses": [main]}, rank, attempt) | {
        "spec": SPEC
    }


class Cluster:
    """The pods of a batch as the API tells of them; each attempt at the batch is a process,
    which a sample may kill.
    """

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pods: list[dict[str, Any]] = []
        server = ApiServer()
        server.on("GET .*/pods", lambda _: {"metadata": {}, "items": self.pods})
        self.message = tmp_path / "termination-log"
        self.store = FolderStore(str(tmp_path / "store"))
        monkeypatch.setattr(progress, "TERMINATION_MESSAGE", self.message)
        monkeypatch.setattr(quarantine, "Kube", server.client)

        hosts = Hosts([LocalHost()], {})
        monkeypatch.setattr(gang, "assembled", lambda *_: contextlib.nullcontext(hosts))

    def attempt(
        self, number: int, measure: Callable[[int], int], state: dict[str, Any]
    ) -> int | None:
        """The exit code of an attempt, None of one that was killed, whose pod then is in the API
        with that state.
        """
        self.message.write_text("")
        child = os.fork()
        if not child:
            code = 99
            try:
                code = measure(number)
            finally:
                os._exit(code)
        status = os.waitpid(child, 0)[1]
        if not os.WIFSIGNALED(status):
            return os.WEXITSTATUS(status)
        assert os.WTERMSIG(status) == signal.SIGKILL
        if state:
            self.pods.append(ended_pod(state, self.message.read_text(), number))
        return None


def parts_of(cluster: Cluster, plan: Plan) -> list[SampleRecord]:
    names = sorted(
        name for name in stored_samples(cluster.store, plan.run_id) if not name.startswith("canary")
    )
    return [read_sample(cluster.store.get(sample_key(plan.run_id, name))) for name in names]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(tmp_path, monkeypatch)


def suite(good: int, kills: int, repetitions: int) -> Plan:
    fine = [
        f"  - {{benchmark: command, name: good{each}, params: {{argv: ['true', '{each}']}}}}\n"
        for each in range(good)
    ]
    bad = [
        (
            f"  - {{benchmark: command, name: bad{each}, params: {{argv: {KILLS}, expected: "
            f"{each + 1}}}}}\n"
        )
        for each in range(kills)
    ]
    return make_plan(
        parse_suite(f"name: s\nrepetitions: {repetitions}\nentries:\n{''.join(fine + bad)}")
    )


@pytest.mark.parametrize(("good", "kills", "repetitions"), [(7, 1, 3), (6, 2, 3)])
def test_a_point_that_kills_its_pod_costs_only_its_own_samples(
    cluster: Cluster, good: int, kills: int, repetitions: int
) -> None:
    plan = suite(good, kills, repetitions)
    codes = [
        cluster.attempt(
            each,
            lambda number: gang.lead(place(), cluster.store, plan, 0, number, number == 2),
            OOM,
        )
        for each in range(3)
    ]
    assert codes == [None, None, 0 if kills == 1 else None]
    parts = parts_of(cluster, plan)
    assert len([part for part in parts if part.status == "ok"]) == good * repetitions
    failed = [part.error for part in parts if part.status == "failed"]
    why = (
        "2 gangs ended while this point was measured, so it is measured no more: OOMKilled: "
        "container main passed its memory limit of 300Mi"
    )
    assert failed == ([why] * repetitions if kills == 1 else [])


@pytest.mark.parametrize(
    ("repetitions", "state"),
    [
        pytest.param(3, {}, id="the pods of the last attempt are gone: all of the point goes last"),
        pytest.param(2, {"exitCode": 75}, id="a pod that ended in order is not the fault"),
    ],
)
def test_a_pod_that_was_deleted_or_ended_in_order_is_not_the_fault_of_its_sample(
    cluster: Cluster, repetitions: int, state: dict[str, Any]
) -> None:
    plan = suite(2, 1, repetitions)
    measure = lambda number: gang.lead(place(), cluster.store, plan, 0, number, False)  # noqa: E731
    assert [cluster.attempt(each, measure, state) for each in range(2)] == [None, None]
    assert [part.status for part in parts_of(cluster, plan)] == ["ok"] * (2 * repetitions)


def test_what_is_known_outlives_the_pods_and_is_of_one_workflow(cluster: Cluster) -> None:
    id_of = suite(0, 1, 1).points[0].id
    cluster.pods = [ended_pod(OOM, f"measuring x (1/3) [{id_of}-1]")]
    assert known_crashes(place(), cluster.store, 0, 0) == {}
    once = {id_of: ["OOMKilled: container main passed its memory limit of 300Mi"]}
    assert known_crashes(place(), cluster.store, 0, 1) == once
    cluster.pods = []
    assert known_crashes(place(), cluster.store, 0, 2) == once
    assert known_crashes(replace(place(), workflow_uid="of-a-resume"), cluster.store, 0, 2) == {}
    assert known_crashes(place(), cluster.store, 1, 2) == {}


def test_a_peer_that_is_killed_tells_of_the_sample_that_its_lead_measured() -> None:
    one, two = "00000000000000aa", "00000000000000bb"
    lead = ended_pod({"exitCode": 75}, f"measuring x [{one}-1 {two}-1]")
    peer = ended_pod(OOM, rank=1)
    why = "OOMKilled: container main passed its memory limit of 300Mi"
    assert killed([lead, peer]) == ([one, two], why)
    assert killed([lead]) is None
    assert killed([ended_pod(OOM)]) is None, "between two samples"
    # what Argo's executor makes of being told to end; it stays for a while: Argo has a finalizer
    deleted = ended_pod({"exitCode": 137}, f"measuring x [{one}-1]")
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert killed([deleted]) is None
    evicted = ended_pod({"exitCode": 137}, f"measuring x [{one}-1]")
    storage = "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi."
    evicted["status"] |= {"reason": "Evicted", "message": storage}
    assert (killed([evicted]) or [])[0] == [one]


def test_the_message_of_the_container_is_what_is_measured_now(cluster: Cluster) -> None:
    first, second = suite(2, 0, 2).points
    under_way, message = UnderWay(), cluster.message
    under_way.add(first, 2)
    assert not message.exists(), "outside of a pod nobody reads it"
    message.write_text("")
    for change, point, expected in (
        (under_way.add, first, f"measuring good0 (2/2) [{first.id}-2]"),
        (
            under_way.add,
            second,
            f"measuring good0 (2/2) and 1 beside it [{first.id}-2 {second.id}-2]",
        ),
        (under_way.remove, first, f"measuring good1 (2/2) [{second.id}-2]"),
        (under_way.remove, second, ""),
    ):
        change(point, 2)
        assert message.read_text() == expected


@pytest.mark.parametrize(
    "change", ["one.env.X=x", "bad.expected=2"], ids=["another point", "the point itself"]
)
def test_a_point_that_kills_the_pods_of_variants_leaves_the_others_of_both(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    text = (
        f"name: s\nentries:\n  - {{benchmark: command, name: one, params: {{argv: ['true']}}}}\n"
        f"  - {{benchmark: command, name: bad, params: {{argv: {KILLS}}}}}\n"
    )
    result = duet_of(text, b=(change,))
    assert (result.a.points[1].id == result.b.points[1].id) == change.startswith("one")
    for plan in (result.a, result.b):
        cluster.store.put(f"runs/{plan.run_id}/plan.json", plan.dump())
    here = place(result.a.run_id)

    def drive(*_: Any) -> None:
        """The rounds of both variants in turn, as their leads would measure them."""
        for letter, repetition in result.rounds():
            plan = result.a if letter == "A" else result.b
            expected = set(plan.batches[0].samples)
            lead = MeasuringLoop(
                plan, cluster.store, Site(hosts_for=lambda _: [LocalHost()]), ProgressReporter(1)
            )
            samples = [each for each in positions(plan, repetition) if each in expected]
            lead.measure(samples)
            idle.mark(
                cluster.store, plan, [each for each in samples if plan.order[each][0] == 0], 0.0
            )

    monkeypatch.setattr(duet, "drive_batch", drive)
    codes = [
        cluster.attempt(
            each,
            lambda number: duet.lead(here, cluster.store, result.a, 0, number, number == 2),
            OOM,
        )
        for each in range(3)
    ]
    assert codes == [None, None, 0], "two gangs for the pair"
    parts = [part for plan in (result.a, result.b) for part in parts_of(cluster, plan)]
    assert [part.status for part in parts if "gangs ended" not in (part.error or "")] == ["ok"] * 32
    given_up = [part for part in parts if part.status == "failed"]
    assert len(given_up) == 32
    assert {part.facts["idle_cpus"] for part in given_up} == {None}, (
        "another attempt would measure it again"
    )


def test_pairs_that_share_a_point_are_counted_together() -> None:
    """Which of them was measured is not told: a point that kills in one pair is never half of
    the other.
    """
    text = "name: s\nentries:\n" + "".join(
        f"  - {{benchmark: command, name: {name}, params: {{argv: ['true'], env: {{X: '{x}'}}}}}}\n"
        for name, x in (("a", 1), ("b", 2), ("c", 9))
    )
    result = duet_of(text, a=("a.env.X='1'",), b=("a.env.X='2'", "b.env.X='3'"))
    first, second, third = zip(result.a.points, result.b.points, strict=True)
    shared = {each.id for each in (*first, *second)}
    assert (len(shared), third[0].id) == (3, third[1].id)
    together = duet.shared_crashes(result, {first[0].id: ["x"], first[1].id: ["y"]})
    assert {point: len(each) for point, each in together.items()} == dict.fromkeys(shared, 2)
    assert duet.shared_crashes(result, {third[0].id: ["x"]}) == {third[0].id: ["x"]}

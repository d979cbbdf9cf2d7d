"""Nodes, their programs and Argo's controller die under a run: no sample is lost or counted twice, and the lock is free.

Other runs would feel the faults, so nothing runs beside these tests.
"""

import contextlib
import logging
import os
import random
import time
import uuid
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from perfdag.kube.client import Kube, Object, run_with_client
from perfdag.steps.scale.cluster import kwok_nodes, simulation

from . import faults
from .conftest import Namespace, installed, sleeps

LIMIT = 180.0
"""Seconds from the moment when a node is NotReady until what it held goes on elsewhere."""
SAMPLES = 40
"""Samples of a run that still measures, after a minute or two, when its node is lost."""
SAMPLES_A_FAULT = 15
VMIS = f"perfdag-vmi-{uuid.uuid4().hex[:6]}"
STEADY = f"""\
name: steady
entries:
  - benchmark: vmi-steady
    params: {{count: 3, churn: 1, pause: 5s, duration: 600s, namespace: {VMIS}}}
"""
"""A benchmark with rights: its pod has a grace period to delete what it made."""
ROLES = {
    "peer": ("peer", "perfdag/rank=1"),
    "lead": ("lead", "perfdag/rank=0"),
    "lead with rights": ("rights", "perfdag/rank=0"),
    "watchdog": ("lead", "perfdag/role=watchdog"),
    "plan": ("plan", "perfdag/role=plan"),
    "finish": ("finish", "perfdag/role=finish"),
}
"""The pods that a lost node held: their run and their labels."""
log = logging.getLogger(__name__)

pytestmark = [pytest.mark.argo, pytest.mark.slow]


@pytest.fixture
def places() -> Iterator[dict[str, Namespace]]:
    """A namespace for each run, with a lock of its own, so that all run at once."""

    async def simulate(client: Kube) -> None:
        await kwok_nodes.make_nodes(client, 1, 8)
        assert await kwok_nodes.nodes_ready(client, 1)
        await simulation.install(client, "kubevirt")

    async def remove(client: Kube) -> None:
        await client.delete(await client.resource("v1", "Namespace"), VMIS)

    run_with_client(simulate)
    allow = {"rights": ("--allow", f"vmi-steady={VMIS}")}
    with contextlib.ExitStack() as stack:
        yield {
            name: stack.enter_context(installed("restricted", *allow.get(name, ())))
            for name in ("peer", "lead", "rights", "plan", "finish")
        }
    run_with_client(remove)


def pods(place: Namespace, workflow: str, labels: str) -> list[Object]:
    """The pods of a run with these labels that are on a node, in the order of their creation."""
    found = place.objects("Pod", labels=f"workflows.argoproj.io/workflow={workflow},{labels}")
    placed = [pod for pod in found if pod["spec"].get("nodeName")]
    return sorted(placed, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))


def not_ready_since(bench: Namespace, node: str) -> float | None:
    """When Kubernetes called a node NotReady, in seconds since the epoch."""
    [found] = [each for each in bench.objects("Node") if each["metadata"]["name"] == node]
    ready = next(each for each in found["status"]["conditions"] if each["type"] == "Ready")
    if ready["status"] == "True":
        return None
    return datetime.fromisoformat(ready["lastTransitionTime"]).timestamp()


@faults.needs_a_link
def test_what_a_lost_node_held_goes_on_elsewhere_within_three_minutes(
    places: dict[str, Namespace], tmp_path: Path
) -> None:
    """The node stays lost until all runs are over. It held a peer, a lead, a watchdog, a plan and a finish step."""
    anywhere = places["peer"]
    first, *others = anywhere.nodes()  # the first node has the API server, and is never lost
    assert len(others) >= 2, "needs three nodes"
    suite = sleeps(tmp_path, points=SAMPLES, seconds=4.0)
    suite.write_text(suite.read_text().replace("{count: 2}", "{count: 2, placement: spread}"))
    names = {}
    with faults.cordoned(first):
        names["peer"] = places["peer"].submit(suite)
        lost = faults.node_of(places["peer"], names["peer"])
    alone = sleeps(tmp_path, points=SAMPLES, seconds=4.0, hosts=1)
    with faults.cordoned(lost):
        names["finish"] = places["finish"].submit(alone)
        faults.node_of(places["finish"], names["finish"], rank=0)
        places["finish"].under_way(places["finish"].run_id(names["finish"]), 1)
    (tmp_path / "short").mkdir()
    short = sleeps(tmp_path / "short", points=1, hosts=1)
    rest = [node for node in anywhere.nodes() if node != lost]
    with faults.cordoned(*rest):
        names["lead"] = places["lead"].submit(alone)
        assert faults.node_of(places["lead"], names["lead"], rank=0) == lost
        (tmp_path / "steady.yaml").write_text(STEADY)
        names["rights"] = places["rights"].submit(tmp_path / "steady.yaml")
        assert faults.node_of(places["rights"], names["rights"], rank=0) == lost
        places["lead"].under_way(places["lead"].run_id(names["lead"]), 1)

        async def stop(client: Kube) -> None:
            kind = await client.resource("argoproj.io/v1alpha1", "Workflow")
            body = {"spec": {"shutdown": "Stop"}}
            await client.patch(kind, names["finish"], body, places["finish"].name)

        run_with_client(stop)
        places["finish"].until(
            lambda: pods(places["finish"], names["finish"], "perfdag/role=finish"),
            90,
            "finish step",
        )
        faults.command("PERFDAG_TEST_CUT", lost)
        try:  # Kubernetes takes the node for alive, and places the plan step there
            names["plan"] = places["plan"].submit(short)
            places["plan"].until(
                lambda: pods(places["plan"], names["plan"], "perfdag/role=plan"), 40, "plan step"
            )
        except BaseException:
            faults.command("PERFDAG_TEST_HEAL", lost)
            raise
    took: dict[str, float] = {}
    try:
        uids = {
            role: pods(places[run], names[run], labels)[-1]["metadata"]["uid"]
            for role, (run, labels) in ROLES.items()
        }
        nodes = {
            role: pods(places[run], names[run], labels)[-1]["spec"]["nodeName"]
            for role, (run, labels) in ROLES.items()
        }
        assert nodes == dict.fromkeys(ROLES, lost)
        since = anywhere.until(lambda: not_ready_since(anywhere, lost), 120, "NotReady node")
        while ROLES.keys() - took.keys() and time.time() - since < LIMIT:
            for role in ROLES.keys() - took.keys():
                run, labels = ROLES[role]
                newest = pods(places[run], names[run], labels)[-1:]
                if (
                    newest
                    and newest[0]["metadata"]["uid"] != uids[role]
                    and newest[0]["status"]["phase"] != "Pending"
                ):
                    took[role] = time.time() - since
            time.sleep(1)
        log.info("seconds from NotReady: %s", {role: round(took[role]) for role in took})
        assert took.keys() == ROLES.keys(), f"not again within {LIMIT:g} s: {ROLES.keys() - took}"
        del names["rights"]  # it is deleted with its namespace
        for run, name in names.items():
            ended = places[run].watch(name)
            assert (ended.returncode == 0) == (run != "finish"), ended.stdout + ended.stderr
            assert faults.is_done(places[run], name)
        log.info("all runs were over %.0f s after NotReady", time.time() - since)
    finally:
        faults.command("PERFDAG_TEST_HEAL", lost)
    for run, samples in (("peer", SAMPLES), ("lead", SAMPLES), ("plan", 1)):
        places[run].assert_complete(places[run].run_id(names[run]), samples)
    rows = places["finish"].rows(places["finish"].run_id(names["finish"]))
    assert len({row["point"] for row in rows}) == SAMPLES
    missing = [row["error"] for row in rows if row["status"] != "ok"]
    assert missing
    assert all(missing), "rows without a reason"
    anywhere.until(lambda: not_ready_since(anywhere, lost) is None, 60, "healed node")


def endure(bench: Namespace, folder: Path, kinds: list[str], choice: random.Random) -> None:
    """Break these things one after the other under one run; each time it goes on measuring."""
    suite = sleeps(folder, points=SAMPLES_A_FAULT * len(kinds), extra="batch_time: 8s\n")
    suite.write_text(suite.read_text().replace("{count: 2}", "{count: 2, placement: spread}"))
    name = bench.submit(suite)
    run_id = bench.run_id(name)
    bench.under_way(run_id)
    for number, kind in enumerate(kinds, 1):
        assert not faults.is_done(bench, name), f"the run was over before fault {number}"
        node = faults.node_of(bench, name, choice.choice((0, 1)))
        stored = len(bench.stored(run_id))
        began = time.monotonic()
        faults.FAULTS[kind](bench, name, node)
        healed = time.monotonic()
        bench.until(
            lambda: len(bench.stored(run_id)) > stored or faults.is_done(bench, name),  # noqa: B023
            300,
            f"new sample after fault {number} ({kind}, {node})",
        )
        log.info(
            "fault %d: %s (%s), healed after %.0f s, a new sample %.0f s later",
            number,
            kind,
            node,
            healed - began,
            time.monotonic() - healed,
        )
    ended = bench.watch(name, timeout=1800)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    bench.assert_complete(run_id, SAMPLES_A_FAULT * len(kinds))
    assert faults.is_done(bench, name)


@faults.needs_programs
def test_killed_programs_and_a_drained_node_lose_nothing(bench: Namespace, tmp_path: Path) -> None:
    kinds = [kind for kind in faults.FAULTS if kind != "cut a link"]
    endure(bench, tmp_path, kinds, random.Random(0))


@faults.needs_a_link
@faults.needs_programs
@pytest.mark.skipif("PERFDAG_TEST_FAULTS" not in os.environ, reason="`make faults` runs this")
def test_random_faults_lose_nothing(bench: Namespace, tmp_path: Path) -> None:
    seed = int(os.environ.get("PERFDAG_TEST_SEED") or random.randrange(2**32))
    number = int(os.environ["PERFDAG_TEST_FAULTS"])
    log.info("%d faults, PERFDAG_TEST_SEED=%d", number, seed)
    choice = random.Random(seed)
    endure(bench, tmp_path, choice.choices([*faults.FAULTS], k=number), choice)

"""Nodes, their programs and Argo's controller die under a run: no sample is lost or counted twice,
and the lock is free.

Other runs would feel the faults, so nothing runs beside these tests.
"""

import contextlib
import logging
import os
import random
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import pytest

from perfdag.kube.client import Kube, Object, run_with_client
from perfdag.steps.scale import cluster as nodes
from tests import simulation

from . import faults
from .conftest import Namespace, installed, sleeps

LIMIT = 180.0
"""Seconds from the moment when a node is NotReady until what it held goes on elsewhere."""
PEER_SAMPLES, SAMPLES = 28, 14
"""Samples of 4 s: of the run that is first, and of a run that begins half a minute before its
node is lost.
"""
SAMPLES_A_FAULT, SAMPLES_A_BATCH = 16, 9
"""Samples of 1 s. Three faults may not hit one batch, which has three attempts: between two faults
as many samples are stored as a batch has.
"""
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
        await nodes.make_nodes(client, 1, 8)
        assert await nodes.ready_nodes(client, 1)
        await simulation.install(client, "kubevirt")

    async def remove(client: Kube) -> None:
        await client.delete("v1/Namespace", VMIS)

    run_with_client(simulate)
    names = ("peer", "lead", "rights", "plan", "finish")
    allow = {"rights": ("--allow", f"vmi-steady={VMIS}")}
    namespaces = [installed("restricted", *allow.get(name, ())) for name in names]
    with contextlib.ExitStack() as stack, ThreadPoolExecutor() as pool:
        yield dict(zip(names, pool.map(stack.enter_context, namespaces), strict=True))
    run_with_client(remove)


def pods(place: Namespace, workflow: str, labels: str) -> list[Object]:
    """The pods of a run with these labels that are on a node, in the order of their creation."""
    result = place.objects("Pod", labels=f"workflows.argoproj.io/workflow={workflow},{labels}")
    placed = [pod for pod in result if pod["spec"].get("nodeName")]
    return sorted(placed, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))


def not_ready_since(bench: Namespace, node: str) -> float | None:
    """When Kubernetes called a node NotReady, in seconds since the epoch."""
    [result] = [each for each in bench.objects("Node") if each["metadata"]["name"] == node]
    ready = next(each for each in result["status"]["conditions"] if each["type"] == "Ready")
    if ready["status"] == "True":
        return None
    return datetime.fromisoformat(ready["lastTransitionTime"]).timestamp()


@faults.needs_a_link
@faults.needs_programs
def test_what_a_lost_node_held_goes_on_elsewhere_within_three_minutes(
    places: dict[str, Namespace], bench: Namespace, tmp_path: Path
) -> None:
    """The node stays lost until all runs are over. It held a peer, a lead, a watchdog, a plan and a
    finish step.

    Meanwhile another run bears the other faults on the nodes that are left.
    """
    anywhere = places["peer"]
    first, *rest = anywhere.nodes()  # the first node has the API server, and is never lost
    assert len(rest) >= 2, "needs three nodes"
    suites = {name: tmp_path / name for name in places}
    for folder in suites.values():
        folder.mkdir()
    suites |= {
        "peer": sleeps(suites["peer"], PEER_SAMPLES, 4.0),
        "lead": sleeps(suites["lead"], SAMPLES, 4.0, hosts=1),
        "finish": sleeps(suites["finish"], PEER_SAMPLES, 4.0, hosts=1),
        "plan": sleeps(suites["plan"], 1, hosts=1),
        "rights": suites["rights"] / "steady.yaml",
    }
    suites["peer"].write_text(
        suites["peer"].read_text().replace("{count: 2}", "{count: 2, placement: spread}")
    )
    suites["rights"].write_text(STEADY)

    def submit(*runs: str) -> dict[str, str]:
        with ThreadPoolExecutor() as pool:
            workflows = pool.map(lambda run: places[run].submit(suites[run]), runs)
            return dict(zip(runs, workflows, strict=True))

    def newest(role: str) -> Object | None:
        run, labels = ROLES[role]
        return next(reversed(pods(places[run], names[run], labels)), None)

    with faults.cordoned(first):
        names = submit("peer", "finish")
        lost = faults.node_of(places["peer"], names["peer"])
        places["finish"].under_way(places["finish"].run_id(names["finish"]), 1)
    with contextlib.ExitStack() as healed:
        with faults.cordoned(*(node for node in anywhere.nodes() if node != lost)):
            names |= submit("lead", "rights")
            for run in ("rights", "lead"):
                faults.node_of(places[run], names[run], rank=0)
            places["lead"].under_way(places["lead"].run_id(names["lead"]), 1)
            stop(places["finish"], names["finish"])
            places["finish"].until(lambda: newest("finish"), 90, "finish step")
            healed.enter_context(faults.cut(lost))
            # Kubernetes takes the node for alive, and places the plan step there
            names |= submit("plan")
            places["plan"].until(lambda: newest("plan"), 40, "plan step")
        held = {role: newest(role) or {} for role in ROLES}
        assert {role: pod["spec"]["nodeName"] for role, pod in held.items()} == dict.fromkeys(
            ROLES, lost
        )
        since = anywhere.until(lambda: not_ready_since(anywhere, lost), 120, "NotReady node")
        others = [kind for kind in faults.FAULTS if kind != "cut a link"]
        pool = healed.enter_context(ThreadPoolExecutor(1))
        endured = pool.submit(endure, bench, tmp_path, others, random.Random(0))
        took: dict[str, float] = {}
        while (left := ROLES.keys() - took.keys()) and time.time() - since < LIMIT:
            for role in left:
                pod = newest(role)
                again = pod and pod["metadata"]["uid"] != held[role]["metadata"]["uid"]
                if pod and again and pod["status"]["phase"] != "Pending":
                    took[role] = time.time() - since
            time.sleep(1)
        log.info("seconds from NotReady: %s", {role: round(took[role]) for role in took})
        assert not left, f"not again within {LIMIT:g} s: {left}"
        del names["rights"]  # it is deleted with its namespace
        for run, name in names.items():
            result = places[run].watch(name)
            assert (result.returncode == 0) == (run != "finish"), result.stdout + result.stderr
            assert faults.is_done(places[run], name)
        endured.result()
        log.info("all runs were over %.0f s after NotReady", time.time() - since)
    for run, samples in (("peer", PEER_SAMPLES), ("lead", SAMPLES), ("plan", 1)):
        places[run].assert_complete(places[run].run_id(names[run]), samples)
    rows = places["finish"].rows(places["finish"].run_id(names["finish"]))
    assert len({row["point"] for row in rows}) == PEER_SAMPLES
    missing = [row["error"] for row in rows if row["status"] != "ok"]
    assert missing
    assert all(missing), "rows without a reason"
    # the kubelet's connections to the API server back off for up to two minutes
    anywhere.until(lambda: not_ready_since(anywhere, lost) is None, 180, "healed node")


def stop(place: Namespace, workflow: str) -> None:
    """End a run as `argo stop` does: its last step runs."""

    async def patch(client: Kube) -> None:
        kind = "argoproj.io/v1alpha1/Workflow"
        await client.patch(kind, workflow, {"spec": {"shutdown": "Stop"}}, place.name)

    run_with_client(patch)


def endure(bench: Namespace, folder: Path, kinds: list[str], choice: random.Random) -> None:
    """Break these things one after the other under one run; each time the batch is measured."""
    suite = sleeps(folder, points=SAMPLES_A_FAULT * len(kinds), extra="batch_time: 12s\n")
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
            lambda: (
                len(bench.stored(run_id)) >= stored + SAMPLES_A_BATCH  # noqa: B023
                or faults.is_done(bench, name)
            ),
            400,
            f"batch after fault {number} ({kind}, {node})",
        )
        log.info(
            "fault %d: %s (%s), healed after %.0f s, a batch measured %.0f s later",
            number,
            kind,
            node,
            healed - began,
            time.monotonic() - healed,
        )
    result = bench.watch(name, timeout=1800)
    assert result.returncode == 0, result.stdout + result.stderr
    bench.assert_complete(run_id, SAMPLES_A_FAULT * len(kinds))
    assert faults.is_done(bench, name)


@faults.needs_a_link
@faults.needs_programs
@pytest.mark.skipif("PERFDAG_TEST_FAULTS" not in os.environ, reason="`make faults` runs this")
def test_random_faults_lose_nothing(bench: Namespace, tmp_path: Path) -> None:
    seed = int(os.environ.get("PERFDAG_TEST_SEED") or random.randrange(2**32))
    number = int(os.environ["PERFDAG_TEST_FAULTS"])
    log.info("%d faults, PERFDAG_TEST_SEED=%d", number, seed)
    choice = random.Random(seed)
    endure(bench, tmp_path, choice.choices([*faults.FAULTS], k=number), choice)

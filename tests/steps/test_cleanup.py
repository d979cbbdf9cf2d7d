"""What finish deletes of the cluster, and what it leaves for `argo retry`."""

from dataclasses import replace
from typing import Any

import pytest

from perfdag.kube.client import Kube, run_with_client
from perfdag.plan.plan import Plan, make_plan
from perfdag.results.runs import ROUNDS
from perfdag.steps.pods.objects import (
    batch_objects,
    create,
    create_for_batches,
    leases_of_batches,
    measured_batches,
    releasable,
    release,
)
from perfdag.store.folder import FolderStore
from perfdag.suite.load import parse_suite
from perfdag.workflows.rights import FINISH, RUN, VOLCANO
from tests.fakes.api_server import ApiServer, Request

from .objects import workflow_of
from .test_plan_step import place

SUITE = """\
name: s
rounds_per_batch: 1
entries:
  - {benchmark: command, name: shared, repetitions: 2, volume: {access: ReadWriteMany}, params: {argv: ['true']}}
  - {benchmark: command, name: own, volume: {access: ReadWriteOnce}, params: {argv: ['true']}}
  - {benchmark: command, name: theirs, volume: {claim: data}, params: {argv: ['true']}}
  - {benchmark: iperf, name: path, network: {path: service}}
  - {benchmark: command, name: gang, hosts: {count: 2}, scheduler: volcano, params: {argv: ['true']}}
"""  # noqa: E501


def plan_with_batches() -> tuple[Plan, dict[str, list[int]]]:
    """A plan, and the batches of each of its entries."""
    plan = make_plan(parse_suite(SUITE), run_id=place().run_id)
    entries: dict[str, list[int]] = {}
    for number, batch in enumerate(plan.batches):
        entries.setdefault(plan.point_at(batch.samples[0]).entry, []).append(number)
    return plan, entries


def workflow(phases: dict[int, str]) -> dict[str, Any]:
    """A Workflow whose gangs ended so, by batch."""
    nodes: dict[str, Any] = {
        str(number): {
            "templateName": "measure",
            "phase": phase,
            "inputs": {"parameters": [{"name": "batch", "value": str(number)}]},
        }
        for number, phase in phases.items()
    }
    nodes["f"] = {"templateName": "finish", "phase": "Running"}
    return workflow_of(place(), nodes=nodes)


def leases(plan: Plan, *uids: str) -> set[str]:
    """The Leases of these Workflows that a run of this plan releases."""
    names = releasable(place(), plan)
    assert all(name.removeprefix("perfdag-").startswith(uids) for name in names), (
        "nothing of another Workflow"
    )
    return set(names)


def test_a_run_that_was_measured_leaves_no_claim_podgroup_or_key_pair() -> None:
    plan, entries = plan_with_batches()
    released = leases(plan, "uid")
    owners = {*entries["shared"], *entries["gang"], *entries["path"]}
    assert len(owners) == 4
    assert {"perfdag-uid", *(f"perfdag-uid-b{number}" for number in owners)} <= released
    first = len(plan.batches)
    numbers = {int(name.rpartition("-b")[2]) for name in released - {"perfdag-uid"}}
    own = {plan.batches[number].shape for number in owners}
    recheck = {
        first + repeat * len(plan.shapes) + shape for repeat in range(ROUNDS) for shape in own
    }
    assert numbers == owners | recheck


def test_what_argo_retry_would_measure_again_keeps_what_it_needs() -> None:
    plan, entries = plan_with_batches()
    done, failed = entries["shared"]
    ended = {
        done: "Succeeded",
        failed: "Failed",
        entries["gang"][0]: "Error",
        len(plan.batches): "Succeeded",
    }
    assert measured_batches(workflow(ended)) == {done, len(plan.batches)}
    not_owning = entries["own"][0]
    assert leases_of_batches(place(), plan, {done, not_owning}, "uid") == [f"perfdag-uid-b{done}"]


def test_a_run_that_was_resumed_clears_what_its_earlier_workflows_have() -> None:
    plan, entries = plan_with_batches()
    plan.where = {"workflow_uid": "uid", "before": {"old": {}}}
    released = leases(plan, "uid", "old")
    for uid in ("uid", "old"):
        assert f"perfdag-{uid}" in released
        for number in (*entries["shared"], *entries["gang"]):
            assert f"perfdag-{uid}-b{number}" in released


def grants(rules: list[dict[str, Any]], request: Request) -> bool:
    """Whether RBAC rules allow a request for objects of a namespace."""
    api, _, rest = request.path.partition("/namespaces/")
    group = api.removeprefix("/apis/").rpartition("/")[0] if "/apis/" in api else ""
    _, resource, *name = rest.split("/")
    verb = {"GET": "get" if name else "list", "POST": "create"}.get(
        request.method, request.method.lower()
    )
    return any(
        group in rule["apiGroups"] and resource in rule["resources"] and verb in rule["verbs"]
        for rule in rules
    )


def collect_garbage(server: ApiServer) -> None:
    """Delete what has an owner that is gone, as Kubernetes does."""
    leases = {lease["metadata"]["uid"] for lease in server.of("Lease")}
    for path, body in list(server.objects.items()):
        owners = body["metadata"].get("ownerReferences", [])
        if any(owner["kind"] == "Lease" and owner["uid"] not in leases for owner in owners):
            del server.objects[path]


def test_what_the_plan_step_creates_goes_with_its_leases_and_the_rights_of_the_steps(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, entries = plan_with_batches()
    done, failed = entries["shared"]
    server = ApiServer(workflow({done: "Succeeded", failed: "Failed"}), namespace="bench")
    monkeypatch.setattr("perfdag.kube.client.Kube", server.client)
    server.on("POST .*/services", lambda request: request.body["spec"].update(clusterIP="10.0.0.9"))
    key = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "perfdag-ssh-uid"}}
    numbers = range(len(plan.batches))

    async def prepare(kube: Kube) -> None:
        for _ in range(2):  # the plan step is repeated where its pod is lost
            await create(kube, place(), plan, [key])
            objects = {
                number: batch_objects(plan.shape_of(number), place(), number) for number in numbers
            }
            assert await create_for_batches(kube, place(), store, plan, objects) == {}

    def left() -> set[str]:
        collect_garbage(server)
        return {
            f"{body['kind']} {body['metadata']['name']}"
            for body in server.objects.values()
            if body["kind"] != "Workflow"
        }

    run_with_client(prepare)
    steps = [request for request in server.requests if "/namespaces/bench" in request.path]
    assert all(grants([*RUN, VOLCANO], request) for request in steps)
    owners = [
        owner["kind"]
        for kind in ("Secret", "PersistentVolumeClaim", "PodGroup", "Service")
        for body in server.of(kind)
        for owner in body["metadata"]["ownerReferences"]
    ]
    assert owners == ["Lease"] * 5
    assert {
        (owner["kind"], owner["uid"])
        for body in server.of("Lease")
        for owner in body["metadata"]["ownerReferences"]
    } == {("Workflow", "uid")}
    everything = left()
    assert len(everything) == 10, "five objects and their Leases"

    server.requests.clear()
    release(place(), plan, "Failed")
    gone = {f"{kind} perfdag-uid-b{done}" for kind in ("Lease", "PersistentVolumeClaim")}
    assert everything - left() == gone, "argo retry measures the other batch"
    release(place(), plan, "Succeeded")
    assert left() == set()
    steps = [request for request in server.requests if "/namespaces/bench" in request.path]
    assert all(grants(FINISH, request) for request in steps)
    assert {request.path.split("/")[-2] for request in steps if request.method == "DELETE"} == {
        "leases"
    }

    server.fail(".", 403, "you may not")
    release(replace(place(), workflow="w"), plan, "Succeeded")
    assert "you may not" in capsys.readouterr().err

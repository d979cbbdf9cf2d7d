"""What the plan step creates on the cluster, and finish deletes."""

from dataclasses import replace

import pytest

from perfdag.kube.client import Kube, run_with_client
from perfdag.plan import make_plan
from perfdag.steps.pods.plan import (
    batch_objects,
    create,
    create_for_batches,
    release,
)
from perfdag.store.base import FolderStore
from perfdag.suite.load import parse_suite
from perfdag.workflows.installation import Installation, supporting_objects
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
RULES = {
    body["metadata"]["name"]: body["rules"]
    for body in supporting_objects(Installation())
    if body["kind"] == "Role"
}


def grants(account: str, request: Request) -> bool:
    """Whether an account may make a request for objects of its namespace."""
    api, _, rest = request.path.partition("/namespaces/")
    group = api.removeprefix("/apis/").rpartition("/")[0] if "/apis/" in api else ""
    _, resource, *name = rest.split("/")
    verb = {"GET": "get" if name else "list", "POST": "create"}.get(
        request.method, request.method.lower()
    )
    return any(
        group in rule["apiGroups"] and resource in rule["resources"] and verb in rule["verbs"]
        for rule in RULES[account]
    )


def collect_garbage(server: ApiServer) -> None:
    """Delete what has an owner that is gone, as Kubernetes does."""
    leases = {lease["metadata"]["uid"] for lease in server.of("Lease")}
    for path, body in list(server.objects.items()):
        owners = body["metadata"].get("ownerReferences", [])
        if any(owner["kind"] == "Lease" and owner["uid"] not in leases for owner in owners):
            del server.objects[path]


def test_what_the_plan_step_creates_goes_with_its_lease_and_the_rights_of_the_steps(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = make_plan(parse_suite(SUITE), run_id=place().run_id)
    plan.where = {"workflow_uid": "uid", "before": {"old": {}}}
    server = ApiServer(workflow_of(place()), namespace="bench")
    monkeypatch.setattr("perfdag.kube.client.Kube", server.client)
    server.on("POST .*/services", lambda request: request.body["spec"].update(clusterIP="10.0.0.9"))
    key = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "perfdag-ssh-uid"}}
    numbers = range(len(plan.batches))

    async def prepare(kube: Kube) -> None:
        await create(kube, replace(place(), workflow_uid="old"), [key])  # of a run that was resumed
        for _ in range(2):  # the plan step is repeated where its pod is lost
            await create(kube, place(), [key])
            objects = {
                number: batch_objects(plan.shape_of(number), place(), number) for number in numbers
            }
            assert await create_for_batches(kube, place(), store, objects) == {}

    def left() -> set[str]:
        collect_garbage(server)
        return {
            f"{body['kind']} {body['metadata']['name']}"
            for body in server.objects.values()
            if body["kind"] != "Workflow"
        }

    run_with_client(prepare)
    steps = [request for request in server.requests if "/namespaces/bench" in request.path]
    assert all(grants("perfdag-run", request) for request in steps)
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
    } == {("Workflow", "uid"), ("Workflow", "old")}
    assert len(left()) == 7, "five objects and two Leases"
    [group] = server.of("PodGroup")
    [gang] = [number for number in numbers if plan.shape_of(number).scheduler == "volcano"]
    assert group["metadata"]["name"] == f"perfdag-uid-b{gang}", (
        "the annotation of the pods names it"
    )
    assert group["spec"]["minMember"] == 2

    server.requests.clear()
    release(place(), plan)
    assert left() == set()
    steps = [request for request in server.requests if "/namespaces/bench" in request.path]
    assert all(grants("perfdag-finish", request) for request in steps)
    assert {request.path.split("/")[-2] for request in steps if request.method == "DELETE"} == {
        "leases"
    }

    server.fail(".", 403, "you may not")
    release(place(), plan)
    assert "you may not" in capsys.readouterr().err

"""The objects of a validation: applied, watched, scaled and deleted."""

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from perfdag.steps.queue import deployment
from perfdag.steps.queue.deployment import (
    ClientAddress,
    DeploymentTarget,
    HttpLoad,
    deployed,
    sender,
    wait_idle,
)
from perfdag.steps.queue.manifests import manifests
from perfdag.steps.queue.scaling_benchmark import QueueScaling
from perfdag.steps.queue.spec import Queues
from tests.fakes.api_server import Answer, ApiServer, Request


def lasting(server: ApiServer, **looks: int) -> dict[str, int]:
    """Let what is deleted be there for so many more looks at it (by kind)."""

    def delete(request: Request) -> dict[str, Any]:
        server.objects[request.path]["metadata"]["deletionTimestamp"] = "now"
        return {}

    def look(request: Request) -> None:
        there = server.objects.get(request.path)
        if there and there["metadata"].get("deletionTimestamp"):
            looks[there["kind"]] = looks.get(there["kind"], 0) - 1
            if looks[there["kind"]] < 0:
                del server.objects[request.path]

    server.on("DELETE ", delete)
    server.on("GET ", look)
    return looks


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(deployment, "POLL_SECONDS", 0.001)
    scale = {"by": "cron"}
    queues = [
        {"name": "s", "command": ["sleep", "1"], "limit": 900},
        {"name": "c", "command": ["sleep", "1"], "autoscale": scale},
    ]
    objects = manifests(Queues.model_validate({"queues": queues}))
    path = tmp_path / "objects.yaml"
    path.write_text(yaml.safe_dump_all(objects))
    return str(path)


async def test_what_was_made_is_waited_for_and_what_is_not_gone_is_said(
    file: str, server: ApiServer
) -> None:
    looks = lasting(server, Deployment=20)
    reports = list[str]()
    async with deployed(server.client(), file, None, "perfdag-queue-s", 60, reports.append):
        assert "perfdag-queue-s" in server.names("Deployment")
    assert not server.objects
    assert len(reports) == 1
    assert reports[0].startswith("deleting the ")

    looks["Namespace"] = 10**9
    async with deployed(server.client(), file, None, "perfdag-queue-c", 0.5, reports.append):
        assert reports[-1] == (
            "not applied: CronJob perfdag-queue-c, which would scale perfdag-queue-c while "
            "it is validated"
        )
    assert reports[-1] == "not gone 0.5 s after they were deleted: Namespace perfdag-queue"


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("SealedSecret", {"encryptedData": {"key": "x"}, "template": {"metadata": {"name": "o"}}}),
        ("CronJob", {"schedule": "* * * * *", "jobTemplate": None}),
        ("CronJob", {"jobTemplate": {"spec": None}}),
        ("Template", {"template": "{{ .name }}"}),
        ("Anything", None),
    ],
)
async def test_any_object_is_applied_whatever_its_spec(
    kind: str, spec: Any, tmp_path: Path, server: ApiServer
) -> None:
    body = {
        "apiVersion": "v1",
        "kind": kind,
        "metadata": {"name": "o", "labels": None},
        "spec": spec,
    }
    (tmp_path / "o.yaml").write_text(yaml.safe_dump(body))
    server.serve(("v1", kind))
    async with deployed(
        server.client(), str(tmp_path / "o.yaml"), None, "o", 60, list[str]().append
    ):
        assert [(body["kind"], body["metadata"]["name"]) for body in server.objects.values()] == [
            (kind, "o")
        ]
    assert not server.objects


@pytest.mark.parametrize("metadata", [None, {}, {"generateName": "o-"}])
async def test_an_object_without_a_name_is_refused(
    metadata: Any, tmp_path: Path, server: ApiServer
) -> None:
    (tmp_path / "o.yaml").write_text(
        yaml.safe_dump({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    )
    with pytest.raises(
        ValueError, match=r"a ConfigMap has no metadata\.name; objects that are removed afterwards"
    ):
        async with deployed(
            server.client(), str(tmp_path / "o.yaml"), None, "o", 60, list[str]().append
        ):
            pass
    assert not server.objects


async def test_what_a_validation_before_deletes_is_waited_for(file: str, server: ApiServer) -> None:
    looks = lasting(server, Namespace=5)
    reports = list[str]()

    async def deploy_again(seconds: float) -> None:
        server.add(
            {
                "kind": "Namespace",
                "metadata": {"name": "perfdag-queue", "deletionTimestamp": "before"},
            }
        )
        async with deployed(
            server.client(), file, None, "perfdag-queue-s", seconds, reports.append
        ):
            assert "deletionTimestamp" not in server.of("Namespace")[0]["metadata"]

    await deploy_again(60)
    assert reports[0] == "waiting for Namespace perfdag-queue, which is being deleted, to be gone"
    looks["Namespace"] = 10**9
    with pytest.raises(
        ValueError, match=r"Namespace perfdag-queue is being deleted and not gone after 0.5 s"
    ):
        await deploy_again(0.5)
    assert len(server.objects) == 1


@pytest.mark.parametrize(("namespace", "where"), [(None, "there"), ("elsewhere", "elsewhere")])
async def test_the_client_may_be_of_another_namespace(
    namespace: str | None, where: str, server: ApiServer
) -> None:
    server.fail("/proxy/", 503, "no endpoints")
    secret = {"data": {"token": base64.b64encode(b"secret").decode()}}
    server.on(f"/namespaces/{where}/secrets/perfdag-queue-token", lambda _: Answer(200, secret))
    kube = server.client()
    target = DeploymentTarget(kube, "there", "d")
    load = HttpLoad(await sender(kube, ClientAddress(namespace=namespace), target))
    reports: list[str] = []
    await wait_idle(target, load, 1, reports.append)  # the verdict stands, whatever happened
    proxied = {
        (request.path, request.headers["X-Perfdag-Token"])
        for request in server.requests
        if "/proxy/" in request.path
    }
    assert proxied == {(f"/api/v1/namespaces/{where}/services/d-client:9996/proxy/stats", "secret")}
    assert "no endpoints" in reports[0]


NAME = "perfdag-queue-s"


API = {
    "Deployment": "apps/v1",
    "ReplicaSet": "apps/v1",
    "Job": "batch/v1",
    "CronJob": "batch/v1",
    "Pod": "v1",
}


def object_of(
    kind: str,
    name: str,
    owner: str = "",
    labels: dict[str, str] | None = None,
    phase: str = "Running",
) -> dict[str, Any]:
    """An object whose uid is its name, owned by the object of that uid."""
    owners = [{"uid": owner, "controller": True}] if owner else []
    status = {"phase": phase, "conditions": [{"type": "Ready", "status": str(phase == "Running")}]}
    meta = {"name": name, "uid": name, "labels": labels or {}, "ownerReferences": owners}
    return {"apiVersion": API[kind], "kind": kind, "metadata": meta, "status": status}


def queue_objects(by: str) -> list[dict[str, Any]]:
    """The Deployment of a queue and what starts its Jobs, each with its name as uid."""
    queue = {"name": "s", "command": ["sleep", "1"], "autoscale": {"by": by}}
    objects = [
        body
        for body in manifests(Queues.model_validate({"queues": [queue]}))
        if body["kind"] in ("Deployment", "CronJob", "ScaledJob")
    ]
    for body in objects:
        body["metadata"] |= {
            "uid": f"{body['kind']} {body['metadata']['name']}",
            "namespace": "there",
        }
    return objects


async def find_target(*objects: dict[str, Any]) -> tuple[DeploymentTarget, ApiServer]:
    server = ApiServer(*objects, namespace="there")
    server.fail("/horizontalpodautoscalers", 404, "this cluster has no autoscaling/v2")
    target = DeploymentTarget(server.client(), "there", NAME)
    await target.find()
    return target, server


async def test_a_cron_job_of_its_name_is_a_scaler_of_a_deployment() -> None:
    mine = {"app.kubernetes.io/name": NAME}
    target, server = await find_target(
        *queue_objects("cron"),
        object_of("ReplicaSet", "set", f"Deployment {NAME}", mine),
        object_of("Pod", "of-set", "set", mine),
        object_of("Pod", "of-nobody", "other", mine),
    )
    assert await target.scaler() == f"CronJob {NAME}"
    assert await target.ready() == 1
    listed = {
        body.path.rpartition("/")[2]
        for body in server.requests
        if "/there/" in body.path and NAME not in body.path
    }
    assert listed <= {kind for rule in QueueScaling.api.named for kind in rule["resources"]}


async def test_a_cron_job_of_no_queue_is_none() -> None:
    stranger = {**object_of("CronJob", NAME), "spec": {"jobTemplate": {}}}
    target, _ = await find_target(*queue_objects("none"), stranger)
    assert await target.scaler() is None

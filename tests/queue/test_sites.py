"""A Deployment as the validator sees it: its pods and its client."""

import base64
from typing import Any

import pytest

from perfdag.steps.queue.manifests import Queues, manifests
from perfdag.steps.queue.scaling_benchmark import QueueScaling
from perfdag.steps.queue.sites import DeploymentSite
from perfdag.steps.queue.validate import Replicas
from tests.fakes.api_server import Answer, ApiServer

NAME = "perfdag-queue-s"
LABELS = {"app.kubernetes.io/name": NAME}
STATS = "services/perfdag-queue-s-client:9996/proxy/stats"


def pod(name: str, phase: str = "Running", labels: dict[str, str] = LABELS) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": str(phase == "Running")}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "status": {"phase": phase, "conditions": conditions},
    }


def site_of(*objects: dict[str, Any]) -> tuple[DeploymentSite, ApiServer]:
    """The Deployment of a queue, and more objects, in a namespace `there`."""
    queue = {"name": "s", "command": ["sleep", "1"]}
    own = manifests(Queues.model_validate({"queues": [queue], "namespace": "there"}))
    deployments = (body for body in own if body["kind"] == "Deployment")
    server = ApiServer(*deployments, *objects, namespace="there")
    return DeploymentSite(server.client(), "there", NAME), server


async def test_pods_that_ended_and_those_of_others_are_not_counted() -> None:
    pods = [pod("a"), pod("b", "Pending"), pod("c", "Failed"), pod("d", labels={})]
    site, server = site_of(*pods)
    await site.find()
    assert await site.replicas() == Replicas(1, 1, 2)
    await site.scale(3)
    listed = {request.path.partition("/there/")[2].split("/")[0] for request in server.requests}
    granted = {kind.split("/")[0] for rule in QueueScaling.api.named for kind in rule["resources"]}
    assert listed - {""} <= granted


@pytest.mark.parametrize(("namespace", "where"), [(None, "there"), ("elsewhere", "elsewhere")])
async def test_the_client_may_be_of_another_namespace(namespace: str | None, where: str) -> None:
    site, server = site_of()
    secret = {"data": {"token": base64.b64encode(b"secret").decode()}}
    server.on(f"/namespaces/{where}/secrets/perfdag-queue-token", lambda _: Answer(200, secret))
    server.on(f"/namespaces/{where}/{STATS}", lambda _: Answer(200, {"pending": 3}))
    site = DeploymentSite(site.kube, "there", NAME, client_namespace=namespace)
    await site.find()
    assert await site.stats() == {"pending": 3}
    [asked] = [request for request in server.requests if "/proxy/" in request.path]
    assert asked.headers["X-Perfdag-Token"] == "secret"

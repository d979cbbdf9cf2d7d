"""Pods and scalers of a Deployment of backends, on a simulated API server."""

from typing import Any

import pytest

from perfdag.steps.queue.autoscale.run import require_scaler
from perfdag.steps.queue.autoscale_benchmark import QueueAutoscale
from perfdag.steps.queue.manifests.model import Queues
from perfdag.steps.queue.manifests.objects import manifests
from perfdag.steps.queue.scaling_benchmark import QueueScaling
from perfdag.steps.queue.validate.deployment import DeploymentTarget
from tests.fakes.api_server import ApiServer

NAME = "perfdag-queue-s"


API = {
    "Deployment": "apps/v1",
    "ReplicaSet": "apps/v1",
    "Job": "batch/v1",
    "CronJob": "batch/v1",
    "Pod": "v1",
}


def named(
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
    """The Deployment and the CronJob of a queue, each with its name as uid."""
    queue = {"name": "s", "command": ["sleep", "1"], "autoscale": {"by": by}}
    objects = [
        body
        for body in manifests(Queues.model_validate({"queues": [queue]}))
        if body["kind"] in ("Deployment", "CronJob")
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


async def test_pods_that_a_cron_job_starts_are_backends_too() -> None:
    mine, theirs = (
        {"app.kubernetes.io/name": NAME},
        {"app.kubernetes.io/name": f"{NAME}-cron", "app.kubernetes.io/part-of": "perfdag-queue"},
    )
    target, server = await find_target(
        *queue_objects("cron"),
        named("ReplicaSet", "set", f"Deployment {NAME}", mine),
        named("Pod", "of-set", "set", mine),
        named("Job", "job", f"CronJob {NAME}"),
        named("Job", "stranger", "CronJob of-others"),
        *(
            named("Pod", f"of-job-{phase}", "job", theirs, phase)
            for phase in ("Running", "Pending", "Succeeded")
        ),
        named("Pod", "of-stranger", "stranger", theirs),
    )
    assert await target.scaler() == f"CronJob {NAME}"
    await require_scaler(target)
    assert await target.ready() == 2
    listed = {
        body.path.rpartition("/")[2]
        for body in server.requests
        if "/there/" in body.path and NAME not in body.path
    }
    allowed = {kind for rule in QueueAutoscale.api for kind in rule["resources"]}
    assert listed <= allowed
    assert {"horizontalpodautoscalers", "cronjobs"} <= {
        kind for rule in QueueScaling.api for kind in rule["resources"]
    }


async def test_a_deployment_that_neither_an_autoscaler_nor_a_cron_job_scales_is_not_watched() -> (
    None
):
    stranger = {
        **named("CronJob", NAME),
        "spec": {"jobTemplate": {}},
    }  # of that name, and none of a queue
    with pytest.raises(ValueError, match="no HorizontalPodAutoscaler, and no CronJob of its name"):
        await require_scaler((await find_target(*queue_objects("none"), stranger))[0])

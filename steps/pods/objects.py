"""The objects that a run gets on the cluster: a key pair, shared claims, Services and PodGroups."""

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from perfdag.kube.client import Kube, KubeError, Object, run_with_client
from perfdag.kube.patch import LABEL, claim_spec, service_ports, services, shared_claim
from perfdag.plan.plan import Plan
from perfdag.results.runs import run_folder
from perfdag.shape import Shape
from perfdag.steps.pods.context import PodContext
from perfdag.steps.pods.peer import make_keys
from perfdag.store.base import Store

LEASES, LEASE_NAME = "coordination.k8s.io/v1", "perfdag-{}"
"""The Lease of a Workflow, with its uid in the name, which owns the objects.

The Workflow owns it. Kubernetes deletes the objects with the Lease, so the last step needs no right
to delete Secrets or claims."""
PORT_ATTEMPTS = 20
"""Attempts to find node ports that no other Service has."""
OTHER_PATH = "let it have one, or measure network.path: pod or host"
Refusals = dict[int, tuple[str, str]]
"""Batches that cannot be measured: the status of their samples, and why."""


def _object(api: str, kind: str, name: str, **fields: Any) -> Object:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name}, **fields}


def secret(context: PodContext) -> Object:
    """Return a Secret with a new key pair. Raises Infrastructure."""
    with tempfile.TemporaryDirectory() as folder:
        keys = make_keys(Path(folder))
    name = f"perfdag-ssh-{context.workflow_uid}"
    return _object("v1", "Secret", name, type="Opaque", stringData=keys)


def batch_objects(shape: Shape, context: PodContext, number: int) -> list[Object]:
    """Return the shared claim, the Services and the PodGroup of a batch.

    Most shapes need none.
    """
    uid, volume = context.workflow_uid, shape.volume
    objects = [*services(shape, context.run_id, (context.workflow, uid), number)]
    if volume and volume.batch_claim:
        name, spec = shared_claim(uid, str(number)), claim_spec(volume)
        objects.append(_object("v1", "PersistentVolumeClaim", name, spec=spec))
    if shape.scheduler == "volcano":
        name, spec = f"perfdag-{uid}-b{number}", {"minMember": shape.hosts.count}
        objects.append(_object("scheduling.volcano.sh/v1beta1", "PodGroup", name, spec=spec))
    return objects


def services_key(context: PodContext, number: int) -> str:
    """Return the key of the addresses and ports of the Services of a batch, by rank.

    Measuring pods have no right to read Services, and read the store.
    """
    return f"{run_folder(context.run_id)}/services/{context.workflow_uid}-b{number}.json"


async def create_for_batches(
    kube: Kube, context: PodContext, store: Store, objects: Mapping[int, list[Object]]
) -> Refusals:
    """Create the objects of batches; return the batches whose objects the API server refuses.

    Raises KubeError if another attempt may succeed, and StoreError.
    """
    refusals: Refusals = {}
    for number, bodies in objects.items():
        try:
            if created := await create(kube, context, bodies):
                store.put(services_key(context, number), orjson.dumps(created))
        except KubeError as error:
            if error.status in (0, 401, 429) or error.status >= 500:
                raise
            refusals[number] = ("skipped" if error.reason == "NoKind" else "failed", str(error))
    return refusals


async def create(kube: Kube, context: PodContext, bodies: list[Object]) -> dict[str, Object]:
    """Create objects of the run, owned by its Lease; return the Services by rank.

    Raises KubeError.
    """
    if not bodies:
        return {}
    uid = context.workflow_uid
    lease = _object(
        LEASES, "Lease", LEASE_NAME.format(uid), spec={"holderIdentity": context.run_id}
    )
    workflow = _object("argoproj.io/v1alpha1", "Workflow", context.workflow, uid=uid)
    lease = await _create(kube, context, lease, workflow)
    forwarded = {}
    for body in bodies:
        if body["kind"] == "Service":
            service = await _create_service(kube, context, body, lease)
            rank = body["spec"]["selector"][f"{LABEL}/rank"]
            ports = sorted({port["port"] for port in service["spec"]["ports"]})
            forwarded[rank] = {"address": service["spec"]["clusterIP"], "ports": ports}
        else:
            await _create(kube, context, body, lease)
    return forwarded


async def _create_service(kube: Kube, context: PodContext, body: Object, owner: Object) -> Object:
    """Create a Service with other ports until the API server has them free; return it.

    Raises KubeError, with the reason NoKind if the cluster cannot have a Service of this type.
    """
    spec, attempt = body["spec"], 0
    while True:
        try:
            return await _create(kube, context, body, owner)
        except KubeError as error:
            if "already allocated" not in error.message or attempt == PORT_ATTEMPTS:
                if error.status != 422 and "allocate a serviceIP" not in error.message:
                    raise
                why = f"the cluster has no Service of type {spec['type']} for network.path"
                message = f"{why}: {error.message}; {OTHER_PATH}"
                raise KubeError(422, "NoKind", message) from None
        seed, attempt = f"{body['metadata']['name']} {attempt}", attempt + 1
        spec["ports"] = service_ports(seed, spec["type"] == "NodePort")


async def _create(kube: Kube, context: PodContext, body: Object, owner: Object) -> Object:
    """Create an object, unless an earlier attempt of this step did; return a Lease or Service."""
    fields = owner | owner["metadata"]
    of = {key: fields[key] for key in ("apiVersion", "kind", "name", "uid")}
    body["metadata"] |= {"ownerReferences": [of], "labels": {"perfdag/run": context.run_id}}
    try:
        return await kube.create(body, context.namespace)
    except KubeError as error:
        if error.reason != "AlreadyExists":
            raise
        if body["kind"] not in ("Lease", "Service"):  # no step may read Secrets
            return body
        kind = await kube.resource(body["apiVersion"], body["kind"])
        return await kube.get(kind, body["metadata"]["name"], context.namespace)


def release(context: PodContext, plan: Plan) -> None:
    """Delete what a run that succeeded no longer needs, of all of its Workflows.

    `argo retry` of another one needs its claims and its key pair, and creates no object: they go
    with the Workflow. So does what the API server refuses to delete; print that.
    """

    async def work(kube: Kube) -> None:
        leases = await kube.resource(LEASES, "Lease")
        for uid in (context.workflow_uid, *plan.where.get("before", {})):
            await kube.delete(leases, LEASE_NAME.format(uid), context.namespace)

    try:
        run_with_client(work)
    except KubeError as error:
        text = "claims, PodGroups and the key pair of this run stay until its workflow is deleted"
        print(f"{text}: {error}", file=sys.stderr)  # noqa: T201

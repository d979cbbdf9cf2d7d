"""The objects of a run: its Secret, and the claims, Services and PodGroups of its batches."""

import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import orjson

from perfdag.kube.client import Kube, KubeError, Object, run_with_client
from perfdag.kube.patch import LABEL, claim_spec, service_ports, services, shared_claim
from perfdag.kube.pods import inputs_of, nodes_of, template_of
from perfdag.plan.plan import Plan
from perfdag.results.runs import ROUNDS
from perfdag.results.samples import run_folder
from perfdag.shape import Shape
from perfdag.steps.runner.credentials import make_keys
from perfdag.steps.runner.pod_context import PodContext
from perfdag.store.base import Store

ARGO, LEASES = "argoproj.io/v1alpha1", "coordination.k8s.io/v1"
PORT_ATTEMPTS = 20
"""Attempts to find node ports that no other Service has."""
OTHER_PATH = "let it have one, or measure network.path: pod or host"
Refusals = dict[int, tuple[str, str]]
"""Batches that cannot be measured: the status of their samples, and why."""


def secret_name(workflow_uid: str) -> str:
    """Return the name of the Secret with the key pair of a Workflow."""
    return f"perfdag-ssh-{workflow_uid}"


def lease_name(workflow_uid: str, number: int | None = None) -> str:
    """Return the name of the Lease that owns the objects of a Workflow, or of one of its batches.

    Deleting the Lease deletes these objects.
    """
    return f"perfdag-{workflow_uid}" + ("" if number is None else f"-b{number}")


def secret(context: PodContext) -> Object:
    """Return a Secret with a new key pair. Raises PeerError."""
    with tempfile.TemporaryDirectory() as folder:
        keys = make_keys(Path(folder))
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": secret_name(context.workflow_uid)},
        "type": "Opaque",
        "stringData": keys,
    }


def shape_of(plan: Plan, number: int) -> Shape:
    """Return the shape of a batch of the run, or of one of its rechecks.

    perfdag.results.runs numbers those batches after the ones of the run.
    """
    first = len(plan.batches)
    if number < first:
        return plan.shape_of(number)
    kinds = plan.kinds()
    return plan.shapes[kinds[(number - first) % len(kinds)][0]]


def batch_objects(shape: Shape, context: PodContext, number: int) -> list[Object]:
    """Return the shared claim, the Services and the PodGroup of a batch.

    Most shapes need none.
    """
    workflow = (context.workflow, context.workflow_uid)
    objects = [*services(shape, context.run_id, workflow, number)]
    if shape.volume and shape.volume.batch_claim:
        name = shared_claim(context.workflow_uid, str(number))
        objects.append(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": name},
                "spec": claim_spec(shape.volume),
            }
        )
    if shape.scheduler == "volcano":
        objects.append(
            {
                "apiVersion": "scheduling.volcano.sh/v1beta1",
                "kind": "PodGroup",
                "spec": {"minMember": shape.hosts.count},
                "metadata": {"name": f"perfdag-{context.workflow_uid}-b{number}"},
            }
        )
    return objects


def services_key(context: PodContext, number: int) -> str:
    """Return the key of the addresses and ports of the Services of a batch, by rank.

    Measuring pods have no right to read Services, and read the store.
    """
    return f"{run_folder(context.run_id)}/services/{context.workflow_uid}-b{number}.json"


async def create_for_batches(
    kube: Kube, context: PodContext, store: Store, plan: Plan, objects: Mapping[int, list[Object]]
) -> Refusals:
    """Create the objects of batches; return the batches whose objects the API server refuses.

    Raises KubeError if another attempt may succeed, and StoreError.
    """
    refusals: Refusals = {}
    for number, bodies in objects.items():
        try:
            created = await create(kube, context, plan, bodies, number)
        except NoService as error:
            refusals[number] = ("skipped", str(error))
        except KubeError as error:
            if error.status in (0, 401, 429) or error.status >= 500:
                raise
            refusals[number] = ("skipped" if error.reason == "NoKind" else "failed", str(error))
        else:
            if created:
                store.put(services_key(context, number), orjson.dumps(created))
    return refusals


async def create(
    kube: Kube, context: PodContext, plan: Plan, bodies: list[Object], number: int | None = None
) -> dict[str, Object]:
    """Create objects of the run, or of one of its batches; return the Services by rank.

    Raises KubeError, NoService.

    A Lease owns them, and the Workflow owns the Lease. So Kubernetes deletes them with the Lease,
    and the last step needs no right to delete Secrets or claims.
    """
    if not bodies:
        return {}
    kind, name = "Lease", lease_name(context.workflow_uid, number)
    lease: Object = {
        "apiVersion": LEASES,
        "kind": kind,
        "metadata": {"name": name},
        "spec": {"holderIdentity": plan.run_id},
    }
    workflow = _owner(ARGO, "Workflow", context.workflow, context.workflow_uid)
    created = await _create(kube, context, plan, lease, workflow)
    owner = _owner(LEASES, kind, name, str(created["metadata"]["uid"]))
    forwarded = {}
    for body in bodies:
        if body["kind"] == "Service":
            service = await _create_service(kube, context, plan, body, owner)
            rank = body["spec"]["selector"][f"{LABEL}/rank"]
            ports = sorted({port["port"] for port in service["spec"]["ports"]})
            forwarded[rank] = {"address": service["spec"]["clusterIP"], "ports": ports}
        else:
            await _create(kube, context, plan, body, owner)
    return forwarded


class NoService(Exception):
    """The cluster cannot have a Service of this kind. The message says why."""


async def _create_service(
    kube: Kube, context: PodContext, plan: Plan, body: Object, owner: Object
) -> Object:
    """Create a Service with other ports until the API server has them free; return it.

    Raises KubeError, NoService.
    """
    spec = body["spec"]
    for attempt in range(PORT_ATTEMPTS):
        try:
            return await _create(kube, context, plan, body, owner)
        except KubeError as error:
            if "already allocated" not in error.message or attempt == PORT_ATTEMPTS - 1:
                if error.status == 422 or "allocate a serviceIP" in error.message:
                    text = f"the cluster has no Service of type {spec['type']} for network.path"
                    raise NoService(f"{text}: {error.message}; {OTHER_PATH}") from None
                raise
        seed = f"{body['metadata']['name']} {attempt}"
        spec["ports"] = service_ports(seed, spec["type"] == "NodePort")
    raise AssertionError("not reached")


def _owner(api: str, kind: str, name: str, uid: str) -> Object:
    return {"apiVersion": api, "kind": kind, "name": name, "uid": uid}


async def _create(
    kube: Kube, context: PodContext, plan: Plan, body: Object, owner: Object
) -> Object:
    """Create an object, unless an earlier attempt of this step did; return a Lease or Service."""
    body["metadata"] |= {"ownerReferences": [owner], "labels": {"perfdag/run": plan.run_id}}
    try:
        return await kube.create(body, context.namespace)
    except KubeError as error:
        if error.reason != "AlreadyExists":
            raise
        if body["kind"] not in ("Lease", "Service"):  # no step may read Secrets
            return body
        kind = await kube.resource(body["apiVersion"], body["kind"])
        return await kube.get(kind, body["metadata"]["name"], context.namespace)


def release(context: PodContext, plan: Plan, phase: str) -> None:
    """Delete what the finished run no longer needs; `phase` is Argo's.

    The objects of failed batches stay: `argo retry` measures these again, and creates no object.
    Print what the API server refuses to delete: it goes with the Workflow.
    """

    async def work(kube: Kube) -> None:
        names = releasable(context, plan)
        if phase != "Succeeded":
            workflows = await kube.resource(ARGO, "Workflow")
            workflow = await kube.get(workflows, context.workflow, context.namespace)
            batches = measured_batches(workflow)
            names = leases_of_batches(context, plan, batches, context.workflow_uid)
        leases = await kube.resource(LEASES, "Lease")
        for name in names:
            await kube.delete(leases, name, context.namespace)

    try:
        run_with_client(work)
    except KubeError as error:
        text = "claims, PodGroups and the key pair of this run stay until its workflow is deleted"
        print(f"{text}: {error}", file=sys.stderr)  # noqa: T201


def releasable(context: PodContext, plan: Plan) -> list[str]:
    """Return the Leases of a run that succeeded, in all of its Workflows."""
    numbers = range(len(plan.batches) + ROUNDS * len(plan.kinds()))
    return [
        name
        for uid in (context.workflow_uid, *plan.where.get("before", {}))
        for name in (*leases_of_batches(context, plan, numbers, uid), lease_name(uid))
    ]


def measured_batches(workflow: Object) -> set[int]:
    """Return the batches whose gangs succeeded: Argo does not create these again."""
    batches = [
        node
        for node in nodes_of(workflow).values()
        if template_of(node) == "measure" and node.get("phase") == "Succeeded"
    ]
    return {int(number) for batch in batches if (number := inputs_of(batch).get("batch"))}


def leases_of_batches(
    context: PodContext, plan: Plan, numbers: Iterable[int], workflow_uid: str
) -> list[str]:
    """Return the Leases of those of these batches for which the plan step created objects."""
    return [
        lease_name(workflow_uid, number)
        for number in sorted(numbers)
        if batch_objects(shape_of(plan, number), context, number)
    ]

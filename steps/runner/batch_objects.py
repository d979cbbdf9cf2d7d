"""The Kubernetes objects of a run: its Secret, and the claims and PodGroups of its batches."""

import tempfile
from collections.abc import Mapping
from pathlib import Path

from perfdag.kube.client import Kube, KubeError, Object
from perfdag.kube.volumes import claim_spec, shared_claim, shares
from perfdag.plan.plan import Plan
from perfdag.shape import Shape
from perfdag.steps.runner.credentials import make_keys
from perfdag.steps.runner.pod_context import PodContext

ARGO, LEASES = "argoproj.io/v1alpha1", "coordination.k8s.io/v1"
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
    """Return the shape of a batch of the run, or of one that confirms it.

    perfdag.results.confirming numbers confirming batches after those of the run.
    """
    first = len(plan.batches)
    if number < first:
        return plan.shape_of(number)
    return Shape.model_validate(plan.shapes[(number - first) % len(plan.shapes)])


def batch_objects(shape: Shape, context: PodContext, plan: Plan, number: int) -> list[Object]:
    """Return the shared claim and the PodGroup of a batch; most shapes need neither."""
    objects: list[Object] = []
    if shape.volume and shares(shape.volume):
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
        pods = shape.hosts.count * (2 if plan.trigger == "ab" else 1)
        objects.append(
            {
                "apiVersion": "scheduling.volcano.sh/v1beta1",
                "kind": "PodGroup",
                "spec": {"minMember": pods},
                "metadata": {"name": f"perfdag-{context.workflow_uid}-b{number}"},
            }
        )
    return objects


async def create_for_batches(
    kube: Kube, context: PodContext, plan: Plan, objects: Mapping[int, list[Object]]
) -> Refusals:
    """Create the objects of batches; return the batches whose objects the API server refuses.

    Raises KubeError if another attempt may succeed.
    """
    refusals: Refusals = {}
    for number, bodies in objects.items():
        try:
            await create(kube, context, plan, bodies, number)
        except KubeError as error:
            if error.status in (0, 401, 429) or error.status >= 500:
                raise
            refusals[number] = ("skipped" if error.reason == "NoKind" else "failed", str(error))
    return refusals


async def create(
    kube: Kube, context: PodContext, plan: Plan, bodies: list[Object], number: int | None = None
) -> None:
    """Create objects of the run, or of one of its batches. Raises KubeError.

    A Lease owns them, and the Workflow owns the Lease. So Kubernetes deletes them with the Lease,
    and the last step needs no right to delete Secrets or claims.
    """
    if not bodies:
        return
    kind, name = "Lease", lease_name(context.workflow_uid, number)
    lease: Object = {
        "apiVersion": LEASES,
        "kind": kind,
        "metadata": {"name": name},
        "spec": {"holderIdentity": plan.run_id},
    }
    workflow = _owner(ARGO, "Workflow", context.workflow, context.workflow_uid)
    uid = await _create(kube, context, plan, lease, workflow)
    for body in bodies:
        await _create(kube, context, plan, body, _owner(LEASES, kind, name, uid))


def _owner(api: str, kind: str, name: str, uid: str) -> Object:
    return {"apiVersion": api, "kind": kind, "name": name, "uid": uid}


async def _create(kube: Kube, context: PodContext, plan: Plan, body: Object, owner: Object) -> str:
    """Create an object, unless an earlier attempt of this step did; return a Lease's uid."""
    body["metadata"] |= {"ownerReferences": [owner], "labels": {"perfdag/run": plan.run_id}}
    try:
        created = await kube.create(body, context.namespace)
    except KubeError as error:
        if error.reason != "AlreadyExists":
            raise
        if body["kind"] != "Lease":  # no step may read Secrets
            return ""
        kind = await kube.resource(LEASES, "Lease")
        created = await kube.get(kind, body["metadata"]["name"], context.namespace)
    return str(created["metadata"]["uid"])

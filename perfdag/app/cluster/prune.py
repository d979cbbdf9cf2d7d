"""Find objects of an earlier installation that the new one does not have."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from perfdag.app.cluster.template import ARGO
from perfdag.kube.client import Kube, KubeError, Object

RBAC = "rbac.authorization.k8s.io/v1"
INSTALLATION_LABELS = "app.kubernetes.io/name=perfdag,app.kubernetes.io/managed-by=perfdag"
INSTALLED_KINDS = (
    (RBAC, "RoleBinding"),
    (RBAC, "Role"),
    ("v1", "ServiceAccount"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
    (ARGO, "WorkflowTemplate"),
)
"""Kinds of an installation's objects in its namespace. The objects of runs are of other kinds."""


@dataclass
class Obsolete:
    """Obsolete objects in an order that can be deleted, and kinds that may not be listed."""

    objects: list[Object] = field(default_factory=list)
    unlisted: list[str] = field(default_factory=list)


async def obsolete_objects(client: Kube, namespace: str, bodies: list[Object]) -> Obsolete:
    """Return the installed objects of a namespace that are not among `bodies`.

    Priority classes and a ClusterWorkflowTemplate are never obsolete: installations of other
    namespaces share them. Raises KubeError.
    """
    current = {(body["kind"], body["metadata"]["name"]) for body in bodies}
    obsolete = Obsolete()

    def obsolete_items(items: Iterable[Object]) -> list[Object]:
        return [item for item in items if (item["kind"], item["metadata"]["name"]) not in current]

    for api, kind in INSTALLED_KINDS:
        obsolete.objects += obsolete_items(await _installed(client, namespace, api, kind, obsolete))
    obsolete.objects += await _elsewhere(client, namespace, bodies, obsolete)
    bindings = await _installed(client, namespace, RBAC, "ClusterRoleBinding", obsolete)
    old = [binding for binding in obsolete_items(bindings) if _binds_only(binding, namespace)]
    used = {binding["roleRef"]["name"] for binding in bindings if binding not in old}
    names = {binding["roleRef"]["name"] for binding in old} - used
    roles = await _installed(client, namespace, RBAC, "ClusterRole", obsolete) if names else []
    # A role is found by its binding. The binding goes last, so that a second attempt finds both.
    obsolete.objects += [
        role for role in obsolete_items(roles) if role["metadata"]["name"] in names
    ]
    obsolete.objects += old
    return obsolete


async def _elsewhere(
    client: Kube, namespace: str, bodies: list[Object], obsolete: Obsolete
) -> list[Object]:
    """Return the Roles of accounts of this namespace in other namespaces, and their bindings."""
    in_use = {
        (body["metadata"].get("namespace"), body["metadata"]["name"])
        for body in bodies
        if body["kind"] == "RoleBinding"
    }
    old = []
    for binding in await _installed(client, None, RBAC, "RoleBinding", obsolete):
        place, name = binding["metadata"]["namespace"], binding["metadata"]["name"]
        if place != namespace and (place, name) not in in_use and _binds_only(binding, namespace):
            metadata = {"name": name, "namespace": place}
            old += [
                {"apiVersion": RBAC, "kind": kind, "metadata": metadata}
                for kind in ("Role", "RoleBinding")
            ]
    return old


async def _installed(
    client: Kube, namespace: str | None, api: str, kind: str, obsolete: Obsolete
) -> list[Object]:
    """Return the installed objects of a kind; none if the cluster lacks the kind."""
    try:
        resource = await client.resource(api, kind)
        return await client.list(resource, namespace, labels=INSTALLATION_LABELS)
    except KubeError as error:
        if error.status == 403:
            obsolete.unlisted.append(kind)
        elif error.reason != "NoKind":
            raise
        return []


def _binds_only(binding: Object, namespace: str) -> bool:
    """Return whether a binding gives rights to accounts of this namespace alone."""
    subjects = binding.get("subjects") or []
    return {subject.get("namespace") for subject in subjects} == {namespace}


async def delete(client: Kube, body: Object, namespace: str) -> None:
    """Delete an object. Raises KubeError."""
    resource = await client.resource(body["apiVersion"], body["kind"])
    place = body["metadata"].get("namespace") or namespace
    await client.delete(resource, body["metadata"]["name"], place)


async def schedules_of_other_scope(client: Kube, namespace: str, cluster_scope: bool) -> list[str]:
    """Return the CronWorkflows that use templates of the other scope; none if they are unreadable.

    Raises KubeError.
    """
    try:
        resource = await client.resource(ARGO, "CronWorkflow")
        schedules = await client.list(resource, namespace, labels="perfdag/suite")
    except KubeError as error:
        if error.status in (403, 404):
            return []
        raise
    references = {
        schedule["metadata"]["name"]: schedule["spec"]["workflowSpec"].get("workflowTemplateRef")
        for schedule in schedules
    }
    return sorted(
        name
        for name, reference in references.items()
        if reference and bool(reference.get("clusterScope")) != cluster_scope
    )

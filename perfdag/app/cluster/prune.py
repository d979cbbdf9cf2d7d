"""What an earlier `perfdag install` put on the cluster and one with other options leaves out."""

from typing import TYPE_CHECKING

from perfdag.app.doctor.argo import ARGO
from perfdag.kube.objects import Object

if TYPE_CHECKING:
    from perfdag.kube.client import Kube

RBAC = "rbac.authorization.k8s.io/v1"
OURS = "app.kubernetes.io/name=perfdag,app.kubernetes.io/managed-by=perfdag"
KINDS = (
    (RBAC, "RoleBinding"),
    (RBAC, "Role"),
    ("v1", "ServiceAccount"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
    (ARGO, "WorkflowTemplate"),
)
"""Kinds of a namespace that an installation has objects of; what runs make is of others."""


class Found:
    """Objects of the installation in a namespace that one of these `objects` has not, in an order that can be deleted.

    Priority classes and a ClusterWorkflowTemplate are shared with installations of other namespaces, and never among them.
    """

    def __init__(self, namespace: str, objects: list[Object]) -> None:
        self.namespace = namespace
        self.kept = {(each["kind"], each["metadata"]["name"]) for each in objects}
        self.left_out: list[Object] = []
        self.unknown: list[str] = []
        """Kinds that may not be listed."""

    async def look(self, client: "Kube") -> None:
        """Find them. Raises KubeError."""
        for api, kind in KINDS:
            self.left_out += self._not_kept(await self._ours(client, api, kind))
        bindings = await self._ours(client, RBAC, "ClusterRoleBinding")
        gone = [each for each in self._not_kept(bindings) if self._binds_here(each)]
        names = {each["roleRef"]["name"] for each in gone} - {
            each["roleRef"]["name"] for each in bindings if each not in gone
        }
        roles = await self._ours(client, RBAC, "ClusterRole") if names else []
        # a role is known by its binding, which therefore goes after it
        self.left_out += [
            *(each for each in self._not_kept(roles) if each["metadata"]["name"] in names),
            *gone,
        ]

    async def _ours(self, client: "Kube", api: str, kind: str) -> list[Object]:
        from perfdag.kube.client import KubeError

        try:
            return await client.list(await client.resource(api, kind), self.namespace, labels=OURS)
        except KubeError as error:
            if error.status == 403:
                self.unknown.append(kind)
            elif error.reason != "NoKind":
                raise
            return []

    def _not_kept(self, found: list[Object]) -> list[Object]:
        return [each for each in found if (each["kind"], each["metadata"]["name"]) not in self.kept]

    def _binds_here(self, binding: Object) -> bool:
        """Whether it gives rights to accounts of this namespace alone: the name of a cluster-wide object does not say whose it is."""
        return {each.get("namespace") for each in binding.get("subjects") or []} == {self.namespace}


async def delete(client: "Kube", body: Object, namespace: str) -> None:
    """Delete one of them. Raises KubeError."""
    await client.delete(
        await client.resource(body["apiVersion"], body["kind"]), body["metadata"]["name"], namespace
    )


async def other_scope(client: "Kube", namespace: str, cluster_scope: bool) -> list[str]:
    """Names of schedules that use templates of the other scope; none where they may not be listed. Raises KubeError."""
    from perfdag.kube.client import KubeError

    try:
        schedules = await client.list(
            await client.resource(ARGO, "CronWorkflow"), namespace, labels="perfdag/suite"
        )
    except KubeError as error:
        if error.status in (403, 404):
            return []
        raise
    refs = {
        each["metadata"]["name"]: each["spec"]["workflowSpec"].get("workflowTemplateRef")
        for each in schedules
    }
    return sorted(
        name for name, ref in refs.items() if ref and bool(ref.get("clusterScope")) != cluster_scope
    )

"""Check the rights to create, delete and watch objects before a run."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from perfdag.kube.client import Kube, KubeError
from perfdag.kube.config import ignore_status
from perfdag.steps.scale.cluster.lease_lock import NAME
from perfdag.steps.scale.model.templates import Template

_API = "authorization.k8s.io/v1"
PERFORMANCE_RUN = (
    {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list"]},
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
    {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "resourceNames": [NAME],
        "verbs": ["get", "update", "delete"],
    },
)
"""RBAC rules in the namespace `default`: the Lease of performance runs, and the API servers."""
WHOLE_CLUSTER = (
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]},
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["list"]},
    {"nonResourceURLs": ["/metrics", "/version"], "verbs": ["get"]},
)
"""RBAC rules in the cluster: nodes, how many API servers there are, and their requests."""
OWN_NAMESPACE = (
    {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["list", "watch"]},
    {
        "apiGroups": [""],
        "resources": ["configmaps"],
        "verbs": ["list", "watch", "create", "patch", "delete"],
    },
)
"""RBAC rules in the namespaces of the objects: that they exist, events, and the watch lag."""
_CREATED, _WATCHED = ("create", "delete", "list", "watch"), ("list", "watch")


@dataclass(frozen=True)
class MissingRight:
    """Missing verbs on a resource, in one namespace or (empty) in the whole cluster."""

    group: str
    resource: str
    namespace: str
    verbs: tuple[str, ...]

    def __str__(self) -> str:
        where = f"in the namespace {self.namespace}" if self.namespace else "in all namespaces"
        group = f".{self.group}" if self.group else ""
        return f"{', '.join(self.verbs)} {self.resource}{group} {where}"

    def granted_by(self, rules: Iterable[Mapping[str, Any]]) -> bool:
        """Tell whether RBAC rules grant all of it."""

        def has(rule: Mapping[str, Any], verb: str) -> bool:
            wanted = (("apiGroups", self.group), ("resources", self.resource), ("verbs", verb))
            return all({value, "*"} & set(rule.get(key, ())) for key, value in wanted)

        rules = list(rules)
        return all(any(has(rule, verb) for rule in rules) for verb in self.verbs)


class MissingRightsError(KubeError):
    """Rights are missing; `who` is the user name that the API server reports, or empty."""

    def __init__(self, lacking: Sequence[MissingRight], who: str, context: str) -> None:
        self.missing = list(lacking)
        kind, _, account = who.partition(":serviceaccount:")
        namespace, _, name = account.partition(":")
        whom = (
            f"the service account {name} of the namespace {namespace}"
            if kind == "system" and name
            else f"the user of context {context!r}"
        )
        hint = f"grant it to {whom} with a Role or ClusterRole"
        super().__init__(403, "Forbidden", f"you may not {'; '.join(map(str, self.missing))}", hint)


async def check(
    kube: Kube,
    template: Template,
    namespaces: Sequence[str],
    watched: Iterable[tuple[str, str]] = (),
) -> None:
    """Raise MissingRightsError for missing verbs, with kinds and namespaces.

    If the server does not answer the review, the right is assumed. Unknown kinds in `watched` are
    ignored.
    """
    wanted: dict[tuple[str, str, str], list[str]] = {}
    for document in template.everything:
        resource = await kube.resource(document.api_version, document.kind)
        for namespace in namespaces:
            wanted[document.api_version.rpartition("/")[0], resource.plural, namespace] = list(
                _CREATED
            )
    for api_version, kind in watched:
        with suppress(KubeError):
            resource = await kube.resource(api_version, kind)
            for namespace in namespaces:
                wanted.setdefault(
                    (api_version.rpartition("/")[0], resource.plural, namespace), list(_WATCHED)
                )

    async def lack(
        group: str, resource: str, namespace: str, verbs: list[str]
    ) -> MissingRight | None:
        allowed = await asyncio.gather(
            *(_allowed(kube, group, resource, namespace, verb) for verb in verbs)
        )
        missing = tuple(verb for verb, may in zip(verbs, allowed, strict=True) if not may)
        return MissingRight(group, resource, namespace, missing) if missing else None

    lacking = [
        missing
        for missing in await asyncio.gather(*(lack(*key, verbs) for key, verbs in wanted.items()))
        if missing
    ]
    if lacking:
        raise MissingRightsError(lacking, await _who(kube), kube.cluster.context)


async def _allowed(kube: Kube, group: str, resource: str, namespace: str, verb: str) -> bool:
    attributes = {"verb": verb, "group": group, "resource": resource, "namespace": namespace}
    body = {
        "apiVersion": _API,
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    with ignore_status(403, 404):
        review = await kube.request("POST", f"/apis/{_API}/selfsubjectaccessreviews", json=body)
        return bool(review["status"].get("allowed"))
    return True


async def _who(kube: Kube) -> str:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    with suppress(KubeError, KeyError):
        review = await kube.request(
            "POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", json=body
        )
        return str(review["status"]["userInfo"]["username"])
    return ""

"""The rights part of `perfdag doctor --cluster`: what the service accounts of the steps may do, and whoever asks."""

from typing import TYPE_CHECKING

from perfdag.app.doctor.argo import ARGO
from perfdag.cli.doctor import Finding
from perfdag.kube.objects import Object

if TYPE_CHECKING:
    from perfdag.kube.client import Kube

Right = tuple[str, str, str]


def needed() -> "dict[str, list[Right]]":
    """What the steps of each service account do: group, resource and verb, as its Role grants them."""
    from perfdag.workflows.rights import FINISH, MEASURE, RUN, VOLCANO

    roles: dict[str, list[Object]] = {
        "perfdag-run": [*RUN, VOLCANO],
        "perfdag-finish": FINISH,
        "perfdag-measure": MEASURE,
    }
    return {
        account: [
            (group, name, verb)
            for rule in rules
            for group in rule["apiGroups"]
            for name in rule["resources"]
            for verb in rule["verbs"]
        ]
        for account, rules in roles.items()
    }


async def own(client: "Kube", namespace: str) -> list[Finding]:
    """Whether we ourselves may submit a run there, follow it and delete it."""
    refused = []
    for group, name, verb in (
        *(
            (ARGO.partition("/")[0], "workflows", verb)
            for verb in ("create", "get", "list", "delete")
        ),
        ("", "pods", "list"),
        ("", "pods/log", "get"),
    ):
        resource, _, subresource = name.partition("/")
        asked = {
            "namespace": namespace,
            "verb": verb,
            "group": group,
            "resource": resource,
            "subresource": subresource,
        }
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked},
        }
        answer = await client.request(
            "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", json=body
        )
        if not answer["status"]["allowed"]:
            refused.append(f"{verb} {name}")
    if refused:
        return [
            Finding(
                "missing",
                f"you may not {', '.join(refused)} in {namespace}",
                "ask an admin of the namespace for a Role with them",
            )
        ]
    return [Finding("ok", f"you may submit, follow and delete runs in {namespace}")]


async def account(
    client: "Kube", namespace: str, name: str, rights: "list[Right]", install: str
) -> Finding:
    """Whether a service account is there and may do what its steps do."""
    from perfdag.kube.client import KubeError

    try:
        await client.get(await client.resource("v1", "ServiceAccount"), name, namespace)
    except KubeError as error:
        if error.status == 404:
            return Finding("missing", f"there is no service account {name} in {namespace}", install)
        if error.status != 403:
            raise
    answers = [
        (f"{verb} {resource}", await _may(client, namespace, name, group, resource, verb))
        for group, resource, verb in rights
    ]
    refused = [right for right, answer in answers if answer is False]
    if refused:
        return Finding("missing", f"service account {name} may not {', '.join(refused)}", install)
    if any(answer is None for _, answer in answers):
        ask = "ask somebody who may create subjectaccessreviews, or see what a run says"
        return Finding(
            "warn",
            f"whether service account {name} has its rights is not known: we may not ask",
            ask,
        )
    return Finding("ok", f"service account {name} has its rights")


async def _may(
    client: "Kube", namespace: str, account: str, group: str, resource: str, verb: str
) -> bool | None:
    """Whether an account may do that; None where we may not ask for others."""
    from perfdag.kube.client import KubeError

    name, _, subresource = resource.partition("/")
    asked = {
        "namespace": namespace,
        "verb": verb,
        "group": group,
        "resource": name,
        "subresource": subresource,
    }
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview"}
    spec = {
        "user": f"system:serviceaccount:{namespace}:{account}",
        "groups": ["system:serviceaccounts"],
        "resourceAttributes": asked,
    }
    try:
        answer = await client.request(
            "POST",
            "/apis/authorization.k8s.io/v1/subjectaccessreviews",
            json={**body, "spec": spec},
        )
    except KubeError as error:
        if error.status == 403:
            return None
        raise
    return bool(answer["status"]["allowed"])

"""Check the rights of the steps' service accounts, and those of the user."""

from perfdag.app.cluster.template import ARGO
from perfdag.app.doctor.finding import Finding
from perfdag.kube.client import Kube, KubeError, Object

Right = tuple[str, str, str]
"""API group, resource (with its subresource) and verb."""
ARGO_GROUP = ARGO.partition("/")[0]
USER_RIGHTS: tuple[Right, ...] = (
    *((ARGO_GROUP, "workflows", verb) for verb in ("create", "get", "list", "delete")),
    *(("", "configmaps", verb) for verb in ("create", "delete", "patch")),
    ("", "pods", "list"),
    ("", "pods/log", "get"),
)
"""What `submit`, `status`, `logs` and `delete` do."""


def required_rights() -> dict[str, list[Right]]:
    """Return the rights of each service account, as its Role grants them."""
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


async def check_user(client: Kube, namespace: str) -> Finding:
    """Return whether the user may submit, follow and delete runs. Raises KubeError."""
    refused = [
        f"{right[2]} {right[1]}"
        for right in USER_RIGHTS
        if not await _review(client, "Self", namespace, right, {})
    ]
    if refused:
        text = f"you may not {', '.join(refused)} in {namespace}"
        return Finding(
            "missing", text, "ask an admin of the namespace for a Role with these rights"
        )
    return Finding("ok", f"you may submit, follow and delete runs in {namespace}")


async def check_account(
    client: Kube, namespace: str, name: str, rights: list[Right], install: str
) -> Finding:
    """Return whether a service account exists and has the rights of its steps. Raises KubeError."""
    try:
        await client.get(await client.resource("v1", "ServiceAccount"), name, namespace)
    except KubeError as error:
        if error.status == 404:
            return Finding("missing", f"there is no service account {name} in {namespace}", install)
        if error.status != 403:
            raise
    subject = {
        "user": f"system:serviceaccount:{namespace}:{name}",
        "groups": ["system:serviceaccounts"],
    }
    refused = []
    for right in rights:
        try:
            allowed = await _review(client, "", namespace, right, subject)
        except KubeError as error:
            if error.status != 403:
                raise
            return Finding(
                "warn",
                f"whether service account {name} has its rights is not known: "
                "you may not create subjectaccessreviews",
                "ask somebody who may, or read what a run reports",
            )
        if not allowed:
            refused.append(f"{right[2]} {right[1]}")
    if refused:
        return Finding("missing", f"service account {name} may not {', '.join(refused)}", install)
    return Finding("ok", f"service account {name} has its rights")


async def _review(client: Kube, prefix: str, namespace: str, right: Right, subject: Object) -> bool:
    """Return whether the API server allows a right to `subject`, or to the user (prefix `Self`)."""
    group, name, verb = right
    resource, _, subresource = name.partition("/")
    attributes = {
        "namespace": namespace,
        "verb": verb,
        "group": group,
        "resource": resource,
        "subresource": subresource,
    }
    kind = f"{prefix}SubjectAccessReview"
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": kind,
        "spec": {"resourceAttributes": attributes, **subject},
    }
    path = f"/apis/authorization.k8s.io/v1/{kind.lower()}s"
    review = await client.request("POST", path, json=body)
    return bool(review["status"]["allowed"])

"""Service accounts and Roles with the fewest verbs, network policy and priority classes."""

from perfdag.kube.podspec import PRIORITY_CLASSES, SSH_PORT, account_of
from perfdag.kube.resources import Object
from perfdag.workflows.templates import Installation

_RBAC = "rbac.authorization.k8s.io"

EXECUTOR = {
    "apiGroups": ["argoproj.io"],
    "resources": ["workflowtaskresults"],
    "verbs": ["create", "patch"],
}
WORKFLOWS = {"apiGroups": ["argoproj.io"], "resources": ["workflows"], "verbs": ["get", "patch"]}
EVENTS = {"apiGroups": [""], "resources": ["events"], "verbs": ["list"]}
MEASURE = [EXECUTOR, {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}, EVENTS]
# docs/reference/rights.md has the reason for each rule; a test compares them
RUN = [
    EXECUTOR,
    EVENTS,
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "patch"]},
    {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]},
    WORKFLOWS,
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create", "get"]},
    {"apiGroups": [""], "resources": ["secrets", "persistentvolumeclaims"], "verbs": ["create"]},
    {
        "apiGroups": ["k8s.cni.cncf.io"],
        "resources": ["network-attachment-definitions"],
        "verbs": ["get"],
    },
]
FINISH = [
    EXECUTOR,
    WORKFLOWS,
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["delete"]},
]
VOLCANO = {"apiGroups": ["scheduling.volcano.sh"], "resources": ["podgroups"], "verbs": ["create"]}


def objects(
    installation: Installation, api_rules: dict[str, list[Object]] | None = None
) -> list[Object]:
    """Return what an installation needs beside its templates.

    `api_rules` has the RBAC rules of the benchmarks that are allowed, by name.
    """
    bodies = [
        _account(installation, "perfdag-run"),
        _account(installation, "perfdag-finish"),
        _account(installation, "perfdag-measure"),
        *_role(installation, "perfdag-run", [*RUN, VOLCANO]),
        *_role(installation, "perfdag-finish", FINISH),
        *_role(installation, "perfdag-measure", MEASURE),
    ]
    for name, rules in sorted((api_rules or {}).items()):
        bodies += _allowed(installation, account_of(name), rules)
    if installation.network_policy:
        bodies.append(network_policy(installation))
    if not installation.namespaced:
        bodies += _cluster_wide(installation)
    return bodies


def _allowed(installation: Installation, account: str, rules: list[Object]) -> list[Object]:
    """Return the account of a benchmark and its rights, cluster-wide or in this namespace.

    Such a benchmark creates namespaces and reads nodes, except with `install --namespaced`.
    """
    bodies = [_account(installation, account)]
    if installation.namespaced:  # a Role may not name URLs
        inside = [rule for rule in rules if "nonResourceURLs" not in rule]
        return [*bodies, *_role(installation, account, [*MEASURE, *inside])]
    return [
        *bodies,
        *_role(installation, account, MEASURE),
        *_cluster_role(installation, f"{account}-{installation.namespace}", account, rules),
    ]


def _cluster_role(
    installation: Installation, name: str, account: str, rules: list[Object]
) -> list[Object]:
    return [
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRole",
            "metadata": _meta(installation, name, True),
            "rules": rules,
        },
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": _meta(installation, name, True),
            "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": name},
            "subjects": [
                {"kind": "ServiceAccount", "name": account, "namespace": installation.namespace}
            ],
        },
    ]


def _labels(installation: Installation) -> Object:
    return {
        "app.kubernetes.io/name": "perfdag",
        "app.kubernetes.io/managed-by": "perfdag",
        **installation.labels,
    }


def _meta(installation: Installation, name: str, cluster: bool = False) -> Object:
    meta: Object = {"name": name, "labels": _labels(installation)}
    return (
        meta
        if cluster
        else {"name": name, "namespace": installation.namespace, "labels": meta["labels"]}
    )


def _account(installation: Installation, name: str) -> Object:
    account: Object = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": _meta(installation, name),
    }
    if installation.pull_secrets:
        account["imagePullSecrets"] = [{"name": secret} for secret in installation.pull_secrets]
    return account


def _role(installation: Installation, name: str, rules: list[Object]) -> list[Object]:
    return [
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "Role",
            "metadata": _meta(installation, name),
            "rules": rules,
        },
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": _meta(installation, name),
            "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": name},
            "subjects": [
                {"kind": "ServiceAccount", "name": name, "namespace": installation.namespace}
            ],
        },
    ]


def network_policy(installation: Installation) -> Object:
    """Return the policy that lets only measuring pods reach the servers of measuring pods.

    fio's server runs the jobs of whoever connects, and iperf's answers anyone. sshd checks a key,
    so its port is open: in an A/B run the lead of one variant may be on the host network, where no
    label selects it. What the pods connect to themselves (S3, the API server) is not restricted.
    """
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _meta(installation, "perfdag-measuring"),
        "spec": {
            "podSelector": {"matchLabels": {"perfdag/measuring": "true"}},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [{"podSelector": {"matchLabels": {"perfdag/measuring": "true"}}}]},
                {"ports": [{"protocol": "TCP", "port": SSH_PORT}]},
            ],
        },
    }


def _cluster_wide(installation: Installation) -> list[Object]:
    """Return the rights to read the facts and the resources of the cluster, and priority classes.

    `install --namespaced` leaves them out.
    """
    name = f"perfdag-{installation.namespace}-nodes"
    rules = [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]},
        {"apiGroups": [""], "resources": ["persistentvolumes"], "verbs": ["list"]},
        {
            "apiGroups": [""],
            "resources": ["namespaces"],
            "resourceNames": ["kube-system"],
            "verbs": ["get"],
        },
        {
            "apiGroups": [""],
            "resources": ["configmaps"],
            "resourceNames": ["cluster-autoscaler-status"],
            "verbs": ["get"],
        },
        {"apiGroups": ["apps"], "resources": ["daemonsets"], "verbs": ["list"]},
        {
            "apiGroups": ["storage.k8s.io"],
            "resources": ["storageclasses", "csidrivers"],
            "verbs": ["list"],
        },
        {
            "apiGroups": ["k8s.cni.cncf.io"],
            "resources": ["network-attachment-definitions"],
            "verbs": ["get"],
        },
        {
            "apiGroups": ["scheduling.k8s.io"],
            "resources": ["priorityclasses"],
            "resourceNames": [*PRIORITY_CLASSES],
            "verbs": ["get"],
        },
    ]
    usual, preempting = PRIORITY_CLASSES
    return [
        *_cluster_role(installation, name, "perfdag-run", rules),
        _priority(
            installation, usual, 0, "Never", "Measuring pods wait for room and push nobody out."
        ),
        _priority(
            installation,
            preempting,
            1000,
            "PreemptLowerPriority",
            "Measuring pods of a suite that asks for priority.",
        ),
    ]


def _priority(installation: Installation, name: str, value: int, policy: str, about: str) -> Object:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": _meta(installation, name, True),
        "value": value,
        "preemptionPolicy": policy,
        "globalDefault": False,
        "description": about,
    }

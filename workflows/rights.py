"""Service accounts and Roles with the fewest verbs, network policy and priority classes."""

from collections.abc import Mapping

from perfdag.benchmark.contract import Rights
from perfdag.kube.client import Object
from perfdag.kube.patch import LEVEL, MEASURING, PRIORITY_CLASSES, SSH_PORT, account_of
from perfdag.workflows.installation import SHARED, Installation

_RBAC = "rbac.authorization.k8s.io"

EXECUTOR = {
    "apiGroups": ["argoproj.io"],
    "resources": ["workflowtaskresults"],
    "verbs": ["create", "patch"],
}
WORKFLOWS = {"apiGroups": ["argoproj.io"], "resources": ["workflows"], "verbs": ["get", "patch"]}
MEASURE = [EXECUTOR, {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
# docs/reference/rights.md has the reason for each rule; a test compares them
WATCHDOG = [
    EXECUTOR,
    WORKFLOWS,
    {"apiGroups": [""], "resources": ["events"], "verbs": ["list"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "patch"]},
    {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]},
]
RUN = [
    EXECUTOR,
    WORKFLOWS,
    {"apiGroups": ["argoproj.io"], "resources": ["workflows"], "verbs": ["create"]},
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create", "get"]},
    {"apiGroups": [""], "resources": ["secrets", "persistentvolumeclaims"], "verbs": ["create"]},
    {"apiGroups": [""], "resources": ["services"], "verbs": ["create", "get"]},
    {
        "apiGroups": ["k8s.cni.cncf.io"],
        "resources": ["network-attachment-definitions"],
        "verbs": ["get"],
    },
    {"apiGroups": ["scheduling.volcano.sh"], "resources": ["podgroups"], "verbs": ["create"]},
]
FINISH = [
    EXECUTOR,
    WORKFLOWS,
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["delete"]},
]

Grant = tuple[Rights, tuple[str, ...]]
"""The rights of a benchmark that is allowed, and the namespaces of its objects."""


def objects(installation: Installation, granted: Mapping[str, Grant] | None = None) -> list[Object]:
    """Return what an installation needs beside its templates.

    `granted` has the rights of the benchmarks that are allowed, by name.
    """
    grants = sorted((granted or {}).items())
    accounts = {"run": RUN, "watchdog": WATCHDOG, "finish": FINISH, "measure": MEASURE}
    bodies = _namespaces(installation, [grant for _, grant in grants])
    bodies += [_account(installation, f"perfdag-{name}") for name in accounts]
    for name, rules in accounts.items():
        bodies += _role(installation, f"perfdag-{name}", rules)
    for name, (rights, namespaces) in grants:
        bodies += _allowed(installation, account_of(name), rights, namespaces)
    if installation.network_policy:
        bodies.append(network_policy(installation))
    if not installation.namespaced:
        bodies += _cluster_wide(installation)
    return bodies


def _namespaces(installation: Installation, grants: list[Grant]) -> list[Object]:
    """Return the namespaces where benchmarks create objects. `install` leaves existing ones alone.

    Templates of a suite say what pods there look like, so PodSecurity limits them.
    """
    names = {name for rights, namespaces in grants if rights.creates for name in namespaces}
    labels = {LEVEL: "baseline", **SHARED}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        for name in sorted(names)
        if not installation.namespaced
    ]


def _allowed(
    installation: Installation, account: str, rights: Rights, namespaces: tuple[str, ...]
) -> list[Object]:
    """Return the account of a benchmark and its rights, by where they hold.

    `install --namespaced` only grants those in the named namespaces.
    """
    name = f"{account}-{installation.namespace}"
    bodies = [_account(installation, account), *_role(installation, account, MEASURE)]
    for namespace in namespaces:
        bodies += _role(installation, name, [*rights.named], account, namespace)
    if rights.default and not installation.namespaced:
        shared = f"{name}-default"
        bodies += _role(installation, shared, [*rights.default], account, "default")
    if rights.cluster and not installation.namespaced:
        bodies += _cluster_role(installation, name, account, [*rights.cluster])
    return bodies


def _cluster_role(
    installation: Installation, name: str, account: str, rules: list[Object]
) -> list[Object]:
    return [
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRole",
            "metadata": _meta(installation, name, ""),
            "rules": rules,
        },
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": _meta(installation, name, ""),
            "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": name},
            "subjects": [
                {"kind": "ServiceAccount", "name": account, "namespace": installation.namespace}
            ],
        },
    ]


def _meta(installation: Installation, name: str, namespace: str | None = None) -> Object:
    """Return the metadata of an object, cluster-wide with an empty namespace."""
    if namespace is None:
        namespace = installation.namespace
    place = {"namespace": namespace} if namespace else {}
    return {"name": name, **place, "labels": installation.labels}


def _account(installation: Installation, name: str) -> Object:
    account: Object = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": _meta(installation, name),
    }
    if installation.pull_secrets:
        account["imagePullSecrets"] = [{"name": secret} for secret in installation.pull_secrets]
    return account


def _role(
    installation: Installation,
    name: str,
    rules: list[Object],
    account: str = "",
    namespace: str | None = None,
) -> list[Object]:
    """Return a Role in a namespace and its binding to an account, by default of the same name."""
    subject = {
        "kind": "ServiceAccount",
        "name": account or name,
        "namespace": installation.namespace,
    }
    return [
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "Role",
            "metadata": _meta(installation, name, namespace),
            "rules": rules,
        },
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": _meta(installation, name, namespace),
            "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": name},
            "subjects": [subject],
        },
    ]


def network_policy(installation: Installation) -> Object:
    """Return the policy that lets only measuring pods reach the servers of measuring pods.

    The servers of iperf and netperf answer anyone. sshd checks a key, so its port is open: in an
    A/B run the lead of one variant may be on the host network, where no label selects it. What the
    pods connect to themselves (S3, the API server) is not restricted.
    """
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _meta(installation, "perfdag-measuring"),
        "spec": {
            "podSelector": {"matchLabels": {MEASURING: "true"}},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [{"podSelector": {"matchLabels": {MEASURING: "true"}}}]},
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
        _priority(usual, 0, "Never", "Measuring pods wait for room and push nobody out."),
        _priority(
            preempting,
            1000,
            "PreemptLowerPriority",
            "Measuring pods of a suite that asks for priority.",
        ),
    ]


def _priority(name: str, value: int, policy: str, about: str) -> Object:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name, "labels": SHARED},
        "value": value,
        "preemptionPolicy": policy,
        "globalDefault": False,
        "description": about,
    }

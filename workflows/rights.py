"""Service accounts and Roles with the fewest verbs, network policy and priority classes."""

from perfdag.kube.objects import Object
from perfdag.kube.podspec import PRIORITY_CLASSES, account_of
from perfdag.workflows.templates import Installation

_RBAC = "rbac.authorization.k8s.io"

EXECUTOR = {
    "apiGroups": ["argoproj.io"],
    "resources": ["workflowtaskresults"],
    "verbs": ["create", "patch"],
}
POD_WATCH = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
# why a pod does not start where its status says nothing: a volume that is not mounted, a network that is not there
EVENTS = {"apiGroups": [""], "resources": ["events"], "verbs": ["list"]}
MEASURE = [EXECUTOR, POD_WATCH, EVENTS]
RUN = [
    EXECUTOR,
    EVENTS,
    # watchdog: the pods of a run, and giving up those that can never start (by their status where no node has them)
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "patch"]},
    {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]},
    # and saying on the Workflow which batches are not worth another attempt
    {"apiGroups": ["argoproj.io"], "resources": ["workflows"], "verbs": ["get", "patch"]},
    # plan: the run's key pair, and claims that the pods of a batch share
    {"apiGroups": [""], "resources": ["secrets", "persistentvolumeclaims"], "verbs": ["create"]},
    # plan: whether the network that a shape names is there
    {
        "apiGroups": ["k8s.cni.cncf.io"],
        "resources": ["network-attachment-definitions"],
        "verbs": ["get"],
    },
]
FINISH = [
    EXECUTOR,
    # the watchdog's notes and the report's address, as annotations. A name cannot be given: that of a Workflow is made when it is created
    {"apiGroups": ["argoproj.io"], "resources": ["workflows"], "verbs": ["get", "patch"]},
    # what plan made and no batch needs any more: each by its name, which has the uid of the Workflow
    {"apiGroups": [""], "resources": ["secrets", "persistentvolumeclaims"], "verbs": ["delete"]},
    {"apiGroups": ["scheduling.volcano.sh"], "resources": ["podgroups"], "verbs": ["delete"]},
]
VOLCANO = {"apiGroups": ["scheduling.volcano.sh"], "resources": ["podgroups"], "verbs": ["create"]}


def objects(made: Installation, api_rules: dict[str, list[Object]] | None = None) -> list[Object]:
    """All that an installation needs beside the WorkflowTemplate. `api_rules`: RBAC rules of the benchmarks that are allowed, by name."""
    found = [
        _account(made, "perfdag-run"),
        _account(made, "perfdag-finish"),
        _account(made, "perfdag-measure"),
        *_role(made, "perfdag-run", [*RUN, VOLCANO]),
        *_role(made, "perfdag-finish", FINISH),
        *_role(made, "perfdag-measure", MEASURE),
    ]
    for name, rules in sorted((api_rules or {}).items()):
        found += _allowed(made, account_of(name), rules)
    if made.network_policy:
        found.append(network_policy(made))
    if not made.namespaced:
        found += _cluster_wide(made)
    return found


def _allowed(made: Installation, account: str, rules: list[Object]) -> list[Object]:
    """A benchmark's account and its rights: cluster-wide, since it makes namespaces and reads nodes; `--namespaced`: here alone."""
    found = [_account(made, account)]
    if made.namespaced:  # a Role may not name URLs
        inside = [rule for rule in rules if "nonResourceURLs" not in rule]
        return [*found, *_role(made, account, [*MEASURE, *inside])]
    return [
        *found,
        *_role(made, account, MEASURE),
        *_cluster_role(made, f"{account}-{made.namespace}", account, rules),
    ]


def _cluster_role(made: Installation, name: str, account: str, rules: list[Object]) -> list[Object]:
    return [
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRole",
            "metadata": _meta(made, name, True),
            "rules": rules,
        },
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": _meta(made, name, True),
            "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": made.namespace}],
        },
    ]


def _labels(made: Installation) -> Object:
    return {
        "app.kubernetes.io/name": "perfdag",
        "app.kubernetes.io/managed-by": "perfdag",
        **made.labels,
    }


def _meta(made: Installation, name: str, cluster: bool = False) -> Object:
    meta: Object = {"name": name, "labels": _labels(made)}
    return (
        meta if cluster else {"name": name, "namespace": made.namespace, "labels": meta["labels"]}
    )


def _account(made: Installation, name: str) -> Object:
    account: Object = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _meta(made, name)}
    if made.pull_secrets:
        account["imagePullSecrets"] = [{"name": each} for each in made.pull_secrets]
    return account


def _role(made: Installation, name: str, rules: list[Object]) -> list[Object]:
    return [
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "Role",
            "metadata": _meta(made, name),
            "rules": rules,
        },
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": _meta(made, name),
            "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": made.namespace}],
        },
    ]


def network_policy(made: Installation) -> Object:
    """Measuring pods are reached by measuring pods only. Off by default: a policy can change what is measured."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _meta(made, "perfdag-measuring"),
        "spec": {
            "podSelector": {"matchLabels": {"perfdag/measuring": "true"}},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [{"podSelector": {"matchLabels": {"perfdag/measuring": "true"}}}]}
            ],
        },
    }


def _cluster_wide(made: Installation) -> list[Object]:
    """Reads of what the cluster is (provenance) and has (what it lacks is skipped), and priority classes; `install --namespaced`
    leaves them out.
    """
    name = f"perfdag-{made.namespace}-nodes"
    rules = [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list"]},
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
            "verbs": ["get", "list"],
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
        *_cluster_role(made, name, "perfdag-run", rules),
        _priority(made, usual, 0, "Never", "Measuring pods wait for room and push nobody out."),
        _priority(
            made,
            preempting,
            1000,
            "PreemptLowerPriority",
            "Measuring pods of a suite that asks for priority.",
        ),
    ]


def _priority(made: Installation, name: str, value: int, policy: str, about: str) -> Object:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": _meta(made, name, True),
        "value": value,
        "preemptionPolicy": policy,
        "globalDefault": False,
        "description": about,
    }

"""An installation: its options, and its objects beside the templates.

These are service accounts and Roles with the fewest verbs, a network policy and priority classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from perfdag import IMAGES
from perfdag.benchmark.contract import Rights, rbac_rule
from perfdag.kube.client import Object
from perfdag.kube.patch import LEVEL, MEASURING, PRIORITY_CLASSES, SSH_PORT, account_of

SHARED = {"app.kubernetes.io/name": "perfdag", "app.kubernetes.io/managed-by": "perfdag"}
"""The labels of objects that all installations of a cluster share."""


@dataclass(frozen=True)
class Installation:
    """The options of `perfdag install`. Times are in seconds."""

    namespace: str = "default"
    images: str = IMAGES
    store: str = ""
    store_secret: str = "perfdag-store"
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    namespaced: bool = False
    lock_namespace: str = "perfdag"
    """Installations with the same one measure in turn. The namespace need not exist."""
    parallel_batches: int = 1
    deadline: int = 7 * 86400
    pending_limit: int = 600
    """How long a pod that does not measure may wait to start."""
    keep: int = 7 * 86400
    """How long a Workflow stays after its end."""
    keep_pods: int = 600
    """How long a pod stays after its end, with its log and the claim that is its own."""
    network_policy: bool = True
    allow: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Benchmarks with rights of their own, and the namespaces where these hold."""

    def image(self, name: str) -> str:
        """Return the image with that name."""
        return self.images.replace("{name}", name)

    @property
    def labels(self) -> Object:
        """The labels of its own objects."""
        return {**SHARED, "app.kubernetes.io/instance": self.namespace}


# docs/reference/rights.md has the reason for each rule; a test compares them
_EXECUTOR = rbac_rule("argoproj.io", "workflowtaskresults", "create patch")
_NETWORKS = rbac_rule("k8s.cni.cncf.io", "network-attachment-definitions", "get")
RUN = [
    _EXECUTOR,
    rbac_rule("argoproj.io", "workflows", "patch"),
    rbac_rule("coordination.k8s.io", "leases", "create get"),
    rbac_rule("", "secrets persistentvolumeclaims", "create"),
    rbac_rule("", "services", "create get"),
    _NETWORKS,
    rbac_rule("scheduling.volcano.sh", "podgroups", "create"),
]
WATCHDOG = [
    _EXECUTOR,
    rbac_rule("argoproj.io", "workflows", "get patch"),
    rbac_rule("", "events", "list"),
    rbac_rule("", "pods", "list patch"),
    rbac_rule("", "pods/status", "patch"),
]
FINISH = [
    _EXECUTOR,
    rbac_rule("argoproj.io", "workflows", "get patch"),
    rbac_rule("coordination.k8s.io", "leases", "delete"),
]
MEASURE = [_EXECUTOR, rbac_rule("", "pods", "list")]
CREATE = [_EXECUTOR, rbac_rule("argoproj.io", "workflows", "create get")]
CLUSTER = [
    rbac_rule("", "nodes", "list"),
    rbac_rule("", "persistentvolumes", "list"),
    rbac_rule("", "namespaces", "get", ("kube-system",)),
    rbac_rule("", "configmaps", "get", ("cluster-autoscaler-status",)),
    rbac_rule("apps", "daemonsets", "list"),
    rbac_rule("storage.k8s.io", "storageclasses csidrivers", "list"),
    _NETWORKS,
    rbac_rule("scheduling.k8s.io", "priorityclasses", "get", PRIORITY_CLASSES),
]
"""What the steps plan and recheck read of the whole cluster."""

Grant = tuple[Rights, tuple[str, ...]]
"""The rights of a benchmark that is allowed, and the namespaces of its objects."""
_RBAC = "rbac.authorization.k8s.io"


def supporting_objects(
    installation: Installation, granted: Mapping[str, Grant] | None = None
) -> list[Object]:
    """Return what an installation needs beside its templates.

    `granted` has the rights of the benchmarks that are allowed, by name. `install --namespaced`
    leaves out whatever is cluster-wide.
    """
    accounts = {
        "perfdag-run": RUN,
        "perfdag-watchdog": WATCHDOG,
        "perfdag-finish": FINISH,
        "perfdag-measure": MEASURE,
        "perfdag-create": CREATE,
    }
    grants = sorted((granted or {}).items())
    bodies = [] if installation.namespaced else _namespaces([grant for _, grant in grants])
    bodies += [_account(installation, name) for name in accounts]
    for name, rules in accounts.items():
        bodies += _grant(installation, name, rules, name)
    for name, (rights, namespaces) in grants:
        bodies += _allowed(installation, account_of(name), rights, namespaces)
    if installation.network_policy:
        bodies.append(network_policy(installation))
    if not installation.namespaced:
        name = f"perfdag-{installation.namespace}-nodes"
        usual, preempting = PRIORITY_CLASSES
        bodies += [
            *_grant(installation, name, CLUSTER, "perfdag-run", ""),
            _priority(usual, 0, "Never", "Measuring pods wait for room and push nobody out."),
            _priority(
                preempting,
                1000,
                "PreemptLowerPriority",
                "Measuring pods of a suite that asks for priority.",
            ),
        ]
    return bodies


def _namespaces(grants: list[Grant]) -> list[Object]:
    """Return the namespaces where benchmarks create objects. `install` leaves existing ones alone.

    Templates of a suite say what pods there look like, so PodSecurity limits them.
    """
    names = set[str]()
    for rights, namespaces in grants:
        if rights.creates:
            names |= {*namespaces}
    labels = {LEVEL: "baseline", **SHARED}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        for name in sorted(names)
    ]


def _allowed(
    installation: Installation, account: str, rights: Rights, namespaces: tuple[str, ...]
) -> list[Object]:
    """Return the account of a benchmark and its rights, by where they hold."""
    name = f"{account}-{installation.namespace}"
    bodies = [
        _account(installation, account),
        *_grant(installation, account, MEASURE, account),
    ]
    for namespace in namespaces:
        bodies += _grant(installation, name, [*rights.named], account, namespace)
    if rights.default and not installation.namespaced:
        shared = f"{name}-default"
        bodies += _grant(installation, shared, [*rights.default], account, "default")
    if rights.cluster and not installation.namespaced:
        bodies += _grant(installation, name, [*rights.cluster], account, "")
    return bodies


def _account(installation: Installation, name: str) -> Object:
    secrets = [{"name": secret} for secret in installation.pull_secrets]
    fields: Object = {"imagePullSecrets": secrets} if secrets else {}
    return _body(installation, "v1", "ServiceAccount", name, **fields)


def _grant(
    installation: Installation,
    name: str,
    rules: list[Object],
    account: str,
    namespace: str | None = None,
) -> list[Object]:
    """Return a Role and its binding to an account: ClusterRoles with an empty namespace."""
    kind = "ClusterRole" if namespace == "" else "Role"
    role = {"apiGroup": _RBAC, "kind": kind, "name": name}
    subject = {"kind": "ServiceAccount", "name": account, "namespace": installation.namespace}
    bound = {"roleRef": role, "subjects": [subject]}
    return [
        _body(installation, f"{_RBAC}/v1", kind, name, namespace, rules=rules),
        _body(installation, f"{_RBAC}/v1", f"{kind}Binding", name, namespace, **bound),
    ]


def _body(
    installation: Installation,
    api: str,
    kind: str,
    name: str,
    namespace: str | None = None,
    **fields: Any,
) -> Object:
    """Return an object of the installation, cluster-wide with an empty namespace."""
    space = installation.namespace if namespace is None else namespace
    place = {"namespace": space} if space else {}
    metadata = {"name": name, **place, "labels": installation.labels}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **fields}


def network_policy(installation: Installation) -> Object:
    """Return the policy that lets only measuring pods reach the servers of measuring pods.

    The servers of iperf and netperf answer anyone. sshd checks a key, so its port is open: in an
    A/B run the lead of one variant may be on the host network, where no label selects it. What the
    pods connect to themselves (S3, the API server) is not restricted.
    """
    measuring = {"podSelector": {"matchLabels": {MEASURING: "true"}}}
    ssh = {"protocol": "TCP", "port": SSH_PORT}
    ingress = {"policyTypes": ["Ingress"], "ingress": [{"from": [measuring]}, {"ports": [ssh]}]}
    return _body(
        installation,
        "networking.k8s.io/v1",
        "NetworkPolicy",
        "perfdag-measuring",
        spec={**measuring, **ingress},
    )


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

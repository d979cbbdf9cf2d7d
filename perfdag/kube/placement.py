"""Where the pods of a shape are placed: affinity, topology spread, node selection."""

from perfdag.kube.labels import LABEL
from perfdag.kube.placeholders import ATTEMPT, BATCH
from perfdag.kube.resources import Object
from perfdag.shape import ACROSS, Shape

_HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
WIDE_GANG = 32
"""Pods of a gang above which anti-affinity is too slow, so topologySpread is used."""

CLEARING = 660
"""Grace period in seconds of a benchmark that has to delete objects on the cluster."""
LOST_NODE_SECONDS = 60
"""Seconds after which Kubernetes deletes a pod whose node does not answer."""


def node_loss_tolerations(seconds: int = LOST_NODE_SECONDS) -> list[Object]:
    """Return what lets Kubernetes give up a pod `seconds` after its node is NotReady.

    So no pod needs the right to delete pods, if its grace period is 0 as well. With any other, the
    pod stays until a kubelet that is gone confirms its end, and Argo waits for it. A kubelet that
    lives sends SIGTERM and gives 2 s.
    """
    return [
        {
            "key": f"node.kubernetes.io/{state}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": seconds,
        }
        for state in ("not-ready", "unreachable")
    ]


def place(shape: Shape, spec: Object, run_id: str, rank: int) -> None:
    """Add the affinity, node selection and scheduler of a rank of a shape to a pod spec."""
    own: Object = {"matchLabels": {f"{LABEL}/run": run_id, f"{LABEL}/batch": BATCH}}
    # Pods of an earlier attempt remain on a dead node, and must not attract these pods.
    gang: Object = {"matchLabels": {**own["matchLabels"], f"{LABEL}/attempt": ATTEMPT}}
    anti: list[Object] = []
    if shape.hosts.exclusive:
        anti += [_away(_others("run", run_id)), _away(_others("batch", BATCH))]
    if shape.hosts.placement == "spread" and shape.hosts.count > 1:
        if shape.hosts.count > WIDE_GANG:
            spec["topologySpreadConstraints"] = [
                {
                    "maxSkew": 1,
                    "topologyKey": _HOSTNAME,
                    "whenUnsatisfiable": "DoNotSchedule",
                    "labelSelector": own,
                }
            ]
        else:
            anti.append({"labelSelector": own, "topologyKey": _HOSTNAME})
    if shape.hosts.pairs == ACROSS:
        anti.append({"labelSelector": own, "topologyKey": ZONE})
    affinity: Object = {}
    if anti:
        affinity["podAntiAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": anti}
    if shape.hosts.placement == "packed" and shape.hosts.count > 1:
        terms = [{"labelSelector": gang, "topologyKey": _HOSTNAME}]
        affinity["podAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    if shape.zones or shape.hosts.pairs == ACROSS:
        labelled: Object = {"key": ZONE, "operator": "Exists"}
        if shape.zones:
            labelled |= {"operator": "In", "values": list(shape.zones)}
        zone = {"matchExpressions": [labelled]}
        affinity["nodeAffinity"] = {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [zone]}
        }
    if affinity:
        spec["affinity"] = affinity
    role = of_roles(shape).get("client" if rank == 0 else "server", shape)
    if role.node_selector:
        spec["nodeSelector"] = dict(role.node_selector)
    if shape.tolerations:  # they replace those of the Workflow
        own = [item.model_dump(exclude_none=True) for item in shape.tolerations]
        spec["tolerations"] = [*own, *node_loss_tolerations()]
    if shape.scheduler == "volcano":
        spec["schedulerName"] = "volcano"
    if shape.runtime_class:
        spec["runtimeClassName"] = shape.runtime_class


def of_roles(shape: Shape) -> dict[str, Shape]:
    """Return the shapes of the client and of the server, each with its own node selector."""
    roles = shape.hosts.roles
    selectors = {} if roles is None else {"client": roles.client, "server": roles.server}
    return {
        name: shape.model_copy(
            update={"node_selector": {**shape.node_selector, **role.node_selector}}
        )
        for name, role in selectors.items()
    }


def _others(label: str, own: str) -> list[Object]:
    return [
        {"key": f"{LABEL}/measuring", "operator": "Exists"},
        {"key": f"{LABEL}/{label}", "operator": "NotIn", "values": [own]},
    ]


def _away(expressions: list[Object]) -> Object:
    # All namespaces, as measuring pods of other teams disturb as well.
    return {
        "labelSelector": {"matchExpressions": expressions},
        "namespaceSelector": {},
        "topologyKey": _HOSTNAME,
    }

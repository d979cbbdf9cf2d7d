"""The Services through which `network.path` reaches the servers of a gang."""

import hashlib
from collections.abc import Iterator

from perfdag.kube.labels import LABEL
from perfdag.kube.resources import Object
from perfdag.shape import Shape

FORWARDED = {"service": "ClusterIP", "nodeport": "NodePort"}
"""Types of Services, by `network.path`."""
PORTS_EACH = 2
"""Ports that a Service forwards, for TCP and for UDP. A port has one number on its whole path."""
_FIRST, _PORTS = 30000, 2768
"""The range of node ports, if the API server has its default."""


def service_name(workflow_uid: str, batch: int, rank: int) -> str:
    """Return the name of the Service of a rank."""
    return f"perfdag-{workflow_uid}-b{batch}-r{rank}"


def services(shape: Shape, run_id: str, workflow: tuple[str, str], batch: int) -> Iterator[Object]:
    """Yield the Services of the ranks of a batch that may be servers.

    `workflow` is the name and the uid.
    """
    kind = FORWARDED.get(shape.network.path or "")
    if kind is None:
        return
    name, uid = workflow
    for rank in range(int(shape.hosts.pairs is None), shape.hosts.count):
        labels = {"run": run_id, "batch": str(batch), "rank": str(rank)}
        yield {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": service_name(uid, batch, rank)},
            "spec": {
                "type": kind,
                "selector": {
                    "workflows.argoproj.io/workflow": name,
                    **{f"{LABEL}/{key}": value for key, value in labels.items()},
                },
                "ipFamilies": ["IPv6" if shape.network.family == "ipv6" else "IPv4"],
                "ports": service_ports(f"{uid} {batch} {rank}", kind == "NodePort"),
            },
        }


def service_ports(seed: str, on_nodes: bool) -> list[Object]:
    """Return the ports of a Service; another `seed` gives others."""
    number = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:4], "big")
    first = _FIRST + PORTS_EACH * (number % (_PORTS // PORTS_EACH))
    return [
        {
            "name": f"{protocol.lower()}-{port - first}",
            "protocol": protocol,
            "port": port,
            "targetPort": port,
            **({"nodePort": port} if on_nodes else {}),
        }
        for port in range(first, first + PORTS_EACH)
        for protocol in ("TCP", "UDP")
    ]

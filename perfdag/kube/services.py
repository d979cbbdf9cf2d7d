"""Ports of measuring pods, and the Services that forward to them."""

import hashlib
from collections.abc import Iterator

from perfdag.kube.client import Object
from perfdag.kube.labels import BATCH, RANK, RUN
from perfdag.shape import Shape

SSH_PORT = 2222


def ssh_port(shape: Shape, run_id: str, rank: int) -> int:
    """Return the port where the peer of a rank listens for the lead.

    On a host network the run id decides, so that the ports of any gang are in 20000 to 29999.
    """
    if shape.network.host:
        return 20000 + _hash(run_id) % (10000 - 2 * 4096) + rank
    return SSH_PORT


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


FORWARDED = {"service": "ClusterIP", "nodeport": "NodePort"}
"""Types of Services, by `network.path`."""
PORTS_EACH = 2
"""Ports that a Service forwards, for TCP and for UDP. A port has one number on its whole path."""
_FIRST, _PORTS = 30000, 2768
"""The range of node ports, if the API server has its default."""


def services(shape: Shape, run_id: str, workflow: tuple[str, str], batch: int) -> Iterator[Object]:
    """Yield the Services of the ranks of a batch that may be servers.

    `workflow` is the name and the uid.
    """
    kind = FORWARDED.get(shape.network.path or "")
    name, uid = workflow
    for rank in range(int(shape.hosts.pairs is None), shape.hosts.count if kind else 0):
        yield {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": f"perfdag-{uid}-b{batch}-r{rank}"},
            "spec": {
                "type": kind,
                "selector": {
                    "workflows.argoproj.io/workflow": name,
                    RUN: run_id,
                    BATCH: str(batch),
                    RANK: str(rank),
                },
                "ipFamilies": ["IPv6" if shape.network.family == "ipv6" else "IPv4"],
                "ports": service_ports(f"{uid} {batch} {rank}", kind == "NodePort"),
            },
        }


def service_ports(seed: str, on_nodes: bool) -> list[Object]:
    """Return the ports of a Service; another `seed` gives others."""
    first = _FIRST + PORTS_EACH * (_hash(seed) % (_PORTS // PORTS_EACH))
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

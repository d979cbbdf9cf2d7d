"""The placement of ranks by MPI, and the memory that each may use for buffers."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from perfdag.benchmark.contract import Gang
from perfdag.hosts import cgroups
from perfdag.hosts.base import Host
from perfdag.outcome import Failed
from perfdag.steps.imb.params import GIB, ImbParams
from perfdag.steps.mpi import openmpi

SHARE = 0.8
"""Share of the available memory for buffers; the rest is for MPI and the system."""
_SMALL_BUFFERS = GIB // 4
"""Buffers of all ranks of a host up to which its free memory is not checked."""
_AVAILABLE = re.compile(r"^MemAvailable:\s+(\d+) kB", re.M)


def wrong_placement(hosts: Sequence[str], ranks_of: Mapping[str, int], ranks: int) -> str | None:
    """Return why the ranks did not run on the nodes of `hosts`, or None.

    `ranks_of` counts the ranks of each node as MPI reports them. Pods of one node have different
    names. Open MPI reports no placement with transport rdma, so there is nothing to compare.
    """
    if not hosts or sum(ranks_of.values()) != ranks:
        return None
    nodes = Counter({name: count * ranks // len(hosts) for name, count in Counter(hosts).items()})
    if len(ranks_of) > len(nodes) or sorted(ranks_of.values()) == sorted(nodes.values()):
        return None
    placed = ", ".join(f"{count} on {name}" for name, count in sorted(ranks_of.items()))
    return (
        f"{ranks} ranks were requested on {len(nodes)} nodes ({', '.join(nodes)}),"
        f" MPI placed {placed}"
    )


def buffer_memory(gang: Gang, params: ImbParams) -> float | None:
    """Return the bytes of buffers that a rank may have, or None if unknown.

    The free memory of the smallest host and the memory limit of a pod bound it.
    """
    ranks = max(openmpi.ranks_by_address(gang.hosts, params.ranks).values())
    if ranks * params.memory() <= _SMALL_BUFFERS:
        return None
    available = [
        int(match[1]) * 1024 for host in gang.hosts if (match := _AVAILABLE.search(_meminfo(host)))
    ]
    # The pods of a gang share one shape, and this process runs in one of them.
    limit = cgroups.limits()["memory_limit_bytes"]
    available += [limit] if limit else []
    return SHARE * min(available) / ranks if available else None


def _meminfo(host: Host) -> str:
    try:
        return host.get("/proc/meminfo").decode()
    except Failed:
        return ""

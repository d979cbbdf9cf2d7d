"""Start Open MPI over the hosts of a gang, and read which transport its log reports.

mpirun starts its daemons on the other hosts with `perfdag step rsh HOST COMMAND`, which uses
Host.run. The daemons stay attached to it, so they end with it.
Source of the options: Open MPI 4.1 and 5.0 (mpirun(1), ompi_info --all).
"""

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from perfdag.benchmark.contract import Gang, Tool
from perfdag.hosts import facts
from perfdag.hosts.base import Host
from perfdag.hosts.local import LocalHost
from perfdag.outcome import Failed, Skip
from perfdag.shape import Shape
from perfdag.units import parse_cpu_list, parse_quantity

Transport = Literal["tcp", "rdma"]
MPIRUN = Tool(
    "mpirun",
    {
        "apt": "openmpi-bin",
        "dnf": "openmpi",
        "zypper": "openmpi4",
        "pacman": "openmpi",
        "brew": "open-mpi",
    },
)
_BTLS = re.compile(r"mca: bml: Using (\w+) btl for send to")
_NODES = re.compile(r"send to \[\[\d+,1\],(\d+)\] on node (\S+)")
_VERSION = re.compile(r"\(Open MPI\) (\S+)")
_SHARED_MEMORY = {"vader", "sm"}
"""Two names of one BTL: Open MPI 5.0 prints sm and still accepts vader."""
_LIMITS = (
    "/proc/self/status",
    *(
        f"/sys/fs/cgroup/{name}"
        for name in ("cpu.max", "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")
    ),
)
_ALLOWED = re.compile(r"^Cpus_allowed_list:\s*([0-9,-]+)$", re.M)
# Quota and period in microseconds; cgroup version 1 has each in a file of its own.
_QUOTA = re.compile(r"^(\d+)\s(\d+)$", re.M)
_SELECTED = re.compile(r"select: component (\w+) selected")
_UNKNOWN_LAYER = "does not say what it used"
WIRE = "rc,dc,ud,self"
"""UCX's network transports.

tcp is not among them: a fallback would report Ethernet as rdma."""


def ranks_by_address(hosts: Sequence[Host], ranks: int) -> dict[str, int]:
    """Return the ranks of each address, in order; `ranks` is a multiple of the hosts.

    Hosts with one address (this machine several times) count as one.
    """
    per_host = ranks // len(hosts)
    counted: Counter[str] = Counter()
    for host in hosts:
        counted[host.address] += per_host
    return dict(counted)


def few_cpus(shape: Shape, ranks: int) -> list[str]:
    """Return why the ranks of a pod would exceed its CPU quota, or an empty list.

    A request without a limit sets no quota. oversubscribe does not help, although this check
    passes: a quota throttles spinning ranks, and a throttled sample is invalid.
    """
    limit = shape.resources.all_limits().get("cpu")
    if limit is None or parse_quantity(limit) >= ranks:
        return []
    return [
        f"on a cluster {ranks} processes in each pod, and resources.cpu {limit}, would be"
        f" throttled by its CPU quota; raise it to {ranks}, use fewer, or write it"
        " below resources.requests, which sets no quota"
    ]


def require(hosts: Sequence[Host], ranks: int, oversubscribe: bool, transport: str) -> None:
    """Raise Skip if the hosts have too few CPUs for the ranks, or no RDMA device to use."""
    if not oversubscribe:
        need_cpus(hosts, ranks)
    if transport == "rdma":
        need_rdma(hosts)


def need_cpus(hosts: Sequence[Host], ranks: int) -> None:
    """Raise Skip if a pod or a node has fewer CPUs than ranks.

    Spinning ranks that share a CPU measure the scheduler. The kubelet's static CPU manager gives
    a pod its own CPUs, so each pod of a node is checked. Under a quota, `oversubscribe` does not
    help.
    """
    per_host = ranks // len(hosts)
    pods: dict[tuple[str, int], tuple[Host, int]] = {}
    for index, host in enumerate(hosts):
        # This machine may appear several times and counts once.
        key = (host.name, -1 if isinstance(host, LocalHost) else index)
        pods[key] = (host, per_host + pods.get(key, (host, 0))[1])
    nodes: dict[str, set[int]] = {}
    wanted: Counter[str] = Counter()
    for host, count in pods.values():
        own, quota = _cpus(host)
        if quota is not None and quota < count:
            raise Skip(
                f"{host.name} has a CPU quota of {quota:g} for {count} processes,"
                " which would throttle them; raise it, or use fewer"
            )
        _check_cpus(
            f"{'' if isinstance(host, LocalHost) else 'a pod on '}{host.name}", len(own), count
        )
        nodes[host.name] = nodes.get(host.name, set()) | own
        wanted[host.name] += count
    for name, own in nodes.items():
        _check_cpus(name, len(own), wanted[name])


def _check_cpus(where: str, has: int, needed: int) -> None:
    if has < needed:
        raise Skip(
            f"{where} has {has} CPUs for {needed} processes; use fewer, or set oversubscribe: true"
        )


def _cpus(host: Host) -> tuple[set[int], float | None]:
    """Return the CPUs that a host's processes may use, and its CPU quota or None.

    Raises Failed.
    """
    if isinstance(host, LocalHost):
        own = (
            os.sched_getaffinity(0)
            if hasattr(os, "sched_getaffinity")
            else set(range(os.cpu_count() or 1))
        )
        return own, facts.limits()["cpu_limit"]
    result = host.run(["cat", *_LIMITS], timeout=10)  # cat prints those that exist.
    allowed, quota = _ALLOWED.search(result.stdout), _QUOTA.search(result.stdout)
    if allowed is None:
        raise Failed(f"{host.name} does not say on which CPUs it may run: {result.tail(100)}")
    return parse_cpu_list(allowed[1]), int(quota[1]) / int(quota[2]) if quota else None


def version(host: Host) -> str:
    """Return `Open MPI 4.1.4` for the host's mpirun. Raises Skip if it is another MPI's."""
    result = host.run([MPIRUN.program, "--version"], timeout=10)
    match = _VERSION.search(result.stdout)
    if match is None:
        raise Skip(
            f"mpirun on {host.name} is not Open MPI's"
            f" ({result.tail(100) or 'it does not say whose'}); put Open MPI's first on PATH"
        )
    return f"Open MPI {match[1]}"


def environment() -> dict[str, str]:
    """Return what mpirun needs to run as uid 0, which may be a container's only user."""
    return {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def mpirun(
    gang: Gang,
    ranks: int,
    transport: Transport,
    *,
    bind: str = "none",
    oversubscribe: bool = False,
    export: Mapping[str, str] | None = None,
    layers: str = "self,vader,tcp",
    tls: str = f"{WIRE},sm",
    interface: str | None = None,
) -> list[str]:
    """Return the arguments up to the program. `export` is set in every rank's environment.

    With tcp, `layers` are the BTLs that messages may use; without vader, ranks of one host use
    TCP too. `interface` is the one of TCP; by default the shape's, else Open MPI's choice, which
    leaves out loopback. With rdma, `tls` are UCX's transports; with WIRE alone, ranks of one host
    use the device too.
    """
    placed = ranks_by_address(gang.hosts, ranks)
    # An IPv6 address in --host needs brackets, or its colons read as slot counts.
    hosts = ",".join(
        f"{f'[{address}]' if ':' in address else address}:{count}"
        for address, count in placed.items()
    )
    argv = ["mpirun", "-np", str(ranks), "--host", hosts, "--bind-to", bind, "--wdir", "/"]
    if len(placed) > 1:
        if len(set(placed.values())) == 1:
            # By slot, Open MPI 5.0.7 counts one slot for the lead's own address, whatever it says.
            argv += ["--map-by", f"ppr:{ranks // len(placed)}:node"]
        argv += [
            "--mca",
            "plm_rsh_agent",
            "perfdag step rsh",
            "--mca",
            "plm_rsh_no_tree_spawn",
            "1",
            "--leave-session-attached",
        ]
    if oversubscribe:
        argv += ["--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
    argv += ["--mca", "pml_base_verbose", "10"]
    if transport == "tcp":
        # vader copies between ranks of one host. Its kernel-assisted copy needs ptrace rights,
        # which restricted pods lack.
        argv += [
            "--mca",
            "pml",
            "ob1",
            "--mca",
            "btl",
            layers,
            "--mca",
            "btl_vader_single_copy_mechanism",
            "none",
        ]
        # 1 is the lowest level that reports the BTL of each pair of ranks.
        argv += ["--mca", "btl_base_verbose", "1"]
        named = interface or gang.shape.network.interface
        if named:
            argv += ["--mca", "btl_tcp_if_include", named]
        if named and len(placed) > 1:  # Open MPI 5 does not start daemons on loopback.
            argv += ["--mca", "oob_tcp_if_include", named]
    else:
        argv += ["--mca", "pml", "ucx", "--mca", "osc", "ucx", "-x", f"UCX_TLS={tls}"]
    for name, value in (export or {}).items():
        argv += ["-x", f"{name}={value}"]
    return argv


def need_rdma(hosts: Sequence[Host]) -> None:
    """Raise Skip if a host has no RDMA device (/sys/class/infiniband is empty or absent)."""
    for host in hosts:
        devices = host.run(["ls", "/sys/class/infiniband"], timeout=10)
        if devices.code != 0 or not devices.stdout.strip():
            raise Skip(
                f"{host.name} has no RDMA device: nothing in /sys/class/infiniband"
                " (ask for a device resource, or transport: tcp)"
            )


def selected_layer(log: str) -> str | None:
    """Return the point-to-point layer that the ranks chose, from pml_base_verbose, or None.

    `ob1` serves TCP and shared memory, `ucx` RDMA.
    """
    layers = set(_SELECTED.findall(log))
    return "+".join(sorted(layers)) if layers else None


def btls(log: str) -> set[str]:
    """Return the BTLs between ranks, from btl_base_verbose, except for a rank with itself."""
    return set(_BTLS.findall(log)) - {"self"}


def nodes_of_ranks(log: str) -> dict[int, str]:
    """Return the node of each rank, from btl_base_verbose; empty with transport rdma."""
    return {int(rank): node for rank, node in _NODES.findall(log)}


def wrong_transport(log: str, requested: Literal["tcp", "shm", "rdma"]) -> str | None:
    """Return why the run did not use the requested transport, or None."""
    if requested == "rdma":
        layer = selected_layer(log)
        return (
            None
            if layer == "ucx"
            else f"rdma was requested, Open MPI {f'used {layer}' if layer else _UNKNOWN_LAYER}"
        )
    used = btls(log)
    expected = {"tcp"} if requested == "tcp" else _SHARED_MEMORY
    if len(used) == 1 and used <= expected:
        return None
    actual = f"used {', '.join(sorted(used))}" if used else _UNKNOWN_LAYER
    return f"{requested} was requested, Open MPI {actual}"

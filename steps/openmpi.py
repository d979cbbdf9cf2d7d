"""How Open MPI is started over the hosts of a gang: mpirun's arguments, and what its log says of the transport used.

mpirun starts its daemons on the other hosts with `perfdag step rsh HOST COMMAND`, which runs them by Host.run; the daemons stay attached
to it, so they end with it. Options are those of Open MPI 4.1 (mpirun(1), ompi_info --all).
"""

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from perfdag import cgroups, cpulist
from perfdag.benchmark import Failed, Gang, Skip, Tool
from perfdag.hosts import Host, LocalHost
from perfdag.shape import Shape, amount

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
_WAYS = re.compile(r"mca: bml: Using (\w+) btl for send to")
_NODES = re.compile(r"send to \[\[\d+,1\],(\d+)\] on node (\S+)")
_VERSION = re.compile(r"\(Open MPI\) (\S+)")
_SHARED_MEMORY = {
    "vader",
    "sm",
}  # one way by two names: sm from Open MPI 5.0 on, which still takes the older one on its command line
_LIMITS = (
    "/proc/self/status",
    *(
        f"/sys/fs/cgroup/{name}"
        for name in ("cpu.max", "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")
    ),
)
_ALLOWED = re.compile(r"^Cpus_allowed_list:\s*([0-9,-]+)$", re.M)
_QUOTA = re.compile(
    r"^(\d+)\s(\d+)$", re.M
)  # microseconds of a period, on a line of its own each in version 1
_SELECTED = re.compile(r"select: component (\w+) selected")
WIRE = "rc,dc,ud,self"
"""UCX's transports over the wire. No tcp: with a TCP fallback an `rdma` result could be one over Ethernet."""


def ranks_by_address(hosts: Sequence[Host], ranks: int) -> dict[str, int]:
    """Ranks of each address, in order; hosts of one address (this machine several times) are one. `ranks` is a multiple of the hosts."""
    per_host = ranks // len(hosts)
    counted: Counter[str] = Counter()
    for host in hosts:
        counted[host.address] += per_host
    return dict(counted)


def few_cpus(shape: Shape, ranks: int) -> list[str]:
    """Why so many ranks in a pod would wait for its CPU quota, empty where they would not: resources are its limits too.

    oversubscribe is no way out, though it passes here: a quota throttles ranks that spin, and noise.throttled makes such a sample invalid.
    """
    given = shape.resources.get("cpu")
    if given is None or amount(given) >= ranks:
        return []
    return [
        f"on a cluster {ranks} processes in each pod, and resources.cpu {given}, would be throttled by its CPU quota; raise it to {ranks}, use fewer,"
        " or leave it out for `perfdag run`, which sets no quota"
    ]


def need_cpus(hosts: Sequence[Host], ranks: int) -> None:
    """Raise Skip where a pod or a node has fewer CPUs than it gets ranks: spinning ranks that share a CPU measure the scheduler.

    A pod's CPUs may be its own (the kubelet's static CPU manager), so those of a node are asked of each pod on it. Under a quota oversubscribe
    is no way out, as in few_cpus.
    """
    per_host = ranks // len(hosts)
    pods: dict[tuple[str, int], tuple[Host, int]] = {}
    for index, host in enumerate(hosts):
        key = (
            host.name,
            -1 if isinstance(host, LocalHost) else index,
        )  # this machine several times is one
        pods[key] = (host, per_host + pods.get(key, (host, 0))[1])
    nodes: dict[str, set[int]] = {}
    wanted: Counter[str] = Counter()
    for host, count in pods.values():
        own, quota = _cpus(host)
        if quota is not None and quota < count:
            raise Skip(
                f"{host.name} has a CPU quota of {quota:g} for {count} processes, which would throttle them; raise it, or use fewer"
            )
        _enough(f"{'' if isinstance(host, LocalHost) else 'a pod on '}{host.name}", len(own), count)
        nodes[host.name] = nodes.get(host.name, set()) | own
        wanted[host.name] += count
    for name, own in nodes.items():
        _enough(name, len(own), wanted[name])


def _enough(where: str, has: int, wanted: int) -> None:
    if has < wanted:
        raise Skip(
            f"{where} has {has} CPUs for {wanted} processes; use fewer, or set oversubscribe: true"
        )


def _cpus(host: Host) -> tuple[set[int], float | None]:
    """The CPUs on which a host's processes may run, and how many of them its cgroup may keep busy (None: no quota). Raises Failed."""
    if isinstance(host, LocalHost):
        own = (
            os.sched_getaffinity(0)
            if hasattr(os, "sched_getaffinity")
            else set(range(os.cpu_count() or 1))
        )
        return own, cgroups.limits()["cpu_limit"]
    said = host.run(["cat", *_LIMITS], timeout=10)  # what of them is there
    allowed, quota = _ALLOWED.search(said.stdout), _QUOTA.search(said.stdout)
    if allowed is None:
        raise Failed(f"{host.name} does not say on which CPUs it may run: {said.tail(100)}")
    return cpulist.cpus(allowed[1]), int(quota[1]) / int(quota[2]) if quota else None


def version(host: Host) -> str:
    """`Open MPI 4.1.4`: whose mpirun is found on that host. Raises Skip where it is another MPI's."""
    said = host.run([MPIRUN.program, "--version"], timeout=10)
    found = _VERSION.search(said.stdout)
    if found is None:
        raise Skip(
            f"mpirun on {host.name} is not Open MPI's ({said.tail(100) or 'it does not say whose'}); put Open MPI's first on PATH"
        )
    return f"Open MPI {found[1]}"


def environment() -> dict[str, str]:
    """For mpirun itself: it refuses uid 0 without these two, and a container's only user may be uid 0."""
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
    """Arguments up to the program. `export` is set in every rank's environment.

    With tcp `layers` are the ways (BTLs) that messages may take: without vader those between ranks of one host take TCP too; `interface` is
    the one that TCP uses (default: the shape's, else Open MPI's choice, which leaves out loopback). With rdma `tls` are UCX's transports:
    with WIRE alone messages between ranks of one host take the device too.
    """
    placed = ranks_by_address(gang.hosts, ranks)
    # an IPv6 address in --host needs brackets, or its colons read as slot counts
    hosts = ",".join(
        f"{f'[{address}]' if ':' in address else address}:{count}"
        for address, count in placed.items()
    )
    argv = ["mpirun", "-np", str(ranks), "--host", hosts, "--bind-to", bind, "--wdir", "/"]
    if len(placed) > 1:
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
        # vader copies between ranks of one host; its kernel-assisted copy needs ptrace rights that restricted pods lack
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
        argv += [
            "--mca",
            "btl_base_verbose",
            "1",
        ]  # the least at which it says which way each pair of ranks took
        named = interface or gang.shape.network.interface
        if named:
            argv += ["--mca", "btl_tcp_if_include", named, "--mca", "oob_tcp_if_include", named]
    else:
        argv += ["--mca", "pml", "ucx", "--mca", "osc", "ucx", "-x", f"UCX_TLS={tls}"]
    for name, value in (export or {}).items():
        argv += ["-x", f"{name}={value}"]
    return argv


def need_rdma(hosts: Sequence[Host]) -> None:
    """Raise Skip where a host has no RDMA device (/sys/class/infiniband is empty or absent)."""
    for host in hosts:
        devices = host.run(["ls", "/sys/class/infiniband"], timeout=10)
        if devices.code != 0 or not devices.stdout.strip():
            raise Skip(
                f"{host.name} has no RDMA device: nothing in /sys/class/infiniband (ask for a device resource, or transport: tcp)"
            )


def selected_layer(log: str) -> str | None:
    """The point-to-point layer that the ranks chose (`ob1` for TCP and shared memory, `ucx`), from pml_base_verbose; None: not said."""
    found = set(_SELECTED.findall(log))
    return "+".join(sorted(found)) if found else None


def ways(log: str) -> set[str]:
    """The ways (BTLs) that messages between ranks took, from btl_base_verbose; a rank's messages to itself are left out."""
    return set(_WAYS.findall(log)) - {"self"}


def nodes_of_ranks(log: str) -> dict[int, str]:
    """Rank -> node, from btl_base_verbose; empty with transport rdma, of which Open MPI does not say it."""
    return {int(rank): node for rank, node in _NODES.findall(log)}


def wrong_transport(log: str, asked: Literal["tcp", "shm", "rdma"]) -> str | None:
    """Why what was measured is not the transport asked for, or None."""
    if asked == "rdma":
        layer = selected_layer(log)
        return (
            None
            if layer == "ucx"
            else f"rdma was asked, Open MPI used {layer or 'it does not say what'}"
        )
    used = ways(log)
    expected = {"tcp"} if asked == "tcp" else _SHARED_MEMORY
    return (
        None
        if len(used) == 1 and used <= expected
        else f"{asked} was asked, Open MPI used {', '.join(sorted(used)) or 'it does not say what'}"
    )

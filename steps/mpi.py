"""Intel MPI of the package impi-rt and Open MPI: their command lines, and what their logs report.

Sources of the options: Intel MPI's developer reference; Open MPI 4.1 and 5.0 (mpirun(1), ompi_info
--all). mpirun starts its daemons on the other hosts with `perfdag step rsh HOST COMMAND`, which
uses Host.run. The daemons stay attached to it, so they end with it.
"""

import os
import platform
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import PurePosixPath
from typing import Any, Literal

from perfdag.benchmark.contract import (
    RDMA_WANTED,
    Failed,
    Gang,
    Host,
    NotInstalled,
    Problem,
    Shape,
    Skip,
    Tool,
    argv_of,
)
from perfdag.hosts.local import allowed_cpus
from perfdag.identity import grouped
from perfdag.units import parse_quantity

Transport = Literal["tcp", "shm", "rdma"]
WIRE = "rc,dc,ud,self"
"""UCX's network transports.

tcp is not among them: a fallback would report Ethernet as rdma."""
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
_PROVIDERS = ("mlx", "verbs;ofi_rxm", "verbs", "psm2", "psm3", "opx", "efa")


# -- what the hosts must have ----------------------------------------------------------------------


def shape(image: str, hosts: int, transport: Transport) -> dict[str, Any]:
    """Return what the pods of ranks on `hosts` hosts look like."""
    pods: dict[str, Any] = {"image": image, "hosts": {"count": hosts}}
    if transport == "rdma":
        pods["privileges"] = ["rdma"]
    return pods


def problems(
    shape: Shape, ranks: int, transport: Transport, oversubscribe: bool
) -> Iterator[Problem]:
    """Yield that pods have no RDMA device, or that their ranks would exceed their CPU quota.

    A request without a limit sets no quota. oversubscribe does not help, although this check
    passes: a quota throttles spinning ranks, and a throttled sample is invalid.
    """
    if transport == "rdma" and not shape.has_rdma():
        yield Problem("no-rdma", f"transport: rdma {RDMA_WANTED}")
    limit = shape.resources.amounts("limits").get("cpu")
    if not oversubscribe and limit is not None and parse_quantity(limit) < ranks:
        yield Problem(
            "cpu-quota",
            f"on a cluster {ranks} processes in each pod, and resources.cpu {limit}, would be"
            f" throttled by its CPU quota; raise it to {ranks}, use fewer, or write it"
            " below resources.requests, which sets no quota",
        )


def require(hosts: Sequence[Host], ranks: int, oversubscribe: bool, transport: str) -> None:
    """Raise Skip if the hosts have too few CPUs for the ranks, or no RDMA device to use.

    Spinning ranks that share a CPU measure the scheduler. The kubelet's static CPU manager gives
    a pod its own CPUs, so each pod is checked, and each node.
    """
    if not oversubscribe:
        _require_cpus(hosts, ranks // len(hosts))
    if transport == "rdma":
        for host in hosts:
            require_rdma(host)


def require_rdma(host: Host) -> None:
    """Raise Skip if a host lacks an RDMA device, or a container the files of it in /dev."""
    listing = host.run(["ls", "/sys/class/infiniband"], timeout=10)
    if not listing.stdout.split():
        how = "empty" if listing.code == 0 else "absent"
        raise Skip(
            f"{host.name} has no RDMA device: /sys/class/infiniband is {how}"
            " (a driver such as mlx5_ib, rdma_rxe or siw makes one)"
        )
    if "uverbs" not in host.run(["ls", "/dev/infiniband"], timeout=10).stdout:
        raise Skip(
            f"{host.name} has {', '.join(listing.stdout.split())}, but /dev/infiniband/uverbs* is"
            " not in the container; ask for the device plugin's resource"
        )


def _require_cpus(hosts: Sequence[Host], per_host: int) -> None:
    """Raise Skip if a host, or all hosts of a node together, have too few CPUs."""
    for host in hosts:
        _check_cpus(host.name, allowed_cpus(host), per_host)
    for node, of_node in grouped(hosts, key=lambda host: host.name).items():
        cpus = set[int]().union(*map(allowed_cpus, of_node))
        _check_cpus(node, cpus, per_host * len(of_node))


def _check_cpus(name: str, cpus: Set[int], processes: int) -> None:
    if 0 < len(cpus) < processes:  # a system without /proc does not say which ones it has
        raise Skip(
            f"{name} has {len(cpus)} CPUs for {processes} processes;"
            " use fewer, or set oversubscribe: true"
        )


def interface_of(gang: Gang) -> str:
    """Return the interface that holds the first host's measured address. Raises Failed.

    libfabric takes a name, not an address.
    """
    if gang.shape.network.interface:
        return gang.shape.network.interface
    host = gang.hosts[0]
    if host.address in ("127.0.0.1", "::1"):
        return "lo"
    listed = host.run(["ip", "-o", "addr", "show"], timeout=10).check("ip addr").stdout
    for line in listed.splitlines():
        fields = line.split()
        if len(fields) > 3 and fields[3].split("/")[0] == host.address:
            return fields[1].split("@")[0]
    raise Failed(
        f"no interface of {host.name} has the address {host.address};"
        " name it with network.interface"
    )


# -- Intel MPI -------------------------------------------------------------------------------------


def imb_tool(system: str, machine: str) -> Tool:
    """Return IMB-MPI1 and how to get it on a system, named as the module platform does."""
    if (system, machine) == ("Linux", "x86_64"):
        return Tool("IMB-MPI1", {"pip": "impi-rt"})
    advice = (
        f"there is no impi-rt for {system} on {machine};"
        " set mpi: openmpi and name an IMB-MPI1 built for Open MPI with program"
    )
    return Tool("IMB-MPI1", {}, advice)


IMB = imb_tool(platform.system(), platform.machine())


def intel_root(host: Host) -> str:
    """Return the folder with bin/ and lib/ of Intel MPI on that host. Raises NotInstalled.

    It is the prefix of this interpreter, $I_MPI_ROOT, or the prefix on PATH.
    """
    places = [sys.prefix, *filter(None, [os.environ.get("I_MPI_ROOT")])]
    for program in (*(f"{place}/bin/IMB-MPI1" for place in places), "IMB-MPI1"):
        if path := host.which(program):
            return str(PurePosixPath(path).parent.parent)
    raise NotInstalled([IMB])


def intel_environment(
    gang: Gang, root: str, transport: Transport, oversubscribe: bool = False
) -> dict[str, str]:
    """Return the environment of mpirun and of every rank.

    impi-rt has no rpath, so each rank needs LD_LIBRARY_PATH.
    """
    env = {
        "PATH": f"{root}/bin:/usr/local/bin:/usr/bin:/bin",
        # The first entry is impi-rt's layout, the others are those of Intel's own installer.
        "LD_LIBRARY_PATH": f"{root}/lib:{root}/lib/release:{root}/opt/mpi/libfabric/lib",
        "FI_PROVIDER_PATH": f"{root}/lib:{root}/opt/mpi/libfabric/lib/prov",
        "I_MPI_ROOT": root,
        "I_MPI_DEBUG": "3",  # the lowest level that reports provider and interface
        "I_MPI_HYDRA_BOOTSTRAP": "ssh",
        "I_MPI_FABRICS": "shm" if transport == "shm" else "ofi",
    }
    if oversubscribe:
        # A waiting rank sleeps: with 4 ranks on 2 cores a message takes 0.1 ms instead of 20 ms.
        env["I_MPI_THREAD_YIELD"] = "3"
    if transport != "shm":
        # Collectives would use shared memory between ranks of one host, whatever the fabric:
        # 0.3 us for a Barrier "over tcp".
        env["I_MPI_COLL_INTRANODE"] = "pt2pt"
    if transport == "tcp":
        env |= {"FI_PROVIDER": "tcp", "FI_TCP_IFACE": interface_of(gang)}
    return env


def intel_mpirun(gang: Gang, root: str, ranks: int) -> list[str]:
    """Return the arguments of mpirun up to the program.

    Ranks are spread evenly over the hosts; those of one host are consecutive.
    """
    argv = [f"{root}/bin/mpirun", "-n", str(ranks)]
    hosts = list(Counter(host.address for host in gang.hosts))
    if len(hosts) > 1:
        rsh = f"{gang.scratch}/rsh"
        gang.lead.put(rsh, b'#!/bin/sh\nexec perfdag step rsh -- "$@"\n', 0o755)
        argv += ["-hosts", ",".join(hosts), "-ppn", str(ranks // len(hosts))]
        argv += ["-iface", interface_of(gang), "-bootstrap-exec", rsh]
    return argv


def intel_fabric(log: str) -> str | None:
    """Return the fabric in MPI's log: `shm` or a libfabric provider; None if not reported."""
    if provider := re.search(r"MPI startup\(\): libfabric provider: (\S+)", log):
        return provider[1]
    tuning = re.search(r'Load tuning file: "\S*tuning_\w*?(shm|ofi)\S*"', log)
    return "shm" if tuning and tuning[1] == "shm" else None


# -- Open MPI --------------------------------------------------------------------------------------


_ASK_EACH_MPIRUN = """IFS=:
for folder in $PATH; do
    for program in "$folder/mpirun.openmpi" "$folder/mpirun"; do
        [ -x "$program" ] && echo "$program: $("$program" --version 2>&1 | head -n 1)"
    done
done
"""


def find_openmpi(host: Host) -> tuple[str, str]:
    """Return the path of Open MPI's mpirun on a host, and its version, `Open MPI 4.1.4`.

    Each MPI calls its launcher mpirun, and that of impi-rt is the first on PATH in an activated
    environment, so every mpirun on PATH is asked. Raises Skip if none is Open MPI's.
    """
    answers = host.run(["sh", "-c", _ASK_EACH_MPIRUN], timeout=30).stdout
    # Its 4.1 says OpenRTE under the name mpirun.openmpi.
    match = re.search(r"(?m)^(/.*?): .*\((?:Open MPI|OpenRTE)\) (\S+)", answers)
    if match is None:
        others = "; ".join(answers.splitlines()) or "there is no mpirun"
        raise Skip(f"no mpirun on {host.name} is Open MPI's ({others}): {MPIRUN.remedy}")
    return match[1], f"Open MPI {match[2]}"


OPENMPI_ENVIRONMENT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
"""What mpirun needs to run as uid 0, which may be a container's only user."""


def openmpi_mpirun(
    gang: Gang,
    mpirun: str,
    ranks: int,
    transport: Transport,
    *,
    oversubscribe: bool = False,
    export: Mapping[str, str] = {},
    layers: str = "self,vader,tcp",
    tls: str = f"{WIRE},sm",
    interface: str | None = None,
) -> list[str]:
    """Return the arguments of Open MPI's `mpirun` up to the program that the ranks run.

    `export` is set in every rank's environment.

    With rdma, `tls` are UCX's transports; with WIRE alone, ranks of one host use the device too.
    Else `layers` are the BTLs that messages may use; without vader, ranks of one host use TCP too.
    `interface` is the one of TCP; by default the shape's, else Open MPI's choice, which leaves out
    loopback.
    """
    # Hosts with one address (this machine several times) count as one.
    placed: Counter[str] = Counter()
    for host in gang.hosts:
        placed[host.address] += ranks // len(gang.hosts)
    # An IPv6 address in --host needs brackets, or its colons read as slot counts.
    hosts = ",".join(
        f"{f'[{address}]' if ':' in address else address}:{count}"
        for address, count in placed.items()
    )
    several = len(placed) > 1
    even = several and len(set(placed.values())) == 1
    options = {
        "-np": ranks,
        "--host": hosts,
        "--bind-to": "none",
        "--wdir": "/",
        # By slot, Open MPI 5.0.7 counts one slot for the lead's own address, whatever it says.
        "--map-by": f"ppr:{ranks // len(placed)}:node" if even else None,
        "--leave-session-attached": several,
        "--oversubscribe": oversubscribe,
    }
    settings = {
        "pml_base_verbose": "10",
        "plm_rsh_agent": "perfdag step rsh" if several else None,
        "plm_rsh_no_tree_spawn": "1" if several else None,
        "mpi_yield_when_idle": "1" if oversubscribe else None,
    }
    if transport == "rdma":
        settings |= {"pml": "ucx", "osc": "ucx"}
        export = {**export, "UCX_TLS": tls}
    else:
        named = interface or gang.shape.network.interface or None
        settings |= {
            "pml": "ob1",
            "btl": layers,
            # the lowest level that reports the BTL of each pair
            "btl_base_verbose": "1",
            # vader copies between ranks of one host. Its kernel-assisted copy needs ptrace rights,
            # which restricted pods lack.
            "btl_vader_single_copy_mechanism": "none",
            "btl_tcp_if_include": named,
            # Open MPI 5 does not start daemons on loopback.
            "oob_tcp_if_include": named if several else None,
        }
    argv = [mpirun, *argv_of(options)]
    for name, value in settings.items():
        if value is not None:
            argv += ["--mca", name, value]
    for name, value in export.items():
        argv += ["-x", f"{name}={value}"]
    return argv


def openmpi_layer(log: str) -> str | None:
    """Return the point-to-point layer that the ranks chose, from pml_base_verbose, or None.

    `ob1` serves TCP and shared memory, `ucx` RDMA.
    """
    layers = set(re.findall(r"select: component (\w+) selected", log))
    return "+".join(sorted(layers)) if layers else None


# -- what a run used -------------------------------------------------------------------------------


def wrong_transport(log: str, requested: Transport, openmpi: bool) -> str | None:
    """Return why the run did not use the requested transport, or None."""
    if openmpi and requested != "rdma":
        # BTLs between ranks, from btl_base_verbose, but for a rank with itself
        used = set(re.findall(r"mca: bml: Using (\w+) btl for send to", log)) - {"self"}
        # Two names of one BTL: Open MPI 5.0 prints sm and still accepts vader.
        fits = len(used) == 1 and used <= ({"tcp"} if requested == "tcp" else {"vader", "sm"})
    else:
        layer = openmpi_layer(log) if openmpi else intel_fabric(log)
        used = {layer} if layer else set()
        rdma = ("ucx",) if openmpi else _PROVIDERS
        fits = bool(layer) and str(layer).startswith(
            {"tcp": ("tcp",), "shm": ("shm",), "rdma": rdma}[requested]
        )
    if fits:
        return None
    actual = f"used {', '.join(sorted(used))}" if used else "does not say what it used"
    return f"{requested} was requested, {'Open MPI' if openmpi else 'MPI'} {actual}"


def wrong_placement(log: str, hosts: Sequence[Host], ranks: int) -> str | None:
    """Return why the ranks did not run on the nodes of `hosts`, or None.

    Pods of one node have different names. Open MPI reports no placement with transport rdma, so
    there is nothing to compare.
    """
    # Of Intel MPI the CPU pinning table of I_MPI_DEBUG=3, of Open MPI btl_base_verbose.
    pinned = re.findall(r"MPI startup\(\): (\d+)\s+\d+\s+(\S+)\s+\{", log)
    sent = re.findall(r"send to \[\[\d+,1\],(\d+)\] on node (\S+)", log)
    placed = Counter(dict(pinned or sent).values())
    nodes = Counter(host.name for host in hosts)
    requested = sorted(count * ranks // len(hosts) for count in nodes.values())
    if placed.total() != ranks or len(placed) > len(nodes):
        return None
    if sorted(placed.values()) == requested:
        return None
    listed = ", ".join(f"{count} on {name}" for name, count in sorted(placed.items()))
    return (
        f"{ranks} ranks were requested on {len(nodes)} nodes ({', '.join(nodes)}),"
        f" MPI placed {listed}"
    )

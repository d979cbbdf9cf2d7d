"""Intel MPI of the package impi-rt: its place on a host, its mpirun, and what its log reports."""

import os
import platform
import re
import sys
from collections import Counter
from pathlib import PurePosixPath
from typing import Literal

from perfdag.benchmark.contract import Gang, Tool
from perfdag.hosts.base import Host
from perfdag.outcome import Failed, Skip

Transport = Literal["tcp", "shm", "rdma"]
RDMA_PROVIDERS = ("mlx", "verbs;ofi_rxm", "verbs", "psm2", "psm3", "opx", "efa")
_PROVIDER = re.compile(r"MPI startup\(\): libfabric provider: (\S+)")
_VERSION = re.compile(r"MPI startup\(\): Intel\(R\) MPI Library, Version (\S+)")
_TUNING = re.compile(r'Load tuning file: "\S*tuning_\w*?(shm|ofi)\S*"')
_NICS = re.compile(r"MPI startup\(\): \d+\s+\d+\s+(\S+)\s*$", re.M)
_PINS = re.compile(r"MPI startup\(\): (\d+)\s+(\d+)\s+(\S+)\s+\{")


def imb(system: str, machine: str) -> Tool:
    """Return IMB-MPI1 and how to get it on a system, named as the module platform does."""
    if (system, machine) == ("Linux", "x86_64"):
        return Tool("IMB-MPI1", {"pip": "impi-rt"})
    advice = (
        f"there is no impi-rt for {system} on {machine};"
        " set mpi: openmpi and name an IMB-MPI1 built for Open MPI with program"
    )
    return Tool("IMB-MPI1", {}, advice)


IMB = imb(platform.system(), platform.machine())


def root_of(host: Host) -> str:
    """Return the folder with bin/ and lib/ of Intel MPI on that host. Raises Skip.

    It is the prefix of this interpreter, $I_MPI_ROOT, or the prefix on PATH.
    """
    program = "IMB-MPI1"
    places = [sys.prefix, *filter(None, [os.environ.get("I_MPI_ROOT")])]
    candidates = [*(str(PurePosixPath(place) / "bin" / program) for place in places), program]
    path = next(filter(None, map(host.which, candidates)), None)
    if path is None:
        raise Skip(f"{program} is not on {host.name} ({IMB.advice or 'pip install impi-rt'})")
    return str(PurePosixPath(path).parent.parent)


def environment(
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
    }
    if oversubscribe:
        # A waiting rank sleeps: with 4 ranks on 2 cores a message takes 0.1 ms instead of 20 ms.
        env["I_MPI_THREAD_YIELD"] = "3"
    if transport == "shm":
        return {**env, "I_MPI_FABRICS": "shm"}
    # Collectives would use shared memory between ranks of one host, whatever the fabric: 0.3 us
    # for a Barrier "over tcp".
    env["I_MPI_COLL_INTRANODE"] = "pt2pt"
    if transport == "tcp":
        # With shm:ofi the ranks of one host would use shared memory and be called tcp.
        return {
            **env,
            "I_MPI_FABRICS": "ofi",
            "FI_PROVIDER": "tcp",
            "FI_TCP_IFACE": interface_of(gang),
        }
    return {**env, "I_MPI_FABRICS": "ofi", "I_MPI_OFI_PROVIDER_DUMP": "0"}


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


def mpirun(gang: Gang, root: str, ranks: int, rsh: str | None) -> list[str]:
    """Return the arguments of mpirun up to the program.

    Ranks are spread evenly over the hosts; those of one host are consecutive.
    """
    argv = [f"{root}/bin/mpirun", "-n", str(ranks)]
    hosts = list(Counter(host.address for host in gang.hosts))
    if len(hosts) > 1:
        argv += [
            "-hosts",
            ",".join(hosts),
            "-ppn",
            str(ranks // len(hosts)),
            "-iface",
            interface_of(gang),
        ]
        if rsh is not None:
            argv += ["-bootstrap-exec", rsh]
    return argv


def fabric_of(log: str) -> str | None:
    """Return the fabric in MPI's log: `shm` or a libfabric provider; None if not reported."""
    provider = _PROVIDER.search(log)
    if provider:
        return provider[1]
    tuning = _TUNING.search(log)
    return "shm" if tuning and tuning[1] == "shm" else None


def interfaces(log: str) -> set[str]:
    """Return the interfaces that the ranks were pinned to (the NIC table of I_MPI_DEBUG=3)."""
    return set(_NICS.findall(log))


def wrong_transport(log: str, requested: Transport, interface: str | None = None) -> str | None:
    """Return why the run did not use the requested transport and interface, or None."""
    fabric = fabric_of(log)
    if fabric is None:
        return f"{requested} was requested, and MPI does not say which fabric it used"
    fits = (
        fabric.startswith("tcp")
        if requested == "tcp"
        else fabric == "shm"
        if requested == "shm"
        else fabric.startswith(RDMA_PROVIDERS)
    )
    if not fits:
        return f"{requested} was requested, MPI used {fabric}"
    other = interfaces(log) - {interface}
    # libfabric does not fail for a missing interface: it takes another one.
    return (
        f"interface {interface} was requested, MPI used {', '.join(sorted(other))}"
        if interface and other
        else None
    )


def version(log: str) -> str:
    """Return the version of the library from its log, or an empty string."""
    match = _VERSION.search(log)
    return match[1] if match else ""


def nodes_of_ranks(log: str) -> dict[int, str]:
    """Return the node of each rank (the CPU pinning table of I_MPI_DEBUG=3)."""
    return {int(rank): node for rank, _, node in _PINS.findall(log)}


def rsh_script(gang: Gang) -> str | None:
    """Write a program for -bootstrap-exec; None if all ranks have one address."""
    if len({host.address for host in gang.hosts}) < 2:
        return None
    path = f"{gang.scratch}/rsh"
    gang.lead.put(path, b'#!/bin/sh\nexec perfdag step rsh -- "$@"\n', 0o755)
    return path

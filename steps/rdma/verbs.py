"""Requirements of RDMA verbs on a host, and failures of perftest that come from them."""

import re
import time

from perfdag.hosts.base import CommandResult, Host
from perfdag.outcome import Failed, Skip

NO_DEVICE = (
    "Did not detect devices",
    "Unable to find the Infiniband/RoCE device",
    "No IB devices found",
    "IB device not found",
)
_NOT_LOCKED = "Couldn't allocate MR"
"""Message of a failed ibv_reg_mr(), most often at RLIMIT_MEMLOCK."""
CM_READY = 1.0
"""Seconds for a server with rdma_cm to listen if the kernel does not report that it does."""


def missing_device(host: Host) -> str | None:
    """Return what verbs need and the host lacks, or None.

    They need a device under /sys/class/infiniband and its files in /dev/infiniband.
    """
    listing = host.run(["ls", "/sys/class/infiniband"], timeout=10)
    if listing.code != 0:
        return (
            "the node has no RDMA device: /sys/class/infiniband is absent"
            " (no driver such as mlx5_ib, rdma_rxe or siw is loaded)"
        )
    if not listing.stdout.split():
        return "the node has no RDMA device: /sys/class/infiniband is empty"
    files = host.run(["ls", "/dev/infiniband"], timeout=10)
    if files.code != 0 or "uverbs" not in files.stdout:
        devices = ", ".join(listing.stdout.split())
        return (
            f"the node has {devices}, but /dev/infiniband/uverbs* is not in the container;"
            " ask for the device plugin's resource"
        )
    return None


def await_cm(server: Host, port: int) -> None:
    """Wait until a server listens on a port of RDMA's port space.

    The kernel's table of connection identifiers shows it (`rdma`, of iproute2). If `rdma` is
    missing or not permitted, wait one second.
    """
    deadline = time.monotonic() + CM_READY
    listens = re.compile(rf"state LISTEN .*src-addr \S*:{port}\s")
    can_list = server.which("rdma") is not None
    while (left := deadline - time.monotonic()) > 0:
        listing = (
            server.run(["rdma", "resource", "show", "cm_id"], timeout=10) if can_list else None
        )
        if listing is not None and listens.search(listing.stdout):
            return
        can_list = listing is not None and listing.code == 0
        time.sleep(min(left, 0.01 if can_list else left))


def memlock(host: Host) -> str:
    """Return the limit of locked memory, `soft hard` in bytes or `unlimited`.

    Empty if unreadable. Source: /proc/PID/limits in proc(5).
    """
    try:
        match = re.search(
            r"^Max locked memory\s+(\S+)\s+(\S+)", host.get("/proc/self/limits").decode(), re.M
        )
    except Failed:
        return ""
    return f"{match[1]} {match[2]}" if match else ""


def check_finished(
    program: str, client: Host, finished: CommandResult, texts: dict[str, str]
) -> None:
    """Raise Skip or Failed if the client did not end well."""
    log = finished.stdout + finished.stderr
    if any(text in log for text in NO_DEVICE):
        reason = missing_device(client) or finished.tail()
        raise Skip(f"{program} finds no RDMA device on {client.name}: {reason}", texts)
    if finished.timed_out:
        raise Failed(
            f"{program} did not end within {finished.seconds:.1f} s: {finished.tail()}", texts
        )
    if finished.code != 0 and any(_NOT_LOCKED in text for text in texts.values()):
        raise Failed(
            f"{program} could not lock its buffers; the limit of locked memory on {client.name}"
            f" is {memlock(client) or 'not known'} B (soft hard): raise LimitMEMLOCK of the"
            " container runtime, or run as uid 0 with privileges: [rdma], which adds IPC_LOCK",
            texts,
        )
    if finished.code != 0:
        raise Failed(f"{program} exited {finished.code}: {finished.tail()}", texts)

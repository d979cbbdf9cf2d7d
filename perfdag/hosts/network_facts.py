"""Facts of network devices and of the kernel that explain a figure. What is unknown is None."""

import array
import fcntl
import re
import socket
import struct
from pathlib import Path
from typing import Any

from perfdag.hosts.filesystem_facts import ROOT, read_number, read_text

_NOT_NICS = re.compile(
    r"^(lo|bonding_masters|veth.*|cali.*|lxc.*|ifb\d+|dummy\d+|tunl\d+|sit\d+"
    r"|docker\d+|br-.*|virbr.*|cni\d+|flannel.*)$"
)
_SIOCETHTOOL, _GDRVINFO, _DRVINFO_BYTES, _FIRMWARE = 0x8946, 0x3, 196, slice(68, 100)
"""ethtool(8)'s request for the driver: linux/ethtool.h, struct ethtool_drvinfo."""
_SYSCTLS = {
    "core": ("default_qdisc", "netdev_max_backlog", "rmem_max", "wmem_max", "busy_poll"),
    "ipv4": (
        *("tcp_rmem", "tcp_wmem", "tcp_mtu_probing", "tcp_slow_start_after_idle"),
        *("tcp_timestamps", "tcp_sack", "tcp_no_metrics_save"),
    ),
}
_KERNEL_OPTION = re.compile(
    r"^(isolcpus|nohz|nohz_full|rcu_nocb\w*|irqaffinity|threadirqs|skew_tick|preempt|clocksource"
    r"|tsc|mitigations|spectre\w*|no_?pti|pti|l1tf|mds|tsx\w*|retbleed|srbds|nosmt|maxcpus|nr_cpus"
    r"|idle|(intel_idle|processor|cpuidle|cpufreq)\.\w+|(intel|amd)_pstate|(intel_|amd_)?iommu"
    r"|iommu\.\w+|(default_)?hugepages\w*|transparent_hugepage|numa|numa_balancing|mem|pcie?_\w+"
    r"|audit|selinux|apparmor|init_on_(alloc|free)|nowatchdog|nmi_watchdog|(mlx|nvme)\w*\.\w+)(=|$)"
)
"""Options that affect performance. Others, which may hold secrets and addresses, are not read."""


def nics(root: Path = ROOT) -> list[dict[str, Any]]:
    """Return the network interfaces: driver, model (PCI), firmware, speed in bit/s, MTU in bytes.

    The firmware comes from the kernel of the default root only.
    """
    folder = root / "sys/class/net"
    interfaces = []
    for path in _entries(folder):
        if _NOT_NICS.match(path.name):
            continue
        driver = path / "device/driver"
        speed = read_number(read_text(path / "speed"))
        ids = [read_text(path / "device" / name) for name in ("vendor", "device")]
        interfaces.append(
            {
                "name": path.name,
                "driver": driver.resolve().name if driver.exists() else None,
                "model": ":".join(part.removeprefix("0x") for part in ids if part) or None,
                "firmware": _firmware(path.name) if root == ROOT else None,
                # -1: the link has no speed to tell
                "speed": speed * 10**6 if speed and speed > 0 else None,
                "mtu": read_number(read_text(path / "mtu")),
                "state": read_text(path / "operstate"),
                "numa_node": _numa_node(path),
            }
        )
    return interfaces


def rdma_devices(root: Path) -> list[dict[str, Any]]:
    """Return the ports of RDMA devices: model, firmware, speed in bit/s, state and link layer."""
    return [
        {
            "name": f"{device.name}:{port.name}",
            "model": read_text(device / "hca_type") or read_text(device / "board_id"),
            "firmware": read_text(device / "fw_ver"),
            "speed": _rate(read_text(port / "rate")),
            "state": (read_text(port / "state") or "").rpartition(" ")[2] or None,
            "link_layer": read_text(port / "link_layer"),
            "numa_node": _numa_node(device),
        }
        for device in _entries(root / "sys/class/infiniband")
        for port in _entries(device / "ports")
    ]


def kernel_options(root: Path) -> str | None:
    """Return the options of the kernel command line that affect performance."""
    text = read_text(root / "proc/cmdline")
    return text and " ".join(word for word in text.split() if _KERNEL_OPTION.match(word))


def sysctls(root: Path) -> dict[str, str | None]:
    """Return the settings of the kernel that matter to TCP. A pod sees those of its namespace."""
    values = {
        f"net.{part}.{name}": read_text(root / "proc/sys/net" / part / name)
        for part, names in _SYSCTLS.items()
        for name in names
    }
    return {name: value and " ".join(value.split()) for name, value in values.items()}


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _numa_node(device: Path) -> int | None:
    node = read_number(read_text(device / "device/numa_node"))
    return node if node is not None and node >= 0 else None  # -1: the machine has only one


def _rate(text: str | None) -> int | None:
    """Return `100 Gb/sec (4X EDR)` in bit/s."""
    match = re.match(r"([\d.]+) Gb/sec", text or "")
    return int(float(match[1]) * 1e9) if match else None


def _firmware(interface: str) -> str | None:
    """Return the version of the firmware that the driver reports, which needs no privileges."""
    info = array.array("B", struct.pack("=I", _GDRVINFO).ljust(_DRVINFO_BYTES, b"\0"))
    request = struct.pack("16sP", interface.encode(), info.buffer_info()[0]).ljust(40, b"\0")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
            fcntl.ioctl(end, _SIOCETHTOOL, request)
    except OSError:
        return None
    text = info.tobytes()[_FIRMWARE].split(b"\0")[0].decode(errors="replace").strip()
    return text if text not in ("", "N/A") else None

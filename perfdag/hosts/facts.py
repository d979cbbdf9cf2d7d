"""Provenance of a host, read from /proc and /sys: what a result was measured on.

`python -m perfdag.hosts.facts [--filesystem PATH]` prints the same as JSON, so a host that is
reached by a command can be asked too. Nothing here fails where a file is absent or unreadable: the
fact is then null, since provenance must never cost a measurement.
"""

import array
import fcntl
import os
import platform
import re
import shutil
import socket
import stat
import struct
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfdag.hosts import gpu_use

_UNLIMITED = 1 << 60  # version 1 writes a page-rounded 2^63 for "no limit"
_ROOT = Path("/")
# the files where a container sees its own cgroup, versions 2 and 1
COUNTERS = tuple(
    f"/sys/fs/cgroup/{name}"
    for name in ("cpu.stat", "memory.events", "cpu/cpu.stat", "memory/memory.oom_control")
)


def limits(root: Path = _ROOT) -> dict[str, Any]:
    """Return the version, the tightest limits, and the number of CPUs that may be used.

    CPU limits are in cores, memory limits in bytes. None is no limit.
    """
    cores: list[float] = []
    for folder in _folders("cpu", root):
        quota = _read(folder / "cpu.max").split() or [
            _read(folder / "cpu.cfs_quota_us"),
            _read(folder / "cpu.cfs_period_us"),
        ]
        if len(quota) == 2 and all(number.isdecimal() for number in quota) and int(quota[1]):
            cores.append(int(quota[0]) / int(quota[1]))
    texts = [
        _read(folder / name)
        for folder in _folders("memory", root)
        for name in ("memory.max", "memory.limit_in_bytes")
    ]
    memory = [int(text) for text in texts if text.isdecimal() and int(text) < _UNLIMITED]
    memberships = _memberships(root)
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "version": 2
        if [controllers for controllers, _ in memberships] == [""]
        else 1
        if memberships
        else None,
        "cpu_limit": min(cores, default=None),
        "memory_limit_bytes": min(memory, default=None),
        "cpus_allowed": allowed,
    }


def cpus() -> int:
    """Return the CPUs that this process may use, which its CPU quota may reduce; at least 1."""
    current = limits()
    allowed: int = current["cpus_allowed"] or 1
    quota = current["cpu_limit"]
    return allowed if quota is None else min(allowed, max(1, int(quota)))


def memory(root: Path = _ROOT) -> int:
    """Return the bytes that this process may use, of its cgroups and of the machine."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(whole, limits(root)["memory_limit_bytes"] or whole)


def throttled_us(root: Path = _ROOT) -> int:
    """Return the throttled microseconds of the cgroups, summed over CPUs and levels."""
    return sum(throttled(_read(folder / "cpu.stat")) for folder in _folders("cpu", root))


def oom_kills(root: Path = _ROOT) -> int:
    """Return the number of processes of the cgroup that the kernel killed for a memory limit."""
    texts = (
        _read(folder / name)
        for folder in _folders("memory", root)
        for name in ("memory.events", "memory.oom_control")
    )
    return next((kills(text) for text in texts if "oom_kill " in text), 0)


def throttled(text: str) -> int:
    """Return the throttled microseconds in the text of a cpu.stat."""
    counters = _counters(text)
    # Version 2 counts microseconds, version 1 nanoseconds.
    return (
        counters["throttled_usec"]
        if "throttled_usec" in counters
        else counters.get("throttled_time", 0) // 1000
    )


def kills(text: str) -> int:
    """Return the kills for memory in the text of a memory.events or memory.oom_control."""
    return _counters(text).get("oom_kill", 0)


def _counters(text: str) -> dict[str, int]:
    pairs = [line.split() for line in text.splitlines()]
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _memberships(root: Path) -> list[tuple[str, str]]:
    """Return (controllers, path) of each hierarchy. Version 2 has no controllers."""
    lines = [line.split(":", 2) for line in _read(root / "proc/self/cgroup").splitlines()]
    return [(fields[1], fields[2]) for fields in lines if len(fields) == 3]


def _folders(controller: str, root: Path) -> list[Path]:
    """Return the folders of a controller for this process, from its own cgroup up to the root."""
    mount = root / "sys/fs/cgroup"
    folders = []
    for controllers, path in _memberships(root):
        if controllers == "":
            top = mount if (mount / "cgroup.controllers").exists() else mount / "unified"
        elif controller in controllers.split(","):
            top = mount / controller
        else:
            continue
        # Without a cgroup namespace the path is that of the host and does not exist here.
        # The mount itself is then the cgroup of the container.
        relative = Path(path.lstrip("/"))
        folders += [top / parent for parent in (relative, *relative.parents)]
    return folders


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except (OSError, ValueError):
        return ""


ROOT = Path("/")


def filesystem(path: str | Path, root: Path = ROOT) -> dict[str, Any]:
    """Return type, device, mount point and options of the file system of `path`.

    Also whether the disk turns, its scheduler and model, and the size and free space in bytes
    (free: for this user). For a block device the type is `block`. What cannot be known is None.
    """
    target = Path(path).absolute()
    while not target.exists() and target != target.parent:
        target = target.parent
    target = target.resolve()
    mount = _mount_of(target, root)
    facts: dict[str, Any] = {
        "path": str(path),
        "type": mount.get("type"),
        "device": mount.get("device"),
        "mount": mount.get("mount"),
    }
    facts["options"] = mount.get("options")
    numbers = mount.get("numbers")
    status = target.stat()
    if stat.S_ISBLK(status.st_mode):
        numbers = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
        facts |= {"type": "block", "device": str(target), "mount": None, "options": None}
    facts |= _queue(numbers, root)
    usage = shutil.disk_usage(target) if target.is_dir() or target.is_file() else None
    sectors = (
        read_number(read_text(root / "sys/dev/block" / (numbers or "none") / "size"))
        if facts["type"] == "block"
        else None
    )
    # sysfs counts sectors of 512 bytes whatever the device's own are
    facts |= {
        "total_bytes": usage.total if usage else sectors and sectors * 512,
        "free_bytes": usage.free if usage else None,
    }
    return facts


def _mount_of(target: Path, root: Path) -> dict[str, Any]:
    """Return the mount in /proc/self/mountinfo with the longest mount point above `target`.

    Format: proc_pid_mountinfo(5).
    """
    best: dict[str, Any] = {}
    for line in (read_text(root / "proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 6 or len(kind) < 2:
            continue
        mount = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
        if target.is_relative_to(mount) and len(mount) >= len(best.get("mount", "")):
            options = ",".join(
                dict.fromkeys(
                    f"{fields[5]},{kind[2] if len(kind) > 2 else ''}".strip(",").split(",")
                )
            )
            best = {
                "mount": mount,
                "type": kind[0],
                "device": kind[1],
                "options": options,
                "numbers": fields[2],
            }
    return best


def _queue(numbers: str | None, root: Path) -> dict[str, Any]:
    """Return rotational, scheduler and model of the disk with a device number.

    The queue of a partition is that of its parent.
    """
    device = root / "sys/dev/block" / (numbers or "none")
    facts: dict[str, Any] = {"rotational": None, "scheduler": None, "disk": None}
    try:
        device = device.resolve()
        for folder in (device, device.parent):
            rotational = read_text(folder / "queue/rotational")
            if rotational is not None:
                scheduler = re.search(r"\[(\S+)\]", read_text(folder / "queue/scheduler") or "")
                model = read_text(folder / "device/model")
                return {
                    "rotational": rotational == "1",
                    "scheduler": scheduler[1] if scheduler else None,
                    "disk": model or folder.name,
                }
    except OSError:
        return facts
    return facts


def read_text(path: Path) -> str | None:
    """Return the stripped text of a file, or None if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except (OSError, ValueError):
        return None


def read_number(text: str | None) -> int | None:
    """Return the integer in a text, or None if it is no integer."""
    try:
        return int(text or "")
    except ValueError:
        return None


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


def gather(root: Path = ROOT) -> dict[str, Any]:
    """Return facts of this host: kernel, CPU, memory, NICs, GPUs, virtualisation, cgroup limits.

    `root` is the folder of /proc, /sys and /etc. GPUs belong to the default root only. Frequencies
    are in Hz, speeds in bit/s, sizes in bytes, CPU limits in cores. A fact that cannot be read is
    None.
    """
    cpu = _cpu(root)
    return {
        "host": socket.gethostname(),
        "kernel": platform.release(),
        "arch": platform.machine(),
        "distribution": _distribution(root),
        "cpu_model": cpu["model"],
        "cpu_sockets": cpu["sockets"],
        "cpu_cores": cpu["cores"],
        "cpu_threads": cpu["threads"],
        "cpu_governor": _governor(root),
        "cpu_frequency_limit": _frequency_limit(root),
        "cpu_microcode": cpu["microcode"],
        "firmware": read_text(root / "sys/class/dmi/id/bios_version"),
        "memory_bytes": _memory_bytes(root),
        "load": _load(root, cpu["threads"]),
        "nics": nics(root),
        "rdma": rdma_devices(root),
        "gpus": gpu_use.gpus() if root == ROOT else [],
        "virtualisation": _virtualisation(root),
        "container": _container(root),
        "cgroup": limits(root),
        "kernel_options": kernel_options(root),
        "sysctl": sysctls(root),
        "tcp_congestion": read_text(root / "proc/sys/net/ipv4/tcp_congestion_control"),
        "python": platform.python_version(),
    }


def env_class(*facts: Mapping[str, Any]) -> str:
    """Return the hardware in one line, such as `2 x [AMD EPYC, 2 threads, 24 GiB, virtual]`.

    Hardware only: kernel, GPU driver and other versions are left out, for they are what an upgrade
    changes and what is then to be compared.
    """
    kinds = Counter(_machine(host) for host in facts)
    return "; ".join(
        kind if count == 1 else f"{count} x [{kind}]" for kind, count in sorted(kinds.items())
    )


def _machine(facts: Mapping[str, Any]) -> str:
    parts = [str(facts.get("cpu_model") or facts.get("arch") or "unknown CPU")]
    if facts.get("cpu_threads"):
        parts.append(f"{facts['cpu_threads']} threads")
    if facts.get("memory_bytes"):
        # Rounded to 1/8 GiB under 4 GiB, else to 1 GiB, as firmware and kernels reserve some.
        gib = facts["memory_bytes"] / 2**30
        parts.append(f"{round(gib) if gib >= 4 else round(gib * 8) / 8:g} GiB")
    nics = {_nic_kind(nic) for nic in facts.get("nics") or ()}
    parts += sorted(kind for kind in nics if kind)
    parts += gpu_use.kinds(facts.get("gpus") or ())
    if facts.get("virtualisation") not in (None, "none"):
        parts.append("virtual")
    return ", ".join(parts)


def _nic_kind(nic: Mapping[str, Any]) -> str:
    if not nic.get("driver"):
        return ""
    speed = nic.get("speed")
    return f"{nic['driver']} {speed / 1e9:g} Gbit/s" if speed else str(nic["driver"])


def _distribution(root: Path) -> str | None:
    match = re.search(r'^PRETTY_NAME="?([^"\n]+)"?', read_text(root / "etc/os-release") or "", re.M)
    return match[1] if match else platform.system() or None


def _cpu(root: Path) -> dict[str, Any]:
    text = read_text(root / "proc/cpuinfo") or ""
    blocks = [
        dict(_field(line) for line in block.splitlines() if ":" in line)
        for block in text.split("\n\n")
    ]
    cpus = [block for block in blocks if "processor" in block]
    first = cpus[0] if cpus else {}
    model = (
        first.get("model name")
        or first.get("cpu model")
        or _arm(first)
        or platform.processor()
        or None
    )
    cores = {
        (block.get("physical id", "0"), block["core id"]) for block in cpus if "core id" in block
    }
    sockets = {block["physical id"] for block in cpus if "physical id" in block}
    return {
        "model": model,
        "threads": len(cpus) or os.cpu_count(),
        "cores": len(cores) or None,
        "sockets": len(sockets) or None,
        "microcode": first.get("microcode"),
    }


def _field(line: str) -> tuple[str, str]:
    key, _, value = line.partition(":")
    return key.strip(), value.strip()


def _arm(block: Mapping[str, str]) -> str | None:
    # arm64 names its cores by number only
    return (
        f"ARM implementer {block['CPU implementer']} part {block.get('CPU part', '?')}"
        if "CPU implementer" in block
        else None
    )


def _governor(root: Path) -> str | None:
    governors = {
        read_text(path)
        for path in (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    } - {None}
    return ",".join(sorted(str(governor) for governor in governors)) or None


def _frequency_limit(root: Path) -> int | None:
    kilohertz = read_number(
        read_text(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq")
    )
    return kilohertz * 1000 if kilohertz else None


def _load(root: Path, threads: int | None) -> float | None:
    """Return the tasks per CPU of the last 15 minutes in halves: what neighbours did before.

    /proc/loadavg counts the tasks of the whole node, in a pod too.
    """
    fields = (read_text(root / "proc/loadavg") or "").split()
    try:
        return round(2 * float(fields[2]) / (threads or 1)) / 2
    except (IndexError, ValueError):
        return None


def _memory_bytes(root: Path) -> int | None:
    total = re.search(r"^MemTotal:\s+(\d+) kB", read_text(root / "proc/meminfo") or "", re.M)
    if total:
        return int(total[1]) * 1024
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _virtualisation(root: Path) -> str:
    """Return `none`, the DMI product or hypervisor type, or `virtual` for only a CPU flag."""
    product = " ".join(
        filter(
            None,
            (
                read_text(root / "sys/class/dmi/id/sys_vendor"),
                read_text(root / "sys/class/dmi/id/product_name"),
            ),
        )
    )
    kind = read_text(root / "sys/hypervisor/type")
    if re.search(r"^flags\s*:.*\bhypervisor\b", read_text(root / "proc/cpuinfo") or "", re.M):
        return kind or product or "virtual"
    guests = (
        r"QEMU|KVM|VMware|VirtualBox|Virtual Machine|Xen|Bochs|OpenStack|Amazon EC2|"
        r"Google Compute|HVM domU|Parallels"
    )
    if re.search(guests, product) and "metal" not in product:
        return product
    return kind or "none"


def _container(root: Path) -> str | None:
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    if (root / "run/.containerenv").exists():
        return "podman"
    return "docker" if (root / ".dockerenv").exists() else None


def main(argv: list[str] | None = None) -> int:
    """Print `gather()`, or `filesystem(PATH)` with `--filesystem PATH`, as one line of JSON."""
    import json

    arguments = sys.argv[1:] if argv is None else argv
    if arguments[:1] == ["--filesystem"] and len(arguments) == 2:
        facts = filesystem(arguments[1])
    elif arguments:
        sys.stderr.write("usage: python -m perfdag.hosts.facts [--filesystem PATH]\n")
        return 2
    else:
        facts = gather()
    sys.stdout.write(json.dumps(facts) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

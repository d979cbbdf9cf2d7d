"""Provenance of a host, read from /proc and /sys: what a result was measured on.

`python -m perfdag.hosts.facts [--filesystem PATH]` prints the same as JSON, so a host that is
reached by a command can be asked too. Nothing here fails where a file is absent or unreadable: the
fact is then null, since provenance must never cost a measurement.
"""

import contextlib
import json
import os
import platform
import re
import socket
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path("/")
_UNLIMITED = 1 << 60  # version 1 writes a page-rounded 2^63 for "no limit"
THROTTLING, KILLS = "throttling by a CPU quota", "kills for a memory limit"
"""What the files of a cgroup show."""
_OF_MOUNT = re.compile(r",?\b(lowerdir|upperdir|workdir|clientaddr|rfdno|wfdno)=[^,]*")
"""Options that are new at every mount: the layers of a container, and who mounted."""
# the files where a container sees its own cgroup, versions 2 and 1
COUNTERS = tuple(
    f"/sys/fs/cgroup/{name}"
    for name in ("cpu.stat", "memory.events", "cpu/cpu.stat", "memory/memory.oom_control")
)


def read_text(path: Path) -> str | None:
    """Return the stripped text of a file, or None if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except (OSError, ValueError):
        return None


def read_number(path: Path) -> int | None:
    """Return the integer in a file, or None if it holds none."""
    try:
        return int(read_text(path) or "")
    except ValueError:
        return None


def _search(pattern: str, path: Path) -> str | None:
    """Return the first group of a pattern in the lines of a file, or None."""
    match = re.search(pattern, read_text(path) or "", re.M)
    return match[1] if match else None


def limits(root: Path = ROOT) -> dict[str, Any]:
    """Return the version, the tightest limits, and the number of CPUs that may be used.

    CPU limits are in cores, memory limits in bytes. None is no limit.
    """
    cores: list[float] = []
    for folder in _cgroups("cpu", root):
        # "max 100000" and "-1" are no limit
        text = read_text(folder / "cpu.max") or " ".join(
            read_text(folder / name) or "" for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        )
        if quota := re.fullmatch(r"(\d+) ([1-9]\d*)", text):
            cores.append(int(quota[1]) / int(quota[2]))
    memory = [
        limit
        for folder in _cgroups("memory", root)
        for name in ("memory.max", "memory.limit_in_bytes")
        if (limit := read_number(folder / name)) is not None and limit < _UNLIMITED
    ]
    hierarchies = (read_text(root / "proc/self/cgroup") or "").splitlines()
    version = 2 if [line[:3] for line in hierarchies] == ["0::"] else 1 if hierarchies else None
    return {
        "version": version,
        "cpu_limit": min(cores, default=None),
        "memory_limit_bytes": min(memory, default=None),
        "cpus_allowed": len(os.sched_getaffinity(0)),
    }


def cpus() -> int:
    """Return the CPUs that this process may use, which its CPU quota may reduce; at least 1."""
    current = limits()
    allowed: int = current["cpus_allowed"]
    quota = current["cpu_limit"]
    return allowed if quota is None else min(allowed, max(1, int(quota)))


def memory(root: Path = ROOT) -> int:
    """Return the bytes that this process may use, of its cgroups and of the machine."""
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(installed, limits(root)["memory_limit_bytes"] or installed)


def pressure(root: Path = ROOT) -> tuple[int, int]:
    """Return throttled microseconds of the cgroups of this process, and kills for a memory limit.

    A quota of any level throttles, so the first is a sum over CPUs and levels. The kills are those
    of the own cgroup: others of its parent concern no sample.
    """
    throttled = sum(
        pressure_in(read_text(folder / "cpu.stat") or "")[0] or 0
        for folder in _cgroups("cpu", root)
    )
    kills = (
        pressure_in(read_text(folder / name) or "")[1]
        for folder in _cgroups("memory", root)
        for name in ("memory.events", "memory.oom_control")
    )
    return throttled, next((count for count in kills if count is not None), 0)


def unseen(root: Path = ROOT) -> list[str]:
    """Return what the cgroups of this process do not show, although it is in some.

    Their files are absent where a container has no /sys/fs/cgroup. The root of all cgroups counts
    no kills, and has no limit.
    """
    cpu = _cgroups("cpu", root)
    memory = _cgroups("memory", root)
    absent = []
    if cpu and not any((folder / "cpu.stat").exists() for folder in cpu):
        absent.append(THROTTLING)
    if memory and not any(folder.exists() for folder in memory):
        absent.append(KILLS)
    return absent


def pressure_in(text: str) -> tuple[int | None, int | None]:
    """Return the throttled microseconds and the kills in the text of COUNTERS; None if absent."""
    pairs = [line.split() for line in text.splitlines()]
    counters = {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}
    throttled = counters.get("throttled_usec")
    if throttled is None and "throttled_time" in counters:
        throttled = counters["throttled_time"] // 1000  # version 1 counts nanoseconds
    return throttled, counters.get("oom_kill")


def _cgroups(controller: str, root: Path) -> list[Path]:
    """Return the folders of a controller for this process, from its own cgroup up to the root."""
    mount = root / "sys/fs/cgroup"
    folders: list[Path] = []
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if not colon or controller not in (controllers or controller).split(","):
            continue
        if controllers:
            top = mount / controller
        else:  # version 2
            top = mount if (mount / "cgroup.controllers").exists() else mount / "unified"
        # Without a cgroup namespace the path is that of the host and does not exist here.
        # The mount itself is then the cgroup of the container.
        relative = Path(path.lstrip("/"))
        folders += [top / parent for parent in (relative, *relative.parents)]
    return folders


def filesystem(path: str | Path, root: Path = ROOT) -> dict[str, Any]:
    """Return type, device, mount point and options of the file system of `path`.

    Also whether the disk turns, its model and firmware, how the kernel queues for it, and the size
    and free space in bytes (free: for this user). For a block device the type is `block`. What
    cannot be known is None.
    """
    target = Path(path).absolute()
    while not target.exists() and target != target.parent:
        target = target.parent
    target = target.resolve()
    status = target.stat()
    mounted: dict[str, Any] = {}
    if stat.S_ISBLK(status.st_mode):
        numbers = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
        sectors = read_number(root / "sys/dev/block" / numbers / "size")
        # sysfs counts sectors of 512 bytes whatever the device's own are
        size = sectors and sectors * 512
        mounted = {"fstype": "block", "source": str(target), "maj:min": numbers, "size": size}
    else:
        columns = "FSTYPE,SOURCE,TARGET,OPTIONS,MAJ:MIN,SIZE,AVAIL"
        argv = ["findmnt", "--json", "--bytes", "--nofsroot", "--output", columns]
        with contextlib.suppress(OSError, ValueError):  # there is none, or it knows no mount
            listed = subprocess.run(
                [*argv, "--target", target],
                env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8"},
                capture_output=True,
                timeout=10,
                check=False,
            )
            mounted = json.loads(listed.stdout)["filesystems"][0]
    zfs = read_text(root / "sys/module/zfs/version") if mounted.get("fstype") == "zfs" else None
    return {
        "path": str(path),
        "type": mounted.get("fstype"),
        **({"zfs_version": zfs} if zfs else {}),
        "device": mounted.get("source"),
        "mount": mounted.get("target"),
        "options": _OF_MOUNT.sub("", mounted.get("options") or "") or None,
        **_queue(root / "sys/dev/block" / mounted.get("maj:min", "none")),
        "total_bytes": mounted.get("size"),
        "free_bytes": mounted.get("avail"),
    }


def _queue(device: Path) -> dict[str, Any]:
    """Return what sysfs says of a block device: the disk below it, its queue and its cache.

    Read-ahead is that of the device itself: a volume of LVM has its own.
    """
    disk = _disk(device)
    queue = disk / "queue"
    # None where there is no block device: then no disk is named either.
    rotational = read_text(queue / "rotational")
    read_ahead = read_number(_with_queue(device.resolve()) / "queue/read_ahead_kb")
    return {
        "rotational": rotational and rotational == "1",
        "scheduler": _choice(queue / "scheduler"),
        "disk": rotational and (read_text(disk / "device/model") or disk.name),
        # of NVMe and of SCSI
        "disk_firmware": read_text(disk / "device/firmware_rev") or read_text(disk / "device/rev"),
        "read_ahead_bytes": None if read_ahead is None else read_ahead * 1024,
        "nr_requests": read_number(queue / "nr_requests"),
        "nomerges": read_number(queue / "nomerges"),
        "write_cache": read_text(queue / "write_cache"),
    }


def _with_queue(device: Path) -> Path:
    """Return the folder with the queue of a device. That of a partition is its parent's."""
    return device if (device / "queue").exists() else device.parent


def _disk(device: Path) -> Path:
    """Return the folder of the disk below a device, where LVM or encryption stands on one disk."""
    folder = _with_queue(device.resolve())
    below = list((folder / "slaves").glob("*"))
    return _disk(below[0]) if len(below) == 1 else folder


def _choice(path: Path) -> str | None:
    """Return the choice in a file of sysfs that lists all: `mq-deadline` of `[mq-deadline] none`.

    A file with one choice has no brackets.
    """
    text = read_text(path)
    chosen = re.search(r"\[(\S+)\]", text or "")
    return chosen[1] if chosen else text or None


_NOT_NICS = re.compile(
    r"^(lo|bonding_masters|veth.*|cali.*|lxc.*|ifb\d+|dummy\d+|tunl\d+|sit\d+"
    r"|docker\d+|br-.*|virbr.*|cni\d+|flannel.*)$"
)
_SYSCTLS = (
    *("net.core.default_qdisc", "net.core.netdev_max_backlog", "net.core.busy_poll"),
    *("net.core.rmem_max", "net.core.wmem_max", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"),
    *("net.ipv4.tcp_mtu_probing", "net.ipv4.tcp_slow_start_after_idle", "net.ipv4.tcp_timestamps"),
    *("net.ipv4.tcp_sack", "net.ipv4.tcp_no_metrics_save", "kernel.numa_balancing"),
    *("vm.dirty_ratio", "vm.dirty_bytes", "vm.dirty_background_ratio"),
    *("vm.dirty_background_bytes", "vm.dirty_expire_centisecs", "vm.dirty_writeback_centisecs"),
    *("vm.swappiness", "vm.zone_reclaim_mode"),
)
_KERNEL_OPTION = re.compile(
    r"^(isolcpus|nohz|nohz_full|rcu_nocb\w*|irqaffinity|threadirqs|skew_tick|preempt|clocksource"
    r"|tsc|mitigations|spectre\w*|no_?pti|pti|l1tf|mds|tsx\w*|retbleed|srbds|nosmt|maxcpus|nr_cpus"
    r"|idle|(intel_idle|processor|cpuidle|cpufreq)\.\w+|(intel|amd)_pstate|(intel_|amd_)?iommu"
    r"|iommu\.\w+|(default_)?hugepages\w*|transparent_hugepage|numa|numa_balancing|mem|pcie?_\w+"
    r"|audit|selinux|apparmor|init_on_(alloc|free)|nowatchdog|nmi_watchdog|(mlx|nvme)\w*\.\w+)(=|$)"
)
"""Options that affect performance. Others, which may hold secrets and addresses, are not read."""
_GUESTS = re.compile(
    r"QEMU|KVM|VMware|VirtualBox|Virtual Machine|Xen|Bochs|OpenStack|Amazon EC2|"
    r"Google Compute|HVM domU|Parallels"
)
"""Products that are virtual machines."""


def gather(root: Path = ROOT) -> dict[str, Any]:
    """Return facts of this host: kernel, CPU, memory, NICs, virtualisation, cgroup limits.

    `root` is the folder of /proc, /sys and /etc. A host's `facts()` has its GPUs too. Frequencies
    are in Hz, speeds in bit/s, sizes in bytes, CPU limits in cores. A fact that cannot be read is
    None.
    """
    cpu = _cpu(root)
    arguments = read_text(root / "proc/cmdline")
    total = _search(r"^MemTotal:\s+(\d+) kB", root / "proc/meminfo")
    sysctls = {name: read_text(root / "proc/sys" / name.replace(".", "/")) for name in _SYSCTLS}
    return {
        "host": socket.gethostname(),
        "kernel": platform.release(),
        "arch": platform.machine(),
        "distribution": _search(r'^PRETTY_NAME="?([^"\n]+)"?', root / "etc/os-release")
        or platform.system()
        or None,
        **cpu,
        **_memory(root),
        "clock_source": read_text(
            root / "sys/devices/system/clocksource/clocksource0/current_clocksource"
        ),
        "firmware": read_text(root / "sys/class/dmi/id/bios_version"),
        "memory_bytes": total and int(total) * 1024,
        "load": _load(root, cpu["cpu_threads"] or 1),
        "nics": _nics(root),
        "rdma": _rdma_devices(root),
        "virtualisation": _virtualisation(root),
        "cgroup": limits(root),
        "kernel_options": arguments and " ".join(filter(_KERNEL_OPTION.match, arguments.split())),
        # A pod sees those of its network namespace.
        "sysctl": {name: value and " ".join(value.split()) for name, value in sysctls.items()},
        "tcp_congestion": read_text(root / "proc/sys/net/ipv4/tcp_congestion_control"),
        "python": platform.python_version(),
    }


def _load(root: Path, cpus: int) -> float | None:
    """Return the tasks per CPU of the last 15 minutes in halves: what neighbours did before.

    /proc/loadavg counts the tasks of the whole node, in a pod too.
    """
    load = _search(r"^\S+ \S+ ([\d.]+) ", root / "proc/loadavg")
    return round(2 * float(load) / cpus) / 2 if load else None


def _cpu(root: Path) -> dict[str, Any]:
    """Return model, numbers, frequencies and microcode of the CPUs."""
    cpus = []
    for text in (read_text(root / "proc/cpuinfo") or "").split("\n\n"):
        pairs = [line.partition(":") for line in text.splitlines()]
        block = {key.strip(): value.strip() for key, colon, value in pairs if colon}
        if "processor" in block:
            cpus.append(block)
    first = cpus[0] if cpus else {}
    model = first.get("model name") or first.get("cpu model")
    if not model and "CPU implementer" in first:  # arm64 names its cores by number only
        model = f"ARM implementer {first['CPU implementer']} part {first.get('CPU part', '?')}"
    cores = {
        (block.get("physical id", "0"), block["core id"]) for block in cpus if "core id" in block
    }
    folder = root / "sys/devices/system/cpu"
    clocks = list(folder.glob("cpu[0-9]*/cpufreq"))
    limits = {read_number(path / "scaling_max_freq") for path in clocks} - {None}
    return {
        "cpu_model": model or platform.processor() or None,
        "cpu_sockets": len({block["physical id"] for block in cpus if "physical id" in block})
        or None,
        "cpu_cores": len(cores) or None,
        "cpu_threads": len(cpus) or os.cpu_count(),
        "cpu_governor": _distinct(path / "scaling_governor" for path in clocks),
        "cpu_frequency_limits": sorted(kilohertz * 1000 for kilohertz in limits if kilohertz)
        or None,
        "cpu_energy_preference": _distinct(
            path / "energy_performance_preference" for path in clocks
        ),
        "cpu_boost": _boost(folder),
        "cpu_microcode": first.get("microcode"),
        "mitigations": _mitigations(folder),
    }


def _mitigations(cpu: Path) -> dict[str, str]:
    """Return what the kernel does against the faults of this CPU, by the name of the fault.

    Each kernel adds names, most of which do not concern a CPU: these are left out.
    """
    states = {path.name: read_text(path) for path in sorted((cpu / "vulnerabilities").glob("*"))}
    return {name: state for name, state in states.items() if state and state != "Not affected"}


def _distinct(paths: Iterable[Path]) -> str | None:
    """Return the different texts of files as one: `performance,powersave`, or None."""
    return ",".join(sorted({*filter(None, map(read_text, paths))})) or None


def _boost(cpu: Path) -> bool | None:
    """Return whether cores may run above their base clock, which drivers say in two ways."""
    no_turbo = read_number(cpu / "intel_pstate/no_turbo")
    if no_turbo is not None:
        return no_turbo == 0
    boost = read_number(cpu / "cpufreq/boost")
    return None if boost is None else boost != 0


def _memory(root: Path) -> dict[str, Any]:
    """Return the nodes of memory, and how much of it is in large pages."""
    pages = root / "sys/kernel/mm"
    reserved = sorted((pages / "hugepages").glob("hugepages-*"))
    nodes = list((root / "sys/devices/system/node").glob("node[0-9]*"))
    return {
        "numa_nodes": len(nodes) or None,
        "transparent_hugepages": _choice(pages / "transparent_hugepage/enabled"),
        "transparent_hugepages_defrag": _choice(pages / "transparent_hugepage/defrag"),
        "hugepages": {
            path.name.removeprefix("hugepages-"): read_number(path / "nr_hugepages")
            for path in reserved
        },
    }


def _nics(root: Path) -> list[dict[str, Any]]:
    """Return the network interfaces: driver, model (PCI), speed in bit/s, MTU in bytes."""
    interfaces = []
    for path in sorted((root / "sys/class/net").glob("*")):
        if _NOT_NICS.match(path.name):
            continue
        driver = path / "device/driver"
        speed = read_number(path / "speed") or 0
        ids = [read_text(path / "device" / name) for name in ("vendor", "device")]
        interfaces.append(
            {
                "name": path.name,
                "driver": driver.resolve().name if driver.exists() else None,
                "model": ":".join(part.removeprefix("0x") for part in ids if part) or None,
                "speed": speed * 10**6 if speed > 0 else None,  # -1: the link has no speed to tell
                "mtu": read_number(path / "mtu"),
                "state": read_text(path / "operstate"),
            }
        )
    return interfaces


def _rdma_devices(root: Path) -> list[dict[str, Any]]:
    """Return the ports of RDMA devices: model, firmware, speed in bit/s, state and link layer."""
    devices = []
    for port in sorted((root / "sys/class/infiniband").glob("*/ports/*")):
        device = port.parents[1]
        rate = _search(r"^([\d.]+) Gb/sec", port / "rate")  # 100 Gb/sec (4X EDR)
        devices.append(
            {
                "name": f"{device.name}:{port.name}",
                "model": read_text(device / "hca_type") or read_text(device / "board_id"),
                "firmware": read_text(device / "fw_ver"),
                "speed": int(float(rate) * 1e9) if rate else None,
                "state": (read_text(port / "state") or "").rpartition(" ")[2] or None,
                "link_layer": read_text(port / "link_layer"),
            }
        )
    return devices


def _virtualisation(root: Path) -> str:
    """Return `none`, the DMI product, the type of the hypervisor, or `virtual`.

    The last one is where only a CPU flag tells of a hypervisor.
    """
    names = (read_text(root / "sys/class/dmi/id" / name) for name in ("sys_vendor", "product_name"))
    product = " ".join(filter(None, names))
    machine = read_text(root / "sys/hypervisor/type") or "none"
    if re.search(r"^flags\s*:.*\bhypervisor\b", read_text(root / "proc/cpuinfo") or "", re.M):
        return machine if machine != "none" else product or "virtual"
    return product if _GUESTS.search(product) and "metal" not in product else machine


def env_class(*facts: Mapping[str, Any]) -> str:
    """Return the hardware in one line, such as `2 x [AMD EPYC, 2 threads, 24 GiB, virtual]`.

    Hardware only: kernel, GPU driver and other versions are left out, for they are what an upgrade
    changes and what is then to be compared.
    """
    kinds = Counter(map(_hardware, facts))
    return "; ".join(
        kind if count == 1 else f"{count} x [{kind}]" for kind, count in sorted(kinds.items())
    )


def _hardware(host: Mapping[str, Any]) -> str:
    """Return the hardware of one host, such as `AMD EPYC, 2 threads, 24 GiB, virtual`."""
    parts = [str(host.get("cpu_model") or host.get("arch") or "unknown CPU")]
    if host.get("cpu_threads"):
        parts.append(f"{host['cpu_threads']} threads")
    if host.get("memory_bytes"):
        # Rounded to 1/8 GiB under 4 GiB, else to 1 GiB, as firmware and kernels reserve some.
        gib = host["memory_bytes"] / 2**30
        parts.append(f"{round(gib) if gib >= 4 else round(gib * 8) / 8:g} GiB")
    parts += sorted(
        {
            nic["driver"]
            + (f" {nic['speed'] / 1e9:g} Gbit/s" if nic.get("speed") is not None else "")
            for nic in host.get("nics") or ()
            if nic.get("driver")
        }
    )
    devices = Counter(
        f"{device['name']} (MIG {', '.join(device['slices'])})"
        if device.get("slices")
        else device["name"]
        for device in host.get("gpus") or ()
    )
    parts += [f"{n} x {name}" if n > 1 else name for name, n in sorted(devices.items())]
    if host.get("virtualisation") not in (None, "none"):
        parts.append("virtual")
    return ", ".join(parts)


if __name__ == "__main__":
    of_path = sys.argv[1:2] == ["--filesystem"]
    sys.stdout.write(json.dumps(filesystem(sys.argv[2]) if of_path else gather()) + "\n")

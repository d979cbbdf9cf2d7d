"""Provenance of a host, read from /proc and /sys: what a result was measured on.

`python -m perfdag.hosts.facts [--filesystem PATH]` prints the same as JSON, so a host that is
reached by a command can be asked too. Nothing here fails where a file is absent or unreadable: the
fact is then null, since provenance must never cost a measurement.
"""

import os
import platform
import re
import shutil
import socket
import stat
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfdag.hosts import cgroups, gpus

_ROOT = Path("/")
_NOT_NICS = re.compile(
    r"^(lo|bonding_masters|veth.*|cali.*|lxc.*|ifb\d+|dummy\d+|tunl\d+|sit\d+|docker\d+|br-.*|virbr.*|cni\d+|flannel.*)$"
)


def gather(root: Path = _ROOT) -> dict[str, Any]:
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
        "memory_bytes": _memory_bytes(root),
        "nics": _nics(root),
        "gpus": gpus.gpus() if root == _ROOT else [],
        "virtualisation": _virtualisation(root),
        "container": _container(root),
        "cgroup": cgroups.limits(root),
        "tcp_congestion": _read(root / "proc/sys/net/ipv4/tcp_congestion_control"),
        "python": platform.python_version(),
    }


def env_class(*facts: Mapping[str, Any]) -> str:
    """Return the hardware in one line, such as `2 x [AMD EPYC, 2 threads, 24 GiB, virtual]`.

    Hardware only: kernel, GPU driver and other versions are left out, for they are what an upgrade
    changes and what is then to be compared.
    """
    kinds = Counter(_machine(each) for each in facts)
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
    parts += gpus.kinds(facts.get("gpus") or ())
    if facts.get("virtualisation") not in (None, "none"):
        parts.append("virtual")
    return ", ".join(parts)


def _nic_kind(nic: Mapping[str, Any]) -> str:
    if not nic.get("driver"):
        return ""
    speed = nic.get("speed")
    return f"{nic['driver']} {speed / 1e9:g} Gbit/s" if speed else str(nic["driver"])


def filesystem(path: str | Path, root: Path = _ROOT) -> dict[str, Any]:
    """Return type, device, mount point and options of the file system of `path`.

    Also whether the disk turns, its scheduler and model, and the size and free space in bytes
    (free: for this user). For a block device the type is `block`. What cannot be known is None.
    """
    target = Path(path).absolute()
    while not target.exists() and target != target.parent:
        target = target.parent
    target = target.resolve()
    mount = _mount_of(target, root)
    found: dict[str, Any] = {
        "path": str(path),
        "type": mount.get("type"),
        "device": mount.get("device"),
        "mount": mount.get("mount"),
    }
    found["options"] = mount.get("options")
    numbers = mount.get("numbers")
    status = target.stat()
    if stat.S_ISBLK(status.st_mode):
        numbers = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
        found |= {"type": "block", "device": str(target), "mount": None, "options": None}
    found |= _queue(numbers, root)
    usage = shutil.disk_usage(target) if target.is_dir() or target.is_file() else None
    sectors = (
        _number(_read(root / "sys/dev/block" / (numbers or "none") / "size"))
        if found["type"] == "block"
        else None
    )
    # sysfs counts sectors of 512 bytes whatever the device's own are
    found |= {
        "total_bytes": usage.total if usage else sectors and sectors * 512,
        "free_bytes": usage.free if usage else None,
    }
    return found


def _mount_of(target: Path, root: Path) -> dict[str, Any]:
    """Return the mount in /proc/self/mountinfo with the longest mount point above `target`.

    Format: proc_pid_mountinfo(5).
    """
    best: dict[str, Any] = {}
    for line in (_read(root / "proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 6 or len(kind) < 2:
            continue
        mount = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), fields[4])
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
    found: dict[str, Any] = {"rotational": None, "scheduler": None, "disk": None}
    try:
        device = device.resolve()
        for folder in (device, device.parent):
            rotational = _read(folder / "queue/rotational")
            if rotational is not None:
                scheduler = re.search(r"\[(\S+)\]", _read(folder / "queue/scheduler") or "")
                model = _read(folder / "device/model")
                return {
                    "rotational": rotational == "1",
                    "scheduler": scheduler[1] if scheduler else None,
                    "disk": model or folder.name,
                }
    except OSError:
        return found
    return found


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except (OSError, ValueError):
        return None


def _number(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None


def _distribution(root: Path) -> str | None:
    found = re.search(r'^PRETTY_NAME="?([^"\n]+)"?', _read(root / "etc/os-release") or "", re.M)
    return found[1] if found else platform.system() or None


def _cpu(root: Path) -> dict[str, Any]:
    text = _read(root / "proc/cpuinfo") or ""
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
    found = {
        _read(path)
        for path in (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    } - {None}
    return ",".join(sorted(str(each) for each in found)) or None


def _frequency_limit(root: Path) -> int | None:
    kilohertz = _number(_read(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq"))
    return kilohertz * 1000 if kilohertz else None


def _memory_bytes(root: Path) -> int | None:
    found = re.search(r"^MemTotal:\s+(\d+) kB", _read(root / "proc/meminfo") or "", re.M)
    if found:
        return int(found[1]) * 1024
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _nics(root: Path) -> list[dict[str, Any]]:
    folder = root / "sys/class/net"
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    nics = []
    for name in names:
        if _NOT_NICS.match(name):
            continue
        driver = folder / name / "device/driver"
        speed = _number(_read(folder / name / "speed"))
        nics.append(
            {
                "name": name,
                "driver": driver.resolve().name if driver.exists() else None,
                "speed": speed * 10**6
                if speed and speed > 0
                else None,  # -1: the link has no speed to tell
                "mtu": _number(_read(folder / name / "mtu")),
                "state": _read(folder / name / "operstate"),
            }
        )
    return nics


def _virtualisation(root: Path) -> str:
    """Return `none`, the DMI product or hypervisor type, or `virtual` for only a CPU flag."""
    product = " ".join(
        filter(
            None,
            (
                _read(root / "sys/class/dmi/id/sys_vendor"),
                _read(root / "sys/class/dmi/id/product_name"),
            ),
        )
    )
    kind = _read(root / "sys/hypervisor/type")
    if re.search(r"^flags\s*:.*\bhypervisor\b", _read(root / "proc/cpuinfo") or "", re.M):
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

    given = sys.argv[1:] if argv is None else argv
    if given[:1] == ["--filesystem"] and len(given) == 2:
        found = filesystem(given[1])
    elif given:
        sys.stderr.write("usage: python -m perfdag.hosts.facts [--filesystem PATH]\n")
        return 2
    else:
        found = gather()
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

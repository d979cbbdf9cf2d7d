"""Provenance of a host, read from /proc and /sys: what a result was measured on.

`python -m perfdag.hosts.facts [--filesystem PATH]` prints the same as JSON, so a host that is
reached by a command can be asked too. Nothing here fails where a file is absent or unreadable: the
fact is then null, since provenance must never cost a measurement.
"""

import os
import platform
import re
import socket
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfdag.hosts import cgroups, gpus, network_facts
from perfdag.hosts.filesystem_facts import ROOT, filesystem, read_number, read_text


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
        "nics": network_facts.nics(root),
        "rdma": network_facts.rdma_devices(root),
        "gpus": gpus.gpus() if root == ROOT else [],
        "virtualisation": _virtualisation(root),
        "container": _container(root),
        "cgroup": cgroups.limits(root),
        "kernel_options": network_facts.kernel_options(root),
        "sysctl": network_facts.sysctls(root),
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
    parts += gpus.kinds(facts.get("gpus") or ())
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

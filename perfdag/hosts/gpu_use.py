"""GPUs: what a host has, and what their drivers tell."""

import csv
import io
import re
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Any

from perfdag.hosts.base import CommandResult, Host

_FIELDS = {
    "name": "name",
    "driver": "driver_version",
    "memory_bytes": "memory.total",
    "power_limit": "power.limit",
    "ecc": "ecc.mode.current",
    "mig": "mig.mode.current",
}
_MEGA = {"sm_clock", "memory_clock", "sm_clock_max", "memory_clock_max"}
_MIB = {"memory", "memory_bytes", "memory_used"}
_PERCENT = {"utilisation"}
_TEXT = {"name", "uuid", "driver", "vbios", "persistence", "compute_mode", "ecc", "mig"}
TIMEOUT = 10.0
"""Timeout of a query in seconds, less than that of SshHost.facts."""


def gpus(host: Host) -> list[dict[str, Any]] | None:
    """Return the GPUs of a host with nvidia-smi that a process may use, with their MIG slices.

    None if the driver does not answer.
    """
    fields, answer = known(host, _FIELDS)
    if answer.code != 0:
        return None
    devices = [
        {"name": "unknown GPU"}
        | {name: row.get(name) for name in fields if name in row or name != "name"}
        for row in parse(answer.stdout, fields)
    ]
    if any(device.get("mig") == "Enabled" for device in devices):
        listing = host.run(["nvidia-smi", "-L"], timeout=TIMEOUT).stdout
        for device, slices in zip(devices, _slices(listing), strict=False):
            device["slices"] = slices
    return devices


def query(fields: dict[str, str]) -> list[str]:
    """Return the argv of nvidia-smi for these fields, as our names to its names."""
    return [
        "nvidia-smi",
        f"--query-gpu={','.join(fields.values())}",
        "--format=csv,noheader,nounits",
    ]


def parse(text: str, fields: dict[str, str]) -> list[dict[str, Any]]:
    """Return a dictionary for each line of nvidia-smi, without unknown values.

    Lines of another width are errors, and are skipped. Clocks are in Hz, memory in bytes, power in
    W, times in seconds since the epoch. Utilisation is a fraction.
    """
    rows = []
    for cells in csv.reader(io.StringIO(text), skipinitialspace=True):
        if len(cells) == len(fields):
            values = {
                name: _value(name, cell.strip()) for name, cell in zip(fields, cells, strict=True)
            }
            rows.append({name: value for name, value in values.items() if value is not None})
    return rows


def _value(name: str, cell: str) -> Any:
    if cell.startswith("[") or cell in ("", "N/A"):
        return None
    if name in _TEXT:
        return cell
    try:
        if name == "reasons":
            return int(cell, 16)
        if name == "time":
            return datetime.strptime(cell, "%Y/%m/%d %H:%M:%S.%f").replace(tzinfo=UTC).timestamp()
        number = float(cell)
    except ValueError:
        return None
    factor = 1e6 if name in _MEGA else 2**20 if name in _MIB else 0.01 if name in _PERCENT else 1
    return (
        int(number * factor)
        if factor == 2**20 or name in ("index", "ecc_corrected", "ecc_uncorrected")
        else number * factor
    )


def _slices(listing: str) -> list[list[str]]:
    """Return the MIG profiles of each GPU of `nvidia-smi -L`, in its order."""
    slices: list[list[str]] = []
    for line in listing.splitlines():
        if line.startswith("GPU "):
            slices.append([])
        elif slices and (profile := re.match(r"\s+MIG (\S+)", line)):
            slices[-1].append(profile[1])
    return slices


STATIC = {
    "index": "index",
    "name": "name",
    "uuid": "uuid",
    "driver": "driver_version",
    "vbios": "vbios_version",
    "memory": "memory.total",
    "power_limit": "power.limit",
    "sm_clock_max": "clocks.max.sm",
    "memory_clock_max": "clocks.max.memory",
    "persistence": "persistence_mode",
    "compute_mode": "compute_mode",
    "ecc": "ecc.mode.current",
    "ecc_corrected": "ecc.errors.corrected.volatile.total",
    "ecc_uncorrected": "ecc.errors.uncorrected.volatile.total",
    "mig": "mig.mode.current",
    "pcie_generation": "pcie.link.gen.current",
    "pcie_width": "pcie.link.width.current",
}
_RENAMED = {
    "clocks_throttle_reasons.active": "clocks_event_reasons.active"
}  # drivers from 535 on have both
_REFUSED = re.compile(r'Field "([^"]+)" is not a valid field to query')


def known(host: Host, fields: dict[str, str]) -> tuple[dict[str, str], CommandResult]:
    """Return the fields that the host's nvidia-smi knows, and its answer to their query."""
    queried = dict(fields)
    while True:
        finished = host.run(query(queried), timeout=TIMEOUT)
        refused = _REFUSED.search(finished.stdout + finished.stderr) if finished.code != 0 else None
        name = next(
            (name for name, field in queried.items() if refused and field == refused[1]), None
        )
        if name is None:
            return queried, finished
        if queried[name] in _RENAMED:
            queried[name] = _RENAMED[queried[name]]
        else:
            del queried[name]


def facts(host: Host) -> list[dict[str, Any]]:
    """Return static facts of each GPU of a host, or one `error` if the driver does not answer.

    The list is empty without a driver.
    """
    if host.which("nvidia-smi") is None:
        return []
    fields, finished = known(host, STATIC)
    return parse(finished.stdout, fields) if finished.code == 0 else [{"error": finished.tail(200)}]


def problem(host: Host) -> str | None:
    """Return why a host cannot use CUDA and what to do, or None if a GPU answers."""
    if host.which("nvidia-smi") is None:
        return (
            f"no NVIDIA driver on {host.name} (nvidia-smi is missing): install the driver; "
            "in a pod ask for nvidia.com/gpu in resources, "
            "and let the cluster run nvidia-device-plugin"
        )
    finished: CommandResult = host.run(["nvidia-smi", "-L"], timeout=TIMEOUT)
    if finished.code != 0:
        return f"the NVIDIA driver on {host.name} does not answer: {finished.tail(200)}"
    if "GPU " not in finished.stdout:
        return f"the NVIDIA driver on {host.name} shows no GPU: ask for nvidia.com/gpu in resources"
    return None


def by_name(hosts: Sequence[Host]) -> dict[str, Host]:
    """Return the hosts by name. Hosts on one node have their rank in the name.

    Each of their pods has GPUs of its own.
    """
    names = [host.name for host in hosts]
    return {
        f"{host.name} (host {place})" if names.count(host.name) > 1 else host.name: host
        for place, host in enumerate(hosts)
    }


def used(gpus: Sequence[dict[str, Any]], uuids: Collection[str]) -> list[dict[str, Any]]:
    """Return the GPUs with one of these uuids, or all GPUs if none has one."""
    return [gpu for gpu in gpus if gpu.get("uuid") in uuids] or list(gpus)

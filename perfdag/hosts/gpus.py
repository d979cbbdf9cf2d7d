"""The NVIDIA GPUs of this host, as `nvidia-smi --query-gpu` and `nvidia-smi -L` list them.

Memory is in bytes, power in W.
"""

import contextlib
import csv
import io
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

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
_LEAST = ("name", "driver", "memory_bytes")
"""Fields of every version. A version refuses a query with an unknown field."""
TIMEOUT = 5.0
"""Timeout of a query in seconds. All queries together fit into the timeout of SshHost.facts."""


def gpus() -> list[dict[str, Any]] | None:
    """Return the GPUs that this process may use, with their MIG slices.

    The list is empty without a driver, and None if the driver does not answer.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    for fields in (_FIELDS, {name: _FIELDS[name] for name in _LEAST}):
        answer = _run(program, *query(fields)[1:])
        if answer is None:
            return None
        code, output = answer
        if code == 0:
            break
    else:
        return None
    devices = [
        {"name": "unknown GPU"}
        | {name: row.get(name) for name in fields if name in row or name != "name"}
        for row in parse(output, fields)
    ]
    if any(device.get("mig") == "Enabled" for device in devices):
        code, listing = _run(program, "-L") or (1, "")
        for device, slices in zip(devices, _slices(listing if code == 0 else ""), strict=False):
            device["slices"] = slices
    return devices


def kinds(devices: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the kinds of hardware: `2 x NVIDIA A100`, `NVIDIA A100 (MIG 1g.5gb)`."""
    counts = Counter(
        f"{device['name']} (MIG {', '.join(device['slices'])})"
        if device.get("slices")
        else device["name"]
        for device in devices
    )
    return [kind if count == 1 else f"{count} x {kind}" for kind, count in sorted(counts.items())]


def _run(program: str, *options: str) -> tuple[int, str] | None:
    """Return exit code and output, or None if it cannot be started or does not end in time."""
    try:
        process = subprocess.Popen(
            [program, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
        )
    except OSError:
        return None
    try:
        output, _ = process.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            process.kill()
            # A process that waits in the driver (state D) survives SIGKILL.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.2)
    return process.returncode, output


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

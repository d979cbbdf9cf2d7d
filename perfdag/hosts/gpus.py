"""The NVIDIA GPUs of this host as its driver names them: part of what a result was measured on. What they do during a sample is asked by
the steps that use them.

Source: `nvidia-smi --query-gpu` and `nvidia-smi -L`. Memory in bytes, power in W.
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
"""Known to every version; one that does not know a field refuses all of them."""
TIMEOUT = 5.0
"""Seconds of a question. All of them fit into what a peer is given for its facts (SshHost.facts), or a hung driver would cost the others too."""


def gpus() -> list[dict[str, Any]] | None:
    """Each GPU that this process may see, with its MIG slices where it has some; empty without a driver, None where it does not answer."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    for fields in (_FIELDS, {name: _FIELDS[name] for name in _LEAST}):
        answered = _asked(program, *query(fields)[1:])
        if answered is None:
            return None
        code, said = answered
        if code == 0:
            break
    else:
        return None
    found = [
        {"name": "unknown GPU"}
        | {name: row.get(name) for name in fields if name in row or name != "name"}
        for row in parse(said, fields)
    ]
    if any(each.get("mig") == "Enabled" for each in found):
        code, listing = _asked(program, "-L") or (1, "")
        for each, own in zip(found, _slices(listing if code == 0 else ""), strict=False):
            each["slices"] = own
    return found


def kinds(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """The hardware alone, a kind an element: `2 x NVIDIA A100-SXM4-40GB`, `NVIDIA A100-SXM4-40GB (MIG 1g.5gb)`."""
    named = Counter(
        f"{each['name']} (MIG {', '.join(each['slices'])})" if each.get("slices") else each["name"]
        for each in found
    )
    return [kind if count == 1 else f"{count} x {kind}" for kind, count in sorted(named.items())]


def _asked(program: str, *options: str) -> tuple[int, str] | None:
    """Exit code and output; None where it did not end in time or cannot be started."""
    try:
        asking = subprocess.Popen(
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
        said, _ = asking.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if asking.poll() is None:
            asking.kill()
            with contextlib.suppress(
                subprocess.TimeoutExpired
            ):  # a process that waits in the driver (state D) outlives SIGKILL
                asking.wait(0.2)
    return asking.returncode, said


def query(fields: dict[str, str]) -> list[str]:
    """Return the argv of nvidia-smi for these fields: nvidia-smi's name of each of ours."""
    return [
        "nvidia-smi",
        f"--query-gpu={','.join(fields.values())}",
        "--format=csv,noheader,nounits",
    ]


def parse(text: str, fields: dict[str, str]) -> list[dict[str, Any]]:
    """Return a dictionary a line that nvidia-smi printed, without unknown values and lines of another width (an error text).

    Clocks in Hz, memory in bytes, utilisation as a fraction, power in W, times in seconds since the epoch.
    """
    found = []
    for cells in csv.reader(io.StringIO(text), skipinitialspace=True):
        if len(cells) == len(fields):
            values = {
                name: _value(name, cell.strip()) for name, cell in zip(fields, cells, strict=True)
            }
            found.append({name: value for name, value in values.items() if value is not None})
    return found


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
    """MIG profiles of each GPU of `nvidia-smi -L`, in its order."""
    found: list[list[str]] = []
    for line in listing.splitlines():
        if line.startswith("GPU "):
            found.append([])
        elif found and (profile := re.match(r"\s+MIG (\S+)", line)):
            found[-1].append(profile[1])
    return found

"""The NVIDIA GPUs of this host as its driver names them: part of what a result was measured on. What they do during a sample is asked by
the steps that use them.

Source: `nvidia-smi --query-gpu` and `nvidia-smi -L`. Memory in bytes, power in W.
"""

import contextlib
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

_FIELDS = {
    "name": "name",
    "driver": "driver_version",
    "memory_bytes": "memory.total",
    "power_limit": "power.limit",
    "ecc": "ecc.mode.current",
    "mig": "mig.mode.current",
}
_LEAST = ("name", "driver", "memory_bytes")
"""Known to every version; one that does not know a field refuses all of them."""
_LIMIT = 5.0
"""Seconds of a question. All of them fit into what a peer is given for its facts (SshHost.facts), or a hung driver would cost the others too."""


def gpus() -> list[dict[str, Any]] | None:
    """Each GPU that this process may see, with its MIG slices where it has some; empty without a driver, None where it does not answer."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    for names in (tuple(_FIELDS), _LEAST):
        answered = _asked(
            program,
            f"--query-gpu={','.join(_FIELDS[name] for name in names)}",
            "--format=csv,noheader,nounits",
        )
        if answered is None:
            return None
        code, said = answered
        if code == 0:
            break
    else:
        return None
    rows = [[cell.strip() for cell in line.split(",")] for line in said.splitlines()]
    found: list[dict[str, Any]] = [
        {name: _value(name, cell) for name, cell in zip(names, row, strict=True)}
        for row in rows
        if len(row) == len(names)
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
        said, _ = asking.communicate(timeout=_LIMIT)
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


def _value(name: str, cell: str) -> Any:
    if cell.startswith("[") or cell in ("", "N/A"):
        return "unknown GPU" if name == "name" else None
    if name == "memory_bytes":
        return int(cell) * 2**20 if cell.isdecimal() else None
    if name == "power_limit":
        return float(cell) if re.fullmatch(r"[0-9.]+", cell) else None
    return cell


def _slices(listing: str) -> list[list[str]]:
    """MIG profiles of each GPU of `nvidia-smi -L`, in its order."""
    found: list[list[str]] = []
    for line in listing.splitlines():
        if line.startswith("GPU "):
            found.append([])
        elif found and (profile := re.match(r"\s+MIG (\S+)", line)):
            found[-1].append(profile[1])
    return found

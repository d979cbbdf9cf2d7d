"""Values as kube-perftest writes them: fio's sizes and times, perftest's options, claims."""

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

_SECONDS = {"": 1.0, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {
    letter + end: 1024.0**power
    for power, letter in enumerate(("", "k", "m", "g", "t", "p"))
    for end in ("", "b")
}
"""fio's own units, in capitals or not. Its k is 1024."""
_OPTIONS = {
    "d": "device",
    "ib-dev": "device",
    "i": "port",
    "ib-port": "port",
    "m": "mtu",
    "mtu": "mtu",
    "x": "gid_index",
    "gid-index": "gid_index",
    "c": "connection",
    "connection": "connection",
}
"""Options of perftest that are parameters here."""


def _fio(units: dict[str, float], what: str, examples: str) -> BeforeValidator:
    """Return a validator that reads a value as fio does, in bytes or seconds."""

    def read(value: Any) -> float:
        match = re.fullmatch(r"(\d+)([a-z]*)", str(value).lower())
        if match is None or match[2] not in units:
            raise ValueError(f"{value!r} is not a {what} of fio, such as {examples}")
        return int(match[1]) * units[match[2]]

    return BeforeValidator(read)


FioSize = Annotated[int, _fio(_BYTES, "size", "32k, 1M, 10G"), Field(gt=0)]
FioTime = Annotated[float, _fio(_SECONDS, "time", "30s, 10M (minutes), 500ms"), Field(gt=0)]


def arguments(argv: list[str]) -> dict[str, Any]:
    """Return the parameters of perftest's options, with other options as `extra_args`.

    An option there is one word with its value.
    """
    joined: list[str] = []
    for word in argv:
        if joined and not word.startswith("-"):
            joined[-1] += f"={word}" if joined[-1].startswith("--") else word
        else:
            joined.append(word)
    params: dict[str, Any] = {}
    extra = []
    for word in joined:
        match = re.fullmatch(r"--([a-z_-]+)=(.+)|-([a-z])(.+)", word)
        name = _OPTIONS.get(match[1] or match[3]) if match else None
        if match and name:
            value = match[2] or match[4]
            params[name] = int(value) if value.isdigit() else value
        else:
            extra.append(word)
    return params | ({"extra_args": extra} if extra else {})


def bytes_text(size: int) -> str:
    """Return a size as text, in the largest unit that needs no fraction."""
    for power, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB")):
        if size % 1024 ** (power + 1):
            return f"{size // 1024**power}{unit}"
    return f"{size >> 50}PiB"

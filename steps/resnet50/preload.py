"""Check which variables and LD_PRELOAD libraries of a treatment's environment reached a process.

ld.so skips a library that it cannot load with a line on standard error, and starts the program.
"""

import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

_REFUSED = re.compile(r"object '([^']*)' from \S+ cannot be preloaded")


def entries(value: str) -> list[str]:
    """Return the libraries of a value of LD_PRELOAD, separated by spaces and colons."""
    return [entry for entry in re.split(r"[ :]+", value) if entry]


def inspect(expected: Mapping[str, str]) -> dict[str, Any]:
    """Return `environment` and `preloaded` of this process.

    `environment` has the value of each wanted variable, or None. `preloaded` says of each library
    in the wanted or the current LD_PRELOAD whether it is loaded.
    """
    mapped = {
        line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines()
    }
    # A layer may remove its own name from the environment.
    libraries = entries(f"{expected.get('LD_PRELOAD', '')} {os.environ.get('LD_PRELOAD', '')}")
    return {
        "environment": {name: os.environ.get(name) for name in expected},
        "preloaded": {entry: loaded(entry, mapped) for entry in libraries},
    }


def loaded(entry: str, mapped: Collection[str]) -> bool:
    """Whether a library is mapped: by path, or by name if ld.so searches for it."""
    if "/" in entry and "$" not in entry:
        return str(Path(entry).resolve()) in mapped
    name = Path(entry).name
    return any(Path(file).name == name or Path(file).name.startswith(f"{name}.") for file in mapped)


def missing_environment(raw: Mapping[str, Any], expected: Mapping[str, str]) -> str | None:
    """Return why a program did not run in the wanted environment, or None."""
    if without := [
        entry
        for entry in entries(expected.get("LD_PRELOAD", ""))
        if not raw.get("preloaded", {}).get(entry)
    ]:
        return (
            f"LD_PRELOAD {without[0]} was not loaded into the program:"
            " correct its path as the program sees it, or build it for the libc there"
        )
    environment = raw.get("environment", {})
    if absent := [
        name for name in expected if name != "LD_PRELOAD" and environment.get(name) is None
    ]:
        return (
            f"{absent[0]} of wrapper_env did not reach the program:"
            " python has to name the interpreter itself"
        )
    return None


def ignored_libraries(raws: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the LD_PRELOAD libraries that programs report and did not load."""
    return {entry for raw in raws for entry, there in raw.get("preloaded", {}).items() if not there}


def refused(stderr: str, argv: Sequence[str]) -> list[str]:
    """Return the libraries of argv that ld.so reports as not preloadable.

    Other libraries come from the environment of perfdag.
    """
    libraries = dict.fromkeys(_REFUSED.findall(stderr))
    return [entry for entry in libraries if any(entry in argument for argument in argv)]

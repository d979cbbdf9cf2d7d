"""What of a treatment's environment is in a process: the variables, and whether ld.so really loaded each library of LD_PRELOAD. One that it
cannot load it passes over with a line on standard error, and the program runs without it."""

import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

_REFUSED = re.compile(r"object '([^']*)' from \S+ cannot be preloaded")


def entries(value: str) -> list[str]:
    """Libraries of a value of LD_PRELOAD, which parts them by spaces and colons."""
    return [entry for entry in re.split(r"[ :]+", value) if entry]


def found(wanted: Mapping[str, str]) -> dict[str, Any]:
    """`environment`: the value here of each variable that is wanted (None: not set); `preloaded`: whether each library of LD_PRELOAD, wanted
    or set here, is in this process."""
    mapped = {
        line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines()
    }
    # a layer may take its own name out of the environment
    libraries = entries(f"{wanted.get('LD_PRELOAD', '')} {os.environ.get('LD_PRELOAD', '')}")
    return {
        "environment": {name: os.environ.get(name) for name in wanted},
        "preloaded": {entry: loaded(entry, mapped) for entry in libraries},
    }


def loaded(entry: str, mapped: Collection[str]) -> bool:
    """Whether a library is among these files: by its path, or by its name where ld.so looks for it or puts in `$LIB`."""
    if "/" in entry and "$" not in entry:
        return str(Path(entry).resolve()) in mapped
    name = Path(entry).name
    return any(Path(each).name == name or Path(each).name.startswith(f"{name}.") for each in mapped)


def untreated(raw: Mapping[str, Any], wanted: Mapping[str, str]) -> str | None:
    """Why a program was not in the environment that was wanted, by what it reports; None where it was."""
    if without := [
        entry
        for entry in entries(wanted.get("LD_PRELOAD", ""))
        if not raw.get("preloaded", {}).get(entry)
    ]:
        return f"LD_PRELOAD {without[0]} was not loaded into the program: mend its path as the program sees it, or build it for the libc there"
    here = raw.get("environment", {})
    if absent := [name for name in wanted if name != "LD_PRELOAD" and here.get(name) is None]:
        return f"{absent[0]} of wrapper_env did not reach the program: python has to name the interpreter itself"
    return None


def ignored(raws: Sequence[Mapping[str, Any]]) -> set[str]:
    """Libraries of LD_PRELOAD that programs report and that were not loaded into them."""
    return {entry for raw in raws for entry, there in raw.get("preloaded", {}).items() if not there}


def refused(stderr: str, argv: Sequence[str]) -> list[str]:
    """Libraries that ld.so says it cannot preload, of those that argv names: others are of the environment that was there before."""
    said = dict.fromkeys(_REFUSED.findall(stderr))
    return [entry for entry in said if any(entry in each for each in argv)]

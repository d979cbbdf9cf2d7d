"""CPU lists as taskset and the kernel write them: `0`, `2-3`, `0-2,5`."""

from typing import Annotated

from pydantic import AfterValidator, StringConstraints

PATTERN = r"^[0-9]{1,9}(-[0-9]{1,9})?(,[0-9]{1,9}(-[0-9]{1,9})?)*$"
MOST = 8192
"""CPUs that Linux can have at most (NR_CPUS of x86-64)."""


def cpus(text: str) -> set[int]:
    """The CPUs of a list. Raises ValueError for another form, a range that ends before it begins, and CPUs that no machine has."""
    found: set[int] = set()
    for part in text.split(","):
        start, _, end = part.partition("-")
        first, last = int(start), int(end or start)
        if last < first:
            raise ValueError(f"{part} ends before it begins: {last}-{first}")
        if last >= MOST:
            raise ValueError(f"{part}: CPUs are numbered from 0 to at most {MOST - 1}")
        found |= set(range(first, last + 1))
    return found


def _checked(text: str) -> str:
    cpus(text)
    return text


CpuList = Annotated[str, StringConstraints(pattern=PATTERN), AfterValidator(_checked)]

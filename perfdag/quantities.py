"""Kubernetes quantities (`500m`, `4Gi`, `1e3`) and CPU lists (`0-2,5`).

A Kubernetes quantity is not a product byte parameter. Parameters such as `4KiB` or `10Gbit/s` are
read by `perfdag.units`: they have a dimension and refuse `m` as milli. A quantity has none: `500m`
of CPU is half a CPU, and it goes to Kubernetes as written.
"""

import re
from decimal import Decimal
from typing import Annotated

from pydantic import AfterValidator, StringConstraints

# The syntax of k8s.io/apimachinery/pkg/api/resource, without a sign: no resource is negative.
_QUANTITY = re.compile(
    r"(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
    r"(?:(?P<suffix>[KMGTPE]i|[numkMGTPE])|(?P<exponent>[eE][+-]?[0-9]+))?"
)
_FACTORS = {
    **{
        suffix: Decimal(1000) ** power
        for power, suffix in enumerate(("n", "u", "m", "", "k", "M", "G", "T", "P", "E"), start=-3)
    },
    **{f"{prefix}i": Decimal(1024) ** power for power, prefix in enumerate("KMGTPE", start=1)},
}
_LARGEST = 2**63 - 1

CPU_LIST = r"^[0-9]{1,9}(-[0-9]{1,9})?(,[0-9]{1,9}(-[0-9]{1,9})?)*$"
MAX_CPUS = 8192
"""The most CPUs that Linux supports (NR_CPUS of x86-64)."""


def parse_quantity(value: str | int | float) -> Decimal:
    """Return the amount of a quantity: `500m` is 0.5, `1Ki` is 1024. Raises ValueError."""
    try:
        match = _QUANTITY.fullmatch(str(value))
        if match is None:
            raise ValueError
        amount = (
            Decimal(match["number"] + (match["exponent"] or "")) * _FACTORS[match["suffix"] or ""]
        )
    except (ValueError, ArithmeticError):
        raise ValueError(
            f"not a quantity of Kubernetes: {value!r}; write it as 2, 500m, 4Gi or 1e3"
        ) from None
    if amount > _LARGEST:
        raise ValueError(f"{value} is more than 2^63 - 1, the largest quantity of Kubernetes")
    return amount


def _check_quantity(value: str | int | float) -> str | int | float:
    parse_quantity(value)
    return value


def parse_cpu_list(text: str) -> set[int]:
    """Return the CPUs of a list as taskset and the kernel write it.

    Raises ValueError for another form, a range that ends before it begins, and CPUs that no machine
    has.
    """
    cpus: set[int] = set()
    for part in text.split(","):
        start, _, end = part.partition("-")
        first, last = int(start), int(end or start)
        if last < first:
            raise ValueError(f"{part} ends before it begins: {last}-{first}")
        if last >= MAX_CPUS:
            raise ValueError(f"{part}: CPUs are numbered from 0 to at most {MAX_CPUS - 1}")
        cpus |= set(range(first, last + 1))
    return cpus


def _check_cpu_list(text: str) -> str:
    parse_cpu_list(text)
    return text


Quantity = Annotated[str | int | float, AfterValidator(_check_quantity)]
CpuList = Annotated[str, StringConstraints(pattern=CPU_LIST), AfterValidator(_check_cpu_list)]

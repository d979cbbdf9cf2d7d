"""Names of the resources that a container can request, and their quantities."""

import re

from perfdag.quantities import parse_quantity

_NATIVE = ("cpu", "memory", "ephemeral-storage")
_HUGEPAGES = re.compile(r"hugepages-[1-9][0-9]*[KMG]i")


def check_resource(name: str) -> str:
    """Return the name of a resource that a container can request. Raises ValueError."""
    if "/" not in name and name not in _NATIVE and not _HUGEPAGES.fullmatch(name):
        raise ValueError(
            f"no container can request {name!r}: there are {', '.join(_NATIVE)} "
            "and devices such as nvidia.com/gpu"
        )
    return name


def check_hugepages(name: str) -> str:
    """Return the name of a kind of hugepages. Raises ValueError."""
    if not _HUGEPAGES.fullmatch(name):
        raise ValueError(f"{name!r} is no kind of hugepages: write hugepages-2Mi or hugepages-1Gi")
    return name


def check_devices(resources: dict[str, str | int | float]) -> dict[str, str | int | float]:
    """Return resources whose devices are whole numbers. Raises ValueError."""
    for name, value in resources.items():
        if "/" in name and parse_quantity(value) % 1:
            raise ValueError(f"{name}: {value}: devices are whole; request 1 or more")
    return resources

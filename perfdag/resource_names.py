"""The resources that a container requests, and its limits."""

import re
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from perfdag.pod_text import Name
from perfdag.quantities import Quantity, parse_quantity

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


Amounts = dict[Annotated[Name, AfterValidator(check_resource)], Quantity]


class Resources(BaseModel):
    """Requests and limits of a container. A name beside `requests` and `limits` is in both."""

    model_config = ConfigDict(extra="allow", frozen=True)
    __pydantic_extra__: Amounts = Field(init=False)

    requests: Amounts = Field({}, description="requested, without a limit")
    limits: Amounts = Field({}, description="limits, where they differ from the requests")

    @property
    def both(self) -> Amounts:
        """What is requested and also the limit."""
        return self.__pydantic_extra__ or {}

    def all_requests(self) -> Amounts:
        """Return what the container requests."""
        return {**self.both, **self.requests}

    def all_limits(self) -> Amounts:
        """Return the limits of the container."""
        return {**self.both, **self.limits}

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name, value in self.both.items():
            if "/" in name and parse_quantity(value) % 1:
                raise ValueError(f"{name}: {value}: devices are whole; request 1 or more")
        requests, limits = self.all_requests(), self.all_limits()
        for name in (*self.requests, *self.limits):
            if "/" in name or name.startswith("hugepages-"):
                raise ValueError(f"{name} has one amount: write it beside requests and limits")
            if name in limits and parse_quantity(requests.get(name, 0)) > parse_quantity(
                limits[name]
            ):
                raise ValueError(
                    f"{name}: the request {requests[name]} is above the limit {limits[name]}"
                )
        return self

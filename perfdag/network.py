"""The measured network of a shape."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from perfdag.pod_text import Name, Strict

INTERFACE = r"^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,14}$"


class Network(Strict):
    """The network that is measured."""

    host: bool | None = Field(
        None,
        description="true: the host's network; false: the pod network; unset: "
        "the pod network on a cluster, the host's here",
    )
    path: Literal["pod", "service", "nodeport", "host"] | None = Field(
        None,
        description="how the client reaches the server: at its pod, through a Service, at a port "
        "of its node, or both on the networks of their nodes; gives `host`",
    )
    name: Name | None = Field(None, description="a Multus network, `namespace/name`")
    also: list[Name] = Field(
        [], description="further Multus networks, which are the interfaces net2, net3 ..."
    )
    default: bool = Field(
        False,
        description="the Multus network replaces the default one "
        "instead of being an extra interface",
    )
    interface: str | None = Field(
        None,
        pattern=INTERFACE,
        description="interface whose address is measured, where the network is an extra one",
    )
    mtu: int | None = Field(
        None,
        ge=576,
        le=65535,
        description="MTU in bytes, set inside the pod (needs privileges: [mtu])",
    )
    family: Literal["ipv4", "ipv6"] = Field("ipv4", description="address family that is measured")

    @model_validator(mode="before")
    @classmethod
    def _host_of_path(cls, raw: Any) -> Any:
        path = raw.get("path") if isinstance(raw, dict) else None
        return raw if path is None else {"host": path == "host", **raw}

    @model_validator(mode="after")
    def _check_path(self) -> Self:
        if self.path is not None and self.host != (self.path == "host"):
            raise ValueError(f"host: {self.host} contradicts path: {self.path}; leave host out")
        return self

    @property
    def attachments(self) -> list[str]:
        """The Multus networks, in the order of their interfaces."""
        return [*([self.name] if self.name else []), *self.also]

    @property
    def forwarded(self) -> bool:
        """Whether a Service forwards what is measured."""
        return self.path in ("service", "nodeport")

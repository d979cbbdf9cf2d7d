"""Parameters that rdma-bandwidth and rdma-latency share."""

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from perfdag.benchmark.contract import Params
from perfdag.benchmark.rules import refuse
from perfdag.steps.rdma import options
from perfdag.units import PositiveDuration, Size

Mode = Literal["read", "write", "send", "atomic"]
_CONNECTIONS = {
    "write": ("RC", "UC", "XRC", "DC"),
    "read": ("RC", "XRC", "DC"),
    "send": ("RC", "UC", "UD", "XRC", "DC"),
    "atomic": ("RC", "XRC", "DC"),
}
_BY_CM = ("RC", "UD")
"""Connection types that perftest connects with rdma_cm."""


class RdmaParams(Params):
    """Parameters of both benchmarks.

    One iteration is one message (bandwidth) or one exchange (latency).
    """

    mode: Mode = Field("write", description="the verb that is measured")
    iterations: int = Field(
        1000, ge=5, le=100_000_000, description="messages of each size (of each queue pair)"
    )
    duration: PositiveDuration | None = Field(
        None,
        description="measure each size for so long instead of `iterations`;"
        " needs `sizes` to be a list",
    )
    sizes: (
        Literal["all"]
        | Annotated[list[Annotated[Size, Field(ge=1, le=1 << 30)]], Field(min_length=1)]
    ) = Field(
        "all",
        description="message sizes in bytes, or all: 2, 4, 8 ... 8 MiB (perftest's -a);"
        " atomic is always 8 bytes",
    )
    mtu: Literal[256, 512, 1024, 2048, 4096] | None = Field(
        None, description="path MTU in bytes; default the port's"
    )
    connection: Literal["RC", "UC", "UD", "XRC", "DC"] = Field(
        "RC", description="connection type; read and atomic know no UC or UD, write no UD"
    )
    device: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")] | None = Field(
        None, description="RDMA device, for example mlx5_0; default the first"
    )
    port: int = Field(1, ge=1, le=255, description="port of the device")
    gid_index: Annotated[int, Field(ge=0, le=64)] | None = Field(
        None, description="index in the GID table (RoCE version and address)"
    )
    rdma_cm: bool = Field(
        False, description="connect the queue pairs with rdma_cm; connection RC or UD"
    )
    cuda: Annotated[int, Field(ge=0, le=63)] | None = Field(
        None,
        description="buffers in the memory of this GPU (nvidia-smi's index);"
        " needs a perftest built with CUDA",
    )
    atomic: Literal["CMP_AND_SWAP", "FETCH_AND_ADD"] = Field(
        "FETCH_AND_ADD", description="with mode: atomic"
    )
    extra_args: list[Annotated[str, Field(pattern=options.EXTRA)]] = Field(
        [],
        description="added to the command on both sides, for example --tclass=96;"
        " options that a parameter sets are refused",
    )

    @field_validator("extra_args")
    @classmethod
    def _not_ours(cls, arguments: list[str]) -> list[str]:
        problems = (options.refused(argument, cls.model_fields) for argument in arguments)
        if problem := next(filter(None, problems), None):
            raise ValueError(problem)
        return arguments

    @model_validator(mode="after")
    def _agree(self) -> Self:
        listed, by_cm = self.sizes != "all", " and ".join(_BY_CM)
        largest = 0 if self.sizes == "all" else max(self.sizes)
        seconds = 3.0 if self.duration is None else self.duration
        refuse(
            (
                self.connection not in _CONNECTIONS[self.mode],
                f"mode {self.mode} has no connection {self.connection};"
                f" it has {', '.join(_CONNECTIONS[self.mode])}",
            ),
            (
                self.rdma_cm and self.connection not in _BY_CM,
                f"rdma_cm connects {by_cm} only, not {self.connection};"
                " leave rdma_cm out, or use one of these",
            ),
            (
                self.duration is not None and not listed and self.mode != "atomic",
                "duration needs sizes as a list, for example sizes: [65536];"
                " perftest cannot time all sizes",
            ),
            (
                self.mode == "atomic" and self.sizes not in ("all", [8]),
                "mode atomic measures 8 bytes; leave sizes out",
            ),
            (
                seconds < 3,
                "duration must be 3 s or more: perftest leaves out a margin at both ends",
            ),
            (
                seconds % 1,
                f"duration {seconds:g} s: perftest takes whole seconds;"
                f" use {int(seconds)}s or {int(seconds) + 1}s",
            ),
            (
                self.connection == "UD" and largest > (self.mtu or 4096),
                f"sizes: {largest} B is more than one datagram; UD ends at the path MTU,"
                f" at most {self.mtu or 4096} B",
            ),
        )
        return self

    def runs(self) -> list[int | None]:
        """Return the size of each run of the tool; None is one run of all sizes."""
        if self.mode == "atomic" or self.sizes == "all":
            return [None]
        return list(self.sizes)

    def expected_sizes(self) -> set[int]:
        """Return the sizes that the result must have.

        UD ends at the path MTU, which only the link knows. It must have the sizes up to 256 bytes.
        """
        if self.mode == "atomic":
            return {8}
        if self.sizes != "all":
            return set(self.sizes)
        last = 8 if self.connection == "UD" else 23
        return {1 << power for power in range(1, last + 1)}

"""Parameters of latency."""

from typing import Literal, Self

from pydantic import Field, model_validator

from perfdag.benchmark.contract import Params
from perfdag.benchmark.rules import refuse
from perfdag.units import PositiveDuration, Size

_DATAGRAM = 65507
"""Most bytes of payload in a UDP datagram over IPv4."""


class LatencyParams(Params):
    """The transaction and how long it is repeated."""

    test: Literal["TCP_RR", "TCP_CRR", "UDP_RR"] = Field(
        "TCP_RR",
        description="a request and its response over one TCP connection, over a new connection"
        " for each transaction, or as UDP datagrams",
    )
    duration: PositiveDuration = Field(
        10.0, le=86400, description="seconds that are measured; whole seconds"
    )
    request_size: Size = Field(1, ge=1, le=1 << 20, description="bytes of a request")
    response_size: Size = Field(1, ge=1, le=1 << 20, description="bytes of a response")
    port: int | None = Field(
        None, ge=1024, le=65535, description="port of the server; unset: a free one"
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        refuse(
            (
                self.duration % 1,
                f"duration: netperf takes whole seconds, not {self.duration:g}",
            ),
            (
                self.test == "UDP_RR" and max(self.request_size, self.response_size) > _DATAGRAM,
                f"request_size and response_size: a datagram has at most {_DATAGRAM} B",
            ),
        )
        return self

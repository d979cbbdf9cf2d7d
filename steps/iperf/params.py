"""Parameters of iperf."""

import re
from typing import Literal, Self

from pydantic import Field, model_validator

from perfdag.benchmark.contract import Params
from perfdag.benchmark.rules import refuse
from perfdag.units import BitRate, Duration, PositiveDuration, Size

EXTRA = {
    "iperf3": (
        "no-delay", "tos", "dscp", "flowlabel", "fq-rate", "pacing-timer", "dont-fragment",
        "cport", "rcv-timeout", "snd-timeout", "repeating-payload",
    ),
    "iperf2": ("nodelay", "tos", "ttl", "fq-rate", "tcp-quickack"),
}  # fmt: skip
"""Long options of the clients that change traffic, and neither output, duration nor address."""


class IperfParams(Params):
    """Options of iperf. Rates are bit/s for each stream, as the tool takes them."""

    implementation: Literal["iperf3", "iperf2"] = "iperf3"
    streams: int = Field(1, ge=1, le=128, description="parallel streams")
    duration: PositiveDuration = Field(
        10.0, description="seconds that are measured; whole seconds for iperf3"
    )
    omit: Duration = Field(
        0.0, description="seconds sent before the measured time starts; whole seconds, iperf3 only"
    )
    protocol: Literal["tcp", "udp"] = "tcp"
    rate: BitRate | None = Field(
        None,
        description="bit/s of each stream, 0 for no limit; unset: no limit for tcp,"
        " 1 Mbit/s for udp (the tool's own)",
    )
    reverse: bool = Field(False, description="the server sends, the client receives")
    bidirectional: bool = Field(False, description="both send at once")
    length: Size | None = Field(
        None, ge=1, le=1 << 20, description="bytes of one write; unset: the tool's own"
    )
    mss: int | None = Field(None, ge=88, le=9216, description="TCP maximum segment size in bytes")
    window: Size | None = Field(
        None, ge=1024, le=1 << 29, description="socket buffer in bytes; unset: the kernel tunes it"
    )
    congestion: str | None = Field(
        None,
        pattern=r"^[a-z][a-z0-9_-]{0,15}$",
        description="TCP congestion control, for example cubic or bbr",
    )
    zerocopy: bool = Field(False, description="send with sendfile; tcp and iperf3 only")
    port: int | None = Field(
        None, ge=1024, le=65535, description="port of the server; unset: a free one"
    )
    extra_args: list[str] = Field(
        [],
        # without extra_args a point keeps the id that it had before they existed
        exclude_if=lambda arguments: not arguments,
        description="words added to the client's command, --option or --option=value: for iperf3"
        f" {', '.join(EXTRA['iperf3'])}; for iperf2 {', '.join(EXTRA['iperf2'])}",
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        udp, iperf2 = self.protocol == "udp", self.implementation == "iperf2"
        allowed = EXTRA[self.implementation]
        refused = [
            word
            for word in self.extra_args
            if not (match := re.fullmatch(r"--([a-z-]+)(=\S+)?", word)) or match[1] not in allowed
        ]
        tcp_only = [name for name in ("mss", "congestion", "zerocopy") if getattr(self, name)]
        iperf3_only = [name for name in ("omit", "zerocopy") if getattr(self, name)]
        refuse(
            (
                refused,
                f"extra_args: {', '.join(refused)} would change what is measured or read here,"
                f" or is not one word; allowed are --{', --'.join(allowed)},"
                " with =VALUE where they take one",
            ),
            (
                self.reverse and self.bidirectional,
                "reverse and bidirectional exclude each other; set one of them",
            ),
            (
                udp and tcp_only,
                f"{', '.join(tcp_only)}: tcp only; leave out with protocol: udp",
            ),
            (
                iperf2 and iperf3_only,
                f"{', '.join(iperf3_only)}: iperf3 only; leave out with implementation: iperf2",
            ),
            (
                iperf2 and udp and self.rate == 0,
                "rate: iperf2 has no unlimited UDP; give a rate, or use implementation: iperf3",
            ),
            (
                iperf2 and udp and self.bidirectional,
                "bidirectional udp: iperf3 only; use implementation: iperf3",
            ),
            *(
                (
                    not iperf2 and seconds % 1,
                    f"{name}: iperf3 takes whole seconds, not {seconds:g}; iperf2 takes parts",
                )
                for name, seconds in (("duration", self.duration), ("omit", self.omit))
            ),
            (
                not iperf2 and (self.omit > 60 or self.duration > 86400),
                "iperf3 takes a duration up to 86400 s and an omit up to 60 s",
            ),
        )
        return self

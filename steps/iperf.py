"""iperf: throughput between two hosts with iperf3 (or iperf2)."""

import re
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from perfdag.benchmark import Benchmark, Failed, Gang, Measurement, Metric, Output, Params, Tool
from perfdag.hosts import Finished, Host, Server
from perfdag.processes import Proto
from perfdag.shape import Cpus, Shape
from perfdag.steps import iperf2, iperf3
from perfdag.units import BitRate, Duration, PositiveDuration, Size

_MANAGERS = ("apt", "dnf", "zypper", "pacman", "brew")
IPERF3 = Tool("iperf3", dict.fromkeys(_MANAGERS, "iperf3"))
IPERF2 = Tool("iperf", dict.fromkeys(_MANAGERS, "iperf"))


class IperfParams(Params):
    """What iperf is asked to do; rates are bit/s for each stream, as the tool takes them."""

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
        description="bit/s of each stream, 0 for no limit; unset: no limit for tcp, 1 Mbit/s for udp (the tool's own)",
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

    @model_validator(mode="after")
    def _possible(self) -> "IperfParams":
        if self.reverse and self.bidirectional:
            raise ValueError("reverse and bidirectional exclude each other; set one of them")
        if self.protocol == "udp":
            given = [name for name in ("mss", "congestion", "zerocopy") if getattr(self, name)]
            if given:
                raise ValueError(f"{', '.join(given)}: tcp only; leave out with protocol: udp")
        if self.implementation == "iperf2":
            given = [name for name in ("omit", "zerocopy") if getattr(self, name)]
            if given:
                raise ValueError(
                    f"{', '.join(given)}: iperf3 only; leave out with implementation: iperf2"
                )
            if self.rate == 0 and self.protocol == "udp":
                raise ValueError(
                    "rate: iperf2 has no unlimited UDP; give a rate, or use implementation: iperf3"
                )
            if self.bidirectional and self.protocol == "udp":
                raise ValueError("bidirectional udp: iperf3 only; use implementation: iperf3")
        else:
            for name in ("duration", "omit"):
                if getattr(self, name) % 1:
                    raise ValueError(
                        f"{name}: iperf3 takes whole seconds, not {getattr(self, name):g}; iperf2 takes parts"
                    )
            if self.omit > 60 or self.duration > 86400:
                raise ValueError("iperf3 takes a duration up to 86400 s and an omit up to 60 s")
        return self


class Iperf(Benchmark[IperfParams]):
    """Throughput of TCP or UDP streams between two hosts, with iperf3 or iperf2.

    The client runs on the first host, the server on the second; without `reverse` the client sends. `throughput` is what the
    receiver got, the sum over all streams (and over both directions with `bidirectional`). An iperf3 older than 3.16 runs all its
    streams on one core, so its version is part of the series, and `cpu_bound` is 1 where a side was busy for 95 % of what it can use: its
    threads, or the cores that it may run on where these are fewer; on one machine both sides together.

    Clock: iperf's own. It starts when all streams are connected (after `omit`) and stops at the receiver's last byte in `duration`;
    starting the server, connecting and ending are outside.
    """

    name = "iperf"
    image = "iperf"
    pairwise = True
    canaries = ("cpu", "loopback")
    tools = (IPERF3,)
    pins = ("client", "server")
    Params: ClassVar[type[Params]] = IperfParams
    metrics = (
        Metric(
            "throughput",
            "bit/s",
            "higher",
            "payload the receiver got, all streams and directions",
            headline=True,
        ),
        Metric(
            "direction_throughput",
            "bit/s",
            "higher",
            "payload got in one direction of a bidirectional test",
        ),
        Metric(
            "second_throughput",
            "bit/s",
            "none",
            "payload got within a second of the run, all streams and directions; a subject each",
        ),
        Metric("sent_throughput", "bit/s", "none", "payload handed to the sender's socket"),
        Metric("retransmits", "1", "lower", "TCP segments sent again"),
        Metric("jitter", "s", "lower", "UDP interarrival jitter (RFC 1889), mean over the streams"),
        Metric("lost_fraction", "1", "lower", "UDP datagrams lost of those sent"),
        Metric("out_of_order", "1", "lower", "UDP datagrams that came out of order"),
        Metric(
            "sender_cpu", "1", "lower", "cores used by the sending process; iperf2 does not say"
        ),
        Metric(
            "receiver_cpu", "1", "lower", "cores used by the receiving process; iperf2 does not say"
        ),
        Metric(
            "rtt", "s", "lower", "smoothed round-trip time of TCP at the sender, over the streams"
        ),
        Metric(
            "congestion_window",
            "B",
            "none",
            "TCP congestion window at the sender, over the streams and seconds (iperf2)",
        ),
        Metric(
            "cpu_bound",
            "1",
            "none",
            "1: a process used all the cores it can, so the network may do more; else 0; iperf2 does not say",
        ),
    )

    def shape(self, params: IperfParams) -> dict[str, Any]:
        return {"hosts": {"count": 2}}

    def check(self, params: IperfParams, shape: Shape) -> list[str]:
        if shape.hosts.count < 2:
            return [f"hosts.count is {shape.hosts.count}; iperf needs 2 (a client and a server)"]
        if shape.hosts.count > 2:
            return [
                f"hosts.count is {shape.hosts.count}; iperf measures 2 hosts, or set hosts.pairs (all, ring, `random N`)"
            ]
        return []

    def seconds(self, params: IperfParams) -> float:
        return params.duration + params.omit + 0.1

    def least_seconds(self, params: IperfParams) -> float:
        return params.duration + params.omit

    def missing(self, gang: Gang, params: IperfParams) -> list[Tool]:
        tool = IPERF3 if params.implementation == "iperf3" else IPERF2
        return [tool] if any(host.which(tool.program) is None for host in gang.hosts[:2]) else []

    def run(self, gang: Gang, params: IperfParams) -> Output:
        if (
            len(gang.hosts) != 2
        ):  # the pairs of a larger gang are two hosts each; never one pair under the name of all
            raise Failed(
                f"iperf measures 2 hosts and was given {len(gang.hosts)}; set hosts.count to 2"
            )
        client, server = gang.hosts
        cpus = gang.shape.hosts.cpus
        # iperf3 talks about a UDP test over TCP first, so its server listens on TCP in any case
        proto: Proto = params.protocol if params.implementation == "iperf2" else "tcp"
        serving, port = self._serve(server, params, proto, cpus.server)
        serve, connect = commands(params, server.address, port)
        with serving:
            finished = client.run(connect, timeout=gang.timeout, cpus=cpus.client)
            # the server ends by itself after one test; where the client failed it never will
            served = (
                serving.wait(5.0)
                if finished.code == 0 and not _refused(finished)
                else serving.stop()
            )
        texts = {"client": finished.stdout, "server": served.stdout}
        texts |= {
            f"{role}_stderr": each.stderr
            for role, each in (("client", finished), ("server", served))
            if each.stderr
        }
        if finished.timed_out or (finished.code != 0 and not _refused(finished)):
            finished.check(params.implementation)
        if (
            not _refused(finished) and served.code != 0
        ):  # it ends by itself after a test: this one was another server's
            said = re.search(r'"error":\s*"(.*)"', served.stdout)
            why = said[1] if said else served.tail()
            raise Failed(
                f"{params.implementation}'s server exited {served.code} beside a test that went well: {why}",
                texts,
            )
        facts = {
            "server_address": server.address,
            "client_address": client.address,
            "cores": _cores(client, server, cpus),
        }
        output = Output(texts, [serve, connect], facts=facts)
        if params.implementation == "iperf2":
            version = client.run(["iperf", "-v"], timeout=10)
            texts["version"] = version.stdout + version.stderr
            output.tool = iperf2.version(texts["version"])
        else:
            output.tool = "iperf3 " + ".".join(
                map(str, iperf3.version(iperf3.read(finished.stdout)))
            )
        self._say_cpu_bound(output, params)
        return output

    def _serve(
        self, server: Host, params: IperfParams, proto: Proto, cpus: str | None
    ) -> tuple[Server, int]:
        """A listening server and its port; where a free port was asked for and somebody else was faster, another one."""
        for attempt in range(3):
            port = params.port or server.free_port(proto)
            argv = commands(params, server.address, port)[0]
            try:
                return server.serve(argv, port=port, proto=proto, cpus=cpus), port
            except Failed:
                if params.port or attempt == 2:
                    raise
        raise AssertionError("not reached")

    def _say_cpu_bound(self, output: Output, params: IperfParams) -> None:
        """The fact in words, for the row; a broken output is parse's to report."""
        if params.implementation == "iperf2":
            return
        try:
            report = iperf3.read(output.texts["client"])
            for side in iperf3.sides(report, params, output.facts["cores"]):
                if side.bound:
                    output.facts["cpu_bound"] = (
                        f"{side.name}: busy for {100 * side.used / side.limit:.0f} % of {side.words}"
                    )
        except Failed:
            return

    def parse(self, output: Output, params: IperfParams) -> list[Measurement]:
        if params.implementation == "iperf2":
            iperf2.verify(params, output.texts)
            return iperf2.parse(
                output,
                params.streams,
                params.duration,
                params.protocol,
                params.reverse,
                params.bidirectional,
            )
        report = iperf3.read(output.texts.get("client", ""))
        if "error" in report:
            iperf3.give_up(str(report["error"]), output.texts)
        try:
            iperf3.verify(report, params, output.texts)
            return iperf3.measurements(
                report, params, output.texts, output.facts.get("cores") or {}
            )
        except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
            raise Failed(
                f"iperf3's report lacks {error}: not the JSON of a whole test", output.texts
            ) from error

    def series(self, output: Output) -> str:
        return output.tool


def _cores(client: Host, server: Host, cpus: Cpus) -> dict[str, Any]:
    """How many cores each side may run on, and whether these are the same ones; a host that cannot say is left out."""
    cores: dict[str, Any] = {}
    for role, host, pins in (("client", client, cpus.client), ("server", server, cpus.server)):
        said = host.run(["nproc"], timeout=10, cpus=pins)
        if said.code == 0 and said.stdout.strip().isdigit():
            cores[role] = int(said.stdout)
    same = client.name == server.name and cpus.client == cpus.server
    return cores | {"shared": True} if same and len(cores) == 2 else cores


def commands(params: IperfParams, address: str, port: int) -> tuple[list[str], list[str]]:
    """The argv of the server and of the client (options: iperf3(1), iperf(1))."""
    if params.implementation == "iperf2":
        return _iperf2_commands(params, address, port)
    client = [
        "iperf3",
        "--client",
        address,
        "--port",
        str(port),
        "--json",
        "--connect-timeout",
        "10000",
    ]
    client += ["--time", f"{params.duration:.0f}", "--parallel", str(params.streams)]
    options: list[tuple[str, object]] = [
        ("--omit", f"{params.omit:.0f}" if params.omit else None),
        ("--bitrate", None if params.rate is None else f"{params.rate:.0f}"),
        ("--length", params.length),
        ("--set-mss", params.mss),
        ("--window", params.window),
        ("--congestion", params.congestion),
    ]
    client += [str(part) for flag, value in options if value is not None for part in (flag, value)]
    flags = [
        ("--udp", params.protocol == "udp"),
        ("--reverse", params.reverse),
        ("--bidir", params.bidirectional),
    ]
    client += [flag for flag, wanted in [*flags, ("--zerocopy", params.zerocopy)] if wanted]
    return ["iperf3", "--server", "--one-off", "--port", str(port), "--json"], client


def _iperf2_commands(params: IperfParams, address: str, port: int) -> tuple[list[str], list[str]]:
    shared = [
        "-p",
        str(port),
        "-f",
        "b",
        "-e",
    ]  # -e: which side sent and lost what, -f b: whole bit/s
    shared += (
        ["-i", "1"] if params.duration >= 2 else []
    )  # a line a second beside the total; in a shorter test they are the same
    shared += ["-u"] if params.protocol == "udp" else []
    shared += ["-V"] if ":" in address else []
    shared += ["-w", str(params.window)] if params.window is not None else []
    client = [
        "iperf",
        "-c",
        address,
        *shared,
        "-t",
        f"{params.duration:g}",
        "-P",
        str(params.streams),
    ]
    client += ["-b", f"{params.rate:.0f}"] if params.rate else []
    client += ["-l", str(params.length)] if params.length is not None else []
    client += ["-M", str(params.mss)] if params.mss is not None else []
    # each side sets it for what it sends itself
    congestion = ["-Z", params.congestion] if params.congestion is not None else []
    client += ["-R"] if params.reverse else congestion
    client += ["--full-duplex"] if params.bidirectional else []
    return ["iperf", "-s", *shared, "-P", str(params.streams), *congestion], client


def _refused(finished: Finished) -> bool:
    """Whether it ended with an error in its JSON, which iperf3 does with exit code 0 or 1 by version."""
    return '"error"' in finished.stdout[-2000:]

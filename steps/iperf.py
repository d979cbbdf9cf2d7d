"""iperf: throughput between two hosts with iperf3."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from perfdag.benchmark.contract import Gang, Metric, Output, Params, Tool, refuse
from perfdag.hosts.base import CommandResult, Host
from perfdag.outcome import Failed, Invalid, Measurement, Skip
from perfdag.shape import Cpus, Shape
from perfdag.steps import two_hosts
from perfdag.steps.json_report import read_report
from perfdag.units import BitRate, Duration, PositiveDuration, Size

_TOOL = Tool("iperf3", dict.fromkeys(("apt", "dnf", "zypper", "pacman", "brew"), "iperf3"))
BUSY = 0.95
"""Share of its cores above which a side, not the network, limits the throughput."""
BOTH_WAYS = (3, 11)
"""First iperf3 whose report keeps the two directions of a bidirectional test apart."""
THREADED = (3, 16)
"""First iperf3 with a thread for each stream (its release notes)."""
_DIRECTIONS = (("client_to_server", ""), ("server_to_client", "_bidir_reverse"))
_EXTRA = (
    "no-delay", "tos", "dscp", "flowlabel", "fq-rate", "pacing-timer", "dont-fragment",
    "cport", "rcv-timeout", "snd-timeout", "repeating-payload",
)  # fmt: skip
"""Long options of the client that change traffic, and neither output, duration nor address."""


class IperfParams(Params):
    """Options of iperf3. Rates are bit/s for each stream, as the tool takes them."""

    # It has one value, and stays because it is part of the id of every point that is stored.
    implementation: Literal["iperf3"] = "iperf3"
    streams: int = Field(1, ge=1, le=128, description="parallel streams")
    duration: PositiveDuration = Field(
        10.0, le=86400, description="seconds that are measured; whole seconds"
    )
    omit: Duration = Field(
        0.0, le=60, description="seconds sent before the measured time starts; whole seconds"
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
    zerocopy: bool = Field(False, description="send with sendfile; tcp only")
    port: int | None = Field(
        None, ge=1024, le=65535, description="port of the server; unset: a free one"
    )
    extra_args: list[str] = Field(
        [],
        # without extra_args a point keeps the id that it had before they existed
        exclude_if=lambda arguments: not arguments,
        description="words added to the client's command, --option or --option=value:"
        f" {', '.join(_EXTRA)}",
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        refused = [
            word
            for word in self.extra_args
            if not (match := re.fullmatch(r"--([a-z-]+)(=\S+)?", word)) or match[1] not in _EXTRA
        ]
        tcp_only = [name for name in ("mss", "congestion", "zerocopy") if getattr(self, name)]
        refuse(
            (
                refused,
                f"extra_args: {', '.join(refused)} would change what is measured or read here,"
                f" or is not one word; allowed are --{', --'.join(_EXTRA)},"
                " with =VALUE where they take one",
            ),
            (
                self.reverse and self.bidirectional,
                "reverse and bidirectional exclude each other; set one of them",
            ),
            (
                self.protocol == "udp" and tcp_only,
                f"{', '.join(tcp_only)}: tcp only; leave out with protocol: udp",
            ),
            *(
                (seconds % 1, f"{name}: iperf3 takes whole seconds, not {seconds:g}")
                for name, seconds in (("duration", self.duration), ("omit", self.omit))
            ),
        )
        return self


class Iperf(two_hosts.TwoHostBenchmark[IperfParams]):
    """Throughput of TCP or UDP streams between two hosts, with iperf3.

    The client runs on the first host, the server on the second. Without `reverse` the client
    sends. `throughput` is what the receiver got, summed over all streams, and over both
    directions with `bidirectional`. An iperf3 older than 3.16 runs all streams on one core, so
    its version is part of the series. `cpu_bound` is 1 if a side used at least 95 % of the cores
    that it can use. Those are its threads, or the cores it may run on if these are fewer. On one
    machine both sides count together.

    Clock: iperf's own. It starts when all streams are connected and `omit` is over. It stops at
    the receiver's last byte in `duration`. Starting the server, connecting and ending are outside.
    """

    name = "iperf"
    image = "iperf"
    tools = (_TOOL,)
    Params: ClassVar[type[Params]] = IperfParams
    coords = ("direction",)
    metrics = (
        Metric(
            "throughput",
            "bit/s",
            "higher",
            "payload received, all streams and directions",
            headline=True,
            nominal=True,
        ),
        Metric(
            "direction_throughput",
            "bit/s",
            "higher",
            "payload received in one direction of a bidirectional test",
        ),
        Metric(
            "stream_throughput", "bit/s", "none", "payload received by one stream in one direction"
        ),
        Metric("bytes", "B", "none", "payload received: all streams and directions, and by stream"),
        Metric(
            "second_throughput",
            "bit/s",
            "none",
            "payload received in each second of the run, all streams and directions",
        ),
        Metric("sent_throughput", "bit/s", "none", "payload handed to the sender's socket"),
        Metric("retransmits", "1", "lower", "TCP segments sent again"),
        Metric("jitter", "s", "lower", "UDP interarrival jitter (RFC 1889), mean over the streams"),
        Metric(
            "lost_fraction",
            "1",
            "lower",
            "UDP datagrams lost of those sent",
            highest=1,
        ),
        Metric("out_of_order", "1", "lower", "UDP datagrams received out of order"),
        Metric("sender_cpu", "1", "lower", "cores used by the sending process"),
        Metric("receiver_cpu", "1", "lower", "cores used by the receiving process"),
        Metric(
            "rtt", "s", "lower", "smoothed round-trip time of TCP at the sender, over the streams"
        ),
        Metric(
            "cpu_bound",
            "1",
            "none",
            "1: a process used all its cores, so the network may do more; else 0",
            highest=1,
        ),
    )

    def check(self, params: IperfParams, shape: Shape) -> list[str]:
        return two_hosts.problems(self.name, shape, params.port)

    def directions(self, params: IperfParams) -> int:
        return 2 if params.bidirectional else 1

    def seconds(self, params: IperfParams) -> float:
        return params.duration + params.omit + 0.1

    def least_seconds(self, params: IperfParams) -> float:
        return params.duration + params.omit

    def require(self, gang: Gang, params: IperfParams) -> None:
        if params.bidirectional:
            for host in self.hosts(gang):
                _check_both_ways(_version(host.run(["iperf3", "--version"], timeout=10).stdout))

    def prepare(self, gang: Gang, params: IperfParams) -> None:
        self.require(gang, params)

    def run(self, gang: Gang, params: IperfParams) -> Output:
        client, server = self.hosts(gang)
        cpus = gang.shape.hosts.cpus
        serving, port = two_hosts.serve(
            server,
            lambda port: commands(params, server.address, port)[0],
            port=params.port,
            cpus=cpus.server,
        )
        serve, connect = commands(params, server.address, port, server.target)
        with serving:
            client_end = client.run(connect, timeout=gang.timeout, cpus=cpus.client)
            # The server ends after one test, but never if the client failed.
            server_end = (
                serving.wait(5.0)
                if client_end.code == 0 and not _refused(client_end)
                else serving.stop()
            )
        texts = {"client": client_end.stdout, "server": server_end.stdout}
        texts |= {
            f"{role}_stderr": end.stderr
            for role, end in (("client", client_end), ("server", server_end))
            if end.stderr
        }
        if client_end.timed_out or (client_end.code != 0 and not _refused(client_end)):
            client_end.check("iperf3")
        if not _refused(client_end) and server_end.code != 0:
            # Another process answered the client on this port.
            error = re.search(r'"error":\s*"(.*)"', server_end.stdout)
            reason = error[1] if error else server_end.tail()
            raise Failed(
                f"iperf3's server exited {server_end.code} although the client"
                f" ended well: {reason}",
                texts,
            )
        facts: dict[str, Any] = {
            "server_address": server.target,
            "client_address": client.address,
            "cores": _cores(client, server, cpus),
        }
        report = _read(client_end.stdout)
        tool = "iperf3 " + ".".join(map(str, _reported(report)))
        facts |= _cpu_bound(sides(report, params, facts["cores"]))
        return Output(texts, [serve, connect], tool, facts)

    def parse(self, output: Output, params: IperfParams) -> list[Measurement]:
        report = _read(output.texts.get("client", ""))
        if "error" in report:
            _give_up(str(report["error"]), output.texts)
        try:
            _verify(report, params, output.texts)
            return _measurements(report, params, output.texts, output.facts.get("cores") or {})
        except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
            raise Failed(
                f"iperf3's report lacks {error}: not the JSON of a whole test", output.texts
            ) from error

    def series(self, output: Output) -> str:
        return output.tool


def _cores(client: Host, server: Host, cpus: Cpus) -> dict[str, Any]:
    """Count the cores that each side may run on. `shared` marks that both run on the same ones."""
    cores: dict[str, Any] = {}
    for role, host, pins in (("client", client, cpus.client), ("server", server, cpus.server)):
        finished = host.run(["nproc"], timeout=10, cpus=pins)
        if finished.code == 0 and finished.stdout.strip().isdigit():
            cores[role] = int(finished.stdout)
    same = client.name == server.name and cpus.client == cpus.server
    return cores | {"shared": True} if same and len(cores) == 2 else cores


def commands(
    params: IperfParams, address: str, port: int, target: str | None = None
) -> tuple[list[str], list[str]]:
    """Return the argv of the server and of the client (options: iperf3(1)).

    The server binds to `address`, and the client connects to `target`, if it differs.
    """
    target = target or address
    client = [
        "iperf3",
        "--client",
        target,
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
    client += params.extra_args
    server = ["iperf3", "--server", "--bind", address, "--one-off", "--port", str(port), "--json"]
    return server, client


def _cpu_bound(both: "list[Side]") -> dict[str, str]:
    """Describe the side that used all its cores, if there is one."""
    facts = {}
    for side in both:
        if side.bound:
            load = 100 * side.used / side.limit
            facts["cpu_bound"] = f"{side.name}: busy for {load:.0f} % of {side.limit_text}"
    return facts


def _refused(finished: CommandResult) -> bool:
    """Whether iperf3 reports an error in its JSON; its exit code is 0 or 1, by version."""
    return '"error"' in finished.stdout[-2000:]


def _read(text: str) -> dict[str, Any]:
    """Return iperf3's report; up to 3.12 a line of text may precede it. Raises Failed."""
    report: dict[str, Any] = read_report("iperf3", text, {"client": text})
    return report


def _give_up(error: str, texts: dict[str, str]) -> None:
    """Raise Skip or Failed with iperf3's message and what to do."""
    if "TCP_CONGESTION" in error:
        raise Skip(
            f"iperf3: {error}; the kernel's own:"
            " cat /proc/sys/net/ipv4/tcp_available_congestion_control",
            texts,
        )
    if "socket buffer size not set" in error:
        raise Failed(
            f"iperf3: {error}; window is above net.core.rmem_max or wmem_max of a host", texts
        )
    raise Failed(f"iperf3: {error}", texts)


def _version(text: str) -> tuple[int, ...]:
    """Return the version in a text of iperf3, for example (3, 12); (0,) if it has none."""
    match = re.search(r"iperf (\d+(?:\.\d+)+)", text)
    return tuple(int(part) for part in match[1].split(".")) if match else (0,)


def _reported(report: dict[str, Any]) -> tuple[int, ...]:
    return _version(str(report.get("start", {}).get("version", "")))


def _check_both_ways(version: tuple[int, ...]) -> None:
    """Raise Skip for a version whose report of a bidirectional test has one key for two halves."""
    if (0,) < version < BOTH_WAYS:
        raise Skip(
            f"bidirectional: the report of iperf3 {'.'.join(map(str, version))} has both directions"
            " under one key; use iperf3 3.11 or later"
        )


def _verify(report: dict[str, Any], params: IperfParams, texts: dict[str, str]) -> None:
    """Check that iperf3 used the requested options. Raises Invalid if it used others."""
    if params.bidirectional:
        _check_both_ways(_reported(report))
    start, end = report["start"], report["end"]
    options = start["test_start"]
    for name, actual, wanted in (
        ("streams", options["num_streams"], params.streams),
        ("protocol", options["protocol"].lower(), params.protocol),
        ("duration", options["duration"], params.duration),
        ("omit", options["omit"], params.omit),
        ("mss", start.get("tcp_mss", params.mss), params.mss),
        ("congestion", end.get("sender_tcp_congestion", params.congestion), params.congestion),
    ):
        if wanted is not None and actual != wanted:
            raise Invalid(f"{name} {wanted} was requested, iperf3 used {actual}", texts)
    if params.window and start.get("sndbuf_actual", params.window) < params.window:
        raise Invalid(
            f"a window of {params.window} B was requested,"
            f" the kernel granted {start['sndbuf_actual']} B",
            texts,
        )
    paths = [
        stream["pmtu"]
        for interval in report["intervals"]
        for stream in interval["streams"]
        if stream.get("pmtu")
    ]
    # IPv4 and TCP headers take at least 20 bytes each.
    if params.mss and paths and min(paths) - 40 < params.mss:
        raise Invalid(
            f"mss {params.mss} B was requested, a path MTU of {min(paths)} B holds at most"
            f" {min(paths) - 40} B",
            texts,
        )
    expected = params.streams * (2 if params.bidirectional else 1)
    if len(end["streams"]) != expected:
        raise Failed(
            f"iperf3 reports {len(end['streams'])} streams, {expected} were requested", texts
        )
    if (seconds := _sent(end, "")["seconds"]) < 0.9 * params.duration:
        raise Failed(f"iperf3 ended after {seconds:.1f} s of {params.duration:g} s", texts)


def _measurements(
    report: dict[str, Any], params: IperfParams, texts: dict[str, str], cores: Mapping[str, Any]
) -> list[Measurement]:
    """Return the values of a whole report in base units; for `cores` see sides().

    Raises Failed if the receiver got nothing, KeyError if a part is missing.
    """
    end = report["end"]
    directions = _DIRECTIONS if params.bidirectional else _DIRECTIONS[:1]
    received = [_received(end, suffix) for _, suffix in directions]
    if not all(rate > 0 for rate in received):
        raise Failed("iperf3's receiver got nothing", texts)
    measurements = [Measurement("throughput", sum(received))]
    sent = [_sent(end, suffix) for _, suffix in directions]
    total = sum(float(each["bits_per_second"]) for each in sent)
    measurements.append(Measurement("sent_throughput", total))
    for (name, suffix), value, side in zip(directions, received, sent, strict=True):
        coords = {"direction": name} if params.bidirectional else {}
        if params.bidirectional:
            measurements.append(Measurement("direction_throughput", value, coords=coords))
        if params.protocol == "udp":
            measurements += _udp(end, suffix, coords)
        elif "retransmits" in side:  # only Linux and FreeBSD report them
            measurements.append(
                Measurement("retransmits", float(side["retransmits"]), coords=coords)
            )
    measurements += _streams(end, params)
    if params.protocol == "tcp":
        measurements += _round_trips(end)
    measurements += _seconds(report, params, texts)
    cpu_sides = sides(report, params, cores)
    measurements += [Measurement(f"{side.name}_cpu", side.used) for side in cpu_sides[:2]]
    if cpu_sides:
        measurements.append(Measurement("cpu_bound", float(any(side.bound for side in cpu_sides))))
    return measurements


def _seconds(
    report: dict[str, Any], params: IperfParams, texts: dict[str, str]
) -> list[Measurement]:
    """Return the bit/s that the receivers got in each measured second.

    Raises Failed if the server received and its report is broken.
    """
    received = [_whole_seconds(report)] if params.reverse or params.bidirectional else []
    if not params.reverse:
        received.append(_whole_seconds(_read(texts.get("server", ""))))
    return by_second([sum(rates) for rates in zip(*received, strict=False)][: int(params.duration)])


def _whole_seconds(report: dict[str, Any]) -> list[float]:
    """Return bit/s by second of all streams that this side receives.

    Omitted seconds and the rest after the last whole second are left out.
    """
    sums = [
        total
        for interval in report["intervals"]
        for name, total in interval.items()
        if name.startswith("sum")
    ]
    return [
        float(total["bits_per_second"])
        for total in sums
        if not total.get("omitted") and total.get("sender") is False and total["seconds"] > 0.5
    ]


def _streams(end: dict[str, Any], params: IperfParams) -> list[Measurement]:
    """Return the bytes and bit/s of each stream at its receiver.

    Of a UDP stream iperf3 reports what was sent, and the share of it that was lost.
    """
    received: dict[str, list[tuple[float, float]]] = {}
    for stream in end["streams"]:
        side = stream.get("receiver") or stream["udp"]
        lost = side["lost_packets"] / max(1, side["packets"]) if "udp" in stream else 0.0
        arrival = (float(side["bytes"]) * (1 - lost), float(side["bits_per_second"]) * (1 - lost))
        # The flag names the client's side of the stream.
        sends = (stream.get("sender") or side).get("sender", True)
        received.setdefault(_DIRECTIONS[not sends][0], []).append(arrival)
    return _by_stream(received, params.bidirectional)


def _sent(end: dict[str, Any], suffix: str) -> dict[str, Any]:
    """Return what was sent. Before 3.11 a UDP report has `sum` alone, with the lost datagrams."""
    total: dict[str, Any] = end.get(f"sum_sent{suffix}") or end[f"sum{suffix}"]
    return total


def _received(end: dict[str, Any], suffix: str) -> float:
    """Return bit/s at the receiver."""
    total = end.get(f"sum_received{suffix}")
    if total is not None:
        return float(total["bits_per_second"])
    total = end[f"sum{suffix}"]
    return float(total["bits_per_second"]) * (
        1 - int(total["lost_packets"]) / max(1, int(total["packets"]))
    )


def _udp(end: dict[str, Any], suffix: str, coords: dict[str, str]) -> list[Measurement]:
    total = end.get(f"sum_received{suffix}") or end[f"sum{suffix}"]
    packets, lost = int(total["packets"]), int(total["lost_packets"])
    if packets <= 0:
        raise Failed("iperf3's receiver counted no datagram")
    measurements = [
        Measurement("jitter", float(total["jitter_ms"]) / 1e3, coords=coords, n=packets),
        Measurement("lost_fraction", lost / packets, coords=coords, n=packets),
    ]
    reordered = [stream["udp"].get("out_of_order") for stream in end["streams"]]
    if not suffix and not coords and None not in reordered:
        measurements.append(Measurement("out_of_order", float(sum(reordered)), n=packets))
    return measurements


def _round_trips(end: dict[str, Any]) -> list[Measurement]:
    # The value is 0 if the sender is remote: iperf3 does not transfer its kernel's figures.
    senders = [
        stream["sender"] for stream in end["streams"] if stream["sender"].get("mean_rtt", 0) > 0
    ]
    if not senders:
        return []
    mean = sum(float(sender["mean_rtt"]) for sender in senders) / len(senders)
    lowest, highest = (
        min(sender["min_rtt"] for sender in senders),
        max(sender["max_rtt"] for sender in senders),
    )
    return [
        Measurement("rtt", us / 1e6, stat)
        for stat, us in (("mean", mean), ("min", lowest), ("max", highest))
    ]


@dataclass(frozen=True)
class Side:
    """CPU use in cores of a sender or receiver, or of `both` if they share their cores.

    `limit_text` describes the `limit`.
    """

    name: str
    used: float
    limit: int
    limit_text: str

    @property
    def bound(self) -> bool:
        """Whether the side used about all that it can."""
        return self.used >= BUSY * self.limit


def sides(report: dict[str, Any], params: IperfParams, cores: Mapping[str, Any]) -> list[Side]:
    """Return sender and receiver, and `both` if they share their cores.

    With `bidirectional` the client counts as the sender. `cores` holds how many cores `client`
    and `server` may run on, and whether these are `shared`. A side without a number has as many
    cores as threads.
    """
    used = report.get("end", {}).get("cpu_utilization_percent")
    if not used:
        return []
    threaded = _reported(report) >= THREADED
    threads = params.streams * (2 if params.bidirectional else 1) if threaded else 1
    result = []
    for name, remote in (("sender", params.reverse), ("receiver", not params.reverse)):
        role, tool = ("remote_total", "server") if remote else ("host_total", "client")
        available = int(cores.get(tool) or threads)
        what = (
            f"{available} cores that it may run on" if available < threads else f"{threads} threads"
        )
        limit_text = what if threaded else "one core, all that this version uses"
        result.append(Side(name, float(used[role]) / 100, min(available, threads), limit_text))
    if cores.get("shared"):
        result.append(
            Side(
                "both",
                result[0].used + result[1].used,
                int(cores["client"]),
                f"the {cores['client']} cores that both share",
            )
        )
    return result


def _by_stream(
    received: Mapping[str, Sequence[tuple[float, float]]], bidirectional: bool
) -> list[Measurement]:
    """Return rows of all bytes, and of the (bytes, bit/s) of each stream by direction."""
    streams = [
        (size, rate, {"direction": direction} if bidirectional else {}, f"stream {number}")
        for direction, pairs in received.items()
        for number, (size, rate) in enumerate(pairs, start=1)
    ]
    rows = [Measurement("bytes", sum(size for size, *_ in streams))]
    for size, rate, coords, subject in streams:
        rows.append(Measurement("bytes", size, coords=coords, subject=subject))
        rows.append(Measurement("stream_throughput", rate, coords=coords, subject=subject))
    return rows


def by_second(rates: Sequence[float]) -> list[Measurement]:
    """Return `second_throughput` rows, at most 300; a longer run averages several seconds.

    A run of one second has none, since the second is the whole run.
    """
    step = -(-len(rates) // 300)
    starts = range(0, len(rates), step) if len(rates) > 1 else ()
    return [
        Measurement("second_throughput", fmean(rates[at : at + step]), subject=f"second {at + 1}")
        for at in starts
    ]

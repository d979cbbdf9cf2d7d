"""iperf: throughput between two hosts with iperf3, or iperf 2."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from statistics import fmean
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field

from perfdag.benchmark.contract import (
    AtMost,
    Benchmark,
    Between,
    Duration,
    Failed,
    Form,
    FreeOptions,
    Gang,
    Host,
    Identity,
    Invalid,
    Measurement,
    Metric,
    Output,
    Params,
    PositiveDuration,
    Problem,
    Remark,
    ShortForm,
    Size,
    Skip,
    Tool,
    argv_of,
    need_tools,
    read_report,
)
from perfdag.hosts.local import allowed_cpus
from perfdag.shape import Cpus
from perfdag.units import BitRate

BUSY = 0.95
"""Share of its cores above which a side, not the network, limits the throughput."""
BOTH_WAYS = (3, 11)
"""First iperf3 whose report keeps the two directions of a bidirectional test apart."""
THREADED = (3, 16)
"""First iperf3 with a thread for each stream (its release notes)."""
ENDS = 0.15
"""Share by which figures may differ because both sides begin and end a little apart."""
_DIRECTIONS = (("client_to_server", ""), ("server_to_client", "_bidir_reverse"))

_MANAGERS = ("apt", "dnf", "zypper", "pacman", "brew")
IPERF3 = Tool("iperf3", dict.fromkeys(_MANAGERS, "iperf3"))
IPERF2 = Tool("iperf", dict.fromkeys(_MANAGERS, "iperf"))
OF_IPERF2 = ("implementation", "streams", "duration", "reverse", "port")
"""Parameters that iperf 2 has here: the CSV of its figures shows whether it did what they say."""

FREE = FreeOptions(
    "iperf3",
    parameters={
        "-b --bitrate --bandwidth": "rate",
        "-C --congestion --linux-congestion": "congestion",
        "-l --length": "length",
        "-M --set-mss": "mss",
        "-O --omit": "omit",
        "-P --parallel": "streams",
        "-p --port": "port",
        "-R --reverse": "reverse",
        "--bidir": "bidirectional",
        "-t --time": "duration",
        "-u --udp": "protocol",
        "-w --window": "window",
        "-Z --zerocopy": "zerocopy",
    },
    changes={
        "-4 --version4 -6 --version6": "the addresses, as network.family does,",
        "-A --affinity": "the cores, as hosts.cpus does,",
        "-n --bytes -k --blockcount": "the end",
        "-F --file": "the source of the data, so that a disk is measured,",
        "-c --client -s --server -1 --one-off -D --daemon -I --pidfile": "the role",
        "-X --xbind --sctp --nstreams": "the protocol",
        "-J --json --json-stream --logfile --forceflush --timestamps -f --format": "the output",
        "-i --interval -V --verbose -d --debug -T --title --extra-data": "the output",
        "-v --version -h --help --get-server-output": "the output",
        "--connect-timeout": "the limit that perfdag sets",
    },
)
"""Options of iperf3 3.18 (`iperf3 --help`) that `extra_args` may not have."""


class IperfParams(Params):
    """Options of iperf3. Rates are bit/s for each stream, as the tool takes them."""

    implementation: Literal["iperf3", "iperf2"] = Field(
        "iperf3",
        description="iperf2: iperf 2, as kube-perftest runs it: TCP, with streams, duration,"
        " reverse and port alone",
    )
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
    congestion: (
        Annotated[str, Form("the name of a congestion control", r"^[a-z][a-z0-9_-]{0,15}$")] | None
    ) = Field(None, description="TCP congestion control, for example cubic or bbr")
    zerocopy: bool = Field(False, description="send with sendfile; tcp only")
    port: int | None = Field(
        None, ge=1024, le=65535, description="port of the server; unset: a free one"
    )
    extra_args: Annotated[list[str], AfterValidator(FREE.check)] = Field(
        [],
        # without extra_args a point keeps the id that it had before they existed
        exclude_if=lambda arguments: not arguments,
        description="added to the client's command, for example --tos=0x60 or --no-delay",
    )

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    def problems(self) -> Iterator[Problem]:
        """Yield the parameters that contradict one another."""
        fields = type(self).model_fields
        of_iperf3 = [name for name in fields if name not in OF_IPERF2 and self._is_set(name)]
        if self.implementation == "iperf2" and of_iperf3:
            yield Problem(
                "iperf3-only",
                f"{', '.join(of_iperf3)}: iperf3 only; leave out with implementation: iperf2",
            )
        if self.reverse and self.bidirectional:
            yield Problem(
                "reverse-and-bidirectional",
                "reverse and bidirectional exclude each other; set one of them",
            )
        of_tcp = [name for name in ("mss", "congestion", "zerocopy") if self._is_set(name)]
        if self.protocol == "udp" and of_tcp:
            yield Problem(
                "tcp-only", f"{', '.join(of_tcp)}: tcp only; leave out with protocol: udp"
            )
        for name in ("duration", "omit"):
            seconds = getattr(self, name)
            if seconds % 1:
                yield Problem(
                    "whole-seconds", f"{name}: iperf3 takes whole seconds, not {seconds:g}"
                )

    def _is_set(self, name: str) -> bool:
        """Return whether a parameter differs from its default."""
        return bool(getattr(self, name) != type(self).model_fields[name].default)


class Iperf(Benchmark[IperfParams]):
    """Throughput of TCP or UDP streams between two hosts, with iperf3.

    With `implementation: iperf2`, iperf 2 measures TCP, and reports throughput and bytes alone.
    The client runs on the first host, the server on the second. Without `reverse` the client
    sends. `throughput` is what the receiver got, summed over all streams, and over both
    directions with `bidirectional`. An iperf3 older than 3.16 runs all streams on one core, so
    its version is part of the series. `cpu_bound` is 1 if a side used at least 95 % of the cores
    that it can use. Those are its threads, or the cores it may run on if these are fewer. On one
    machine both sides count together.

    Clock: iperf's own. It starts when all streams are connected and `omit` is over. It stops at
    the receiver's last byte in `duration`. Starting the server, connecting and ending are outside.
    """

    tools = (IPERF3,)
    network = "services"
    pins = ("client", "server")
    canaries = ("cpu", "loopback")
    coords = ("direction",)
    short_forms: ClassVar[Mapping[str, ShortForm]] = {
        "protocol": {"tcp": "TCP", "udp": "UDP"},
        "streams": "{} streams",
        "reverse": {"true": "server sends", "false": "client sends"},
        "bidirectional": {"true": "both send", "false": "one sends"},
        "direction": "{}",
        "rate": "{} a stream",
        "length": "writes of {}",
        "mss": "MSS {}",
        "window": "window {}",
        "congestion": "{}",
        "zerocopy": {"true": "zero copy", "false": "copies"},
        "duration": "for {}",
        "omit": "first {} omitted",
        "second": "second {}",
        "implementation": {"iperf3": "iperf 3", "iperf2": "iperf 2"},
    }
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
            label="{direction} throughput",
        ),
        Metric(
            "stream_throughput",
            "bit/s",
            "none",
            "payload received by one stream in one direction",
            label="throughput of a stream",
        ),
        Metric(
            "bytes",
            "B",
            "none",
            "payload received: all streams and directions, and by stream",
            label="data received",
        ),
        Metric(
            "second_throughput",
            "bit/s",
            "none",
            "payload received in each second of the run, all streams and directions",
            label="throughput in each second",
        ),
        Metric(
            "sent_throughput",
            "bit/s",
            "none",
            "payload handed to the sender's socket",
            label="throughput sent",
        ),
        Metric(
            "retransmits",
            "1",
            "lower",
            "TCP segments sent again",
            label="retransmitted segments",
        ),
        Metric("jitter", "s", "lower", "UDP interarrival jitter (RFC 1889), mean over the streams"),
        Metric(
            "lost_fraction",
            "1",
            "lower",
            "UDP datagrams lost of those sent",
            highest=1,
            counts="share",
            label="datagrams lost",
        ),
        Metric(
            "out_of_order",
            "1",
            "lower",
            "UDP datagrams received out of order",
            label="datagrams out of order",
        ),
        Metric(
            "sender_cpu",
            "1",
            "lower",
            "cores used by the sending process",
            label="CPU of the sender",
        ),
        Metric(
            "receiver_cpu",
            "1",
            "lower",
            "cores used by the receiving process",
            label="CPU of the receiver",
        ),
        Metric(
            "rtt",
            "s",
            "lower",
            "smoothed round-trip time of TCP at the sender, over the streams",
            label="round-trip time",
        ),
        Metric(
            "cpu_bound",
            "1",
            "none",
            "1: a process used all its cores, so the network may do more; else 0",
            highest=1,
            label="bound by a CPU",
        ),
    )

    remarks = (Remark(r"(?i)^(iperf3: )?warning:", "note"),)

    def shape(self, params: IperfParams) -> dict[str, Any]:
        return {"image": "iperf", "hosts": {"count": 2}}

    def identities(self, params: IperfParams) -> Iterable[Identity]:
        yield AtMost(("throughput",), ("sent_throughput",), tolerance=ENDS)
        # A receiver on a busy machine may count for longer than the duration, but not for less.
        yield AtMost(("throughput", params.duration), ("bytes", 8), tolerance=ENDS)
        yield Between("throughput", "second_throughput", tolerance=ENDS)

    def seconds(self, params: IperfParams) -> float:
        return params.duration + params.omit + 0.1

    def require(self, gang: Gang, params: IperfParams) -> None:
        need_tools(gang.hosts, [IPERF2 if params.implementation == "iperf2" else IPERF3])

    def run(self, gang: Gang, params: IperfParams) -> list[Measurement]:
        client, server = gang.hosts
        cpus = gang.shape.hosts.cpus
        port = params.port or server.free_port()
        if params.implementation == "iperf2":
            program = "iperf"
            serve = iperf2_command(params, "--server", server.address, port)
            connect = iperf2_command(params, "--client", server.target, port)
            about = client.run(["iperf", "--version"], timeout=10)
            head = about.stdout + about.stderr
        else:
            program = "iperf3"
            once = {"--server": True, "--bind": server.address, "--one-off": True}
            serve = ["iperf3", *argv_of({**once, "--json": True, "--port": port})]
            connect = client_command(params, server.target, port)
            head = ""  # its report has the version
        with server.serve(serve, port=port, cpus=cpus.server) as serving:
            finished = client.run(connect, timeout=gang.timeout, cpus=cpus.client)
            # A refusal is in the JSON; the exit code is 0 or 1, by version. The server ends after
            # one test, but never if the client failed.
            refused = '"error"' in finished.stdout[-2000:]
            tested = finished.code == 0 and not refused
            served = serving.wait(5.0) if tested else serving.stop()
        texts = {
            "client": finished.stdout,
            "server": served.stdout,
            "client_stderr": finished.stderr,
            "server_stderr": served.stderr,
        }
        if program == "iperf3":
            texts["cores"] = json.dumps(_cores(client, server, cpus))
        number = re.search(r'(?:iperf version|"version":\s*"iperf) (\S+)', head + finished.stdout)
        gang.output = Output(
            {role: text for role, text in texts.items() if text},
            [serve, connect],
            f"{program} {number[1] if number else ''}".strip(),
            {"server_address": server.target, "client_address": client.address},
            comparable=False,
        )
        if not refused:
            finished.check(program)
        if tested and served.code != 0 and program == "iperf3":
            # Another process answered the client on this port.
            error = re.search(r'"error":\s*"(.*)"', served.stdout)
            reason = error[1] if error else served.tail()
            raise Failed(
                f"iperf3's server exited {served.code} although the client ended well: {reason}"
            )
        return parse(gang.output.texts, params)


def client_command(params: IperfParams, target: str, port: int) -> list[str]:
    """Return the argv of the client of iperf3 (options: iperf3(1))."""
    options: dict[str, object] = {
        "--client": target,
        "--port": port,
        "--connect-timeout": 10000,
        "--time": f"{params.duration:.0f}",
        "--parallel": params.streams,
        "--omit": f"{params.omit:.0f}" if params.omit else None,
        "--bitrate": None if params.rate is None else f"{params.rate:.0f}",
        "--length": params.length,
        "--set-mss": params.mss,
        "--window": params.window,
        "--congestion": params.congestion,
        "--udp": params.protocol == "udp",
        "--reverse": params.reverse,
        "--bidir": params.bidirectional,
        "--zerocopy": params.zerocopy,
    }
    return ["iperf3", "--json", *argv_of(options), *params.extra_args]


def _cores(client: Host, server: Host, cpus: Cpus) -> dict[str, Any]:
    """Count the cores that each side may run on. `shared` marks that both run on the same ones."""
    sides = (("client", client, cpus.client), ("server", server, cpus.server))
    cores: dict[str, Any] = {
        role: len(allowed) for role, host, pins in sides if (allowed := allowed_cpus(host, pins))
    }
    same = client.name == server.name and cpus.client == cpus.server
    return cores | {"shared": True} if same and len(cores) == 2 else cores


def parse(texts: Mapping[str, str], params: IperfParams) -> list[Measurement]:
    """Return the values of the reports of client and server.

    `cores` is JSON: how many cores `client` and `server` may run on, and whether these are
    `shared`. Raises Skip, Failed, or Invalid if iperf3 used other options than requested.
    """
    if params.implementation == "iperf2":
        return parse_iperf2(texts, params)
    # Up to 3.12 a line of text may precede the report.
    report = read_report("iperf3", texts.get("client", ""))
    try:
        if "error" in report:
            raise _refusal(str(report["error"]))
        _verify(report, params)
        # Each side reports the seconds of what it received.
        receivers = [report] if params.reverse or params.bidirectional else []
        if not params.reverse:
            receivers.append(read_report("iperf3", texts.get("server", "")))
        return [
            *_totals(report["end"], params),
            *_streams(report["end"], params),
            *_seconds(receivers, params),
            *_cpu(report, params, json.loads(texts.get("cores", "{}"))),
        ]
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        raise Failed(f"iperf3's report lacks {error}: not the JSON of a whole test") from error


def _refusal(error: str) -> Skip | Failed:
    if "TCP_CONGESTION" in error:
        return Skip(
            f"iperf3: {error}; the kernel's own:"
            " cat /proc/sys/net/ipv4/tcp_available_congestion_control"
        )
    if "socket buffer size not set" in error:
        return Failed(f"iperf3: {error}; window is above net.core.rmem_max or wmem_max of a host")
    return Failed(f"iperf3: {error}")


def _version(report: dict[str, Any]) -> tuple[int, ...]:
    number = re.search(r"iperf ([\d.]+)", str(report["start"]["version"]))
    return tuple(map(int, number[1].split("."))) if number else (0,)


def _verify(report: dict[str, Any], params: IperfParams) -> None:
    """Raise Invalid if iperf3 used other options, Failed if the test was cut short."""
    if params.bidirectional and (0,) < (version := _version(report)) < BOTH_WAYS:
        raise Skip(
            f"bidirectional: the report of iperf3 {'.'.join(map(str, version))} has both directions"
            " under one key; use iperf3 3.11 or later"
        )
    start = report["start"]
    end = report["end"]
    used = start["test_start"]
    for name, actual in (
        ("streams", used["num_streams"]),
        ("protocol", used["protocol"].lower()),
        ("duration", used["duration"]),
        ("omit", used["omit"]),
        ("mss", start.get("tcp_mss", params.mss)),
        ("congestion", end.get("sender_tcp_congestion", params.congestion)),
    ):
        requested = getattr(params, name)
        if requested is not None and actual != requested:
            raise Invalid(f"{name} {requested} was requested, iperf3 used {actual}")
    if params.window and start.get("sndbuf_actual", params.window) < params.window:
        raise Invalid(
            f"a window of {params.window} B was requested,"
            f" the kernel granted {start['sndbuf_actual']} B"
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
            f" {min(paths) - 40} B"
        )
    if (seconds := _sent(end, "")["seconds"]) < 0.9 * params.duration:
        raise Failed(f"iperf3 ended after {seconds:.1f} s of {params.duration:g} s")


def _sent(end: dict[str, Any], suffix: str) -> dict[str, Any]:
    """Return what was sent. Before 3.11 a UDP report has `sum` alone, with the lost datagrams."""
    return dict(end.get(f"sum_sent{suffix}") or end[f"sum{suffix}"])


def _arrived(side: dict[str, Any]) -> float:
    """Return the share of what a side counts that arrived: of UDP it may count what was sent."""
    return float(1 - side["lost_packets"] / max(1, side["packets"]))


def _totals(end: dict[str, Any], params: IperfParams) -> list[Measurement]:
    """Return what was received and sent in all, and by direction where there are two."""
    rows: list[Measurement] = []
    rates: list[float] = []
    sent_rates: list[float] = []
    for name, suffix in _DIRECTIONS[: params.directions]:
        coords = {"direction": name} if params.bidirectional else {}
        sent = _sent(end, suffix)
        sent_rates.append(float(sent["bits_per_second"]))
        received = end.get(f"sum_received{suffix}")
        counted = received or sent
        arrived = 1.0 if received else _arrived(sent)
        rates.append(float(counted["bits_per_second"]) * arrived)
        if rates[-1] <= 0:  # the other direction would hide it in the sum
            raise Failed(f"iperf3's receiver got nothing ({name})")
        if params.bidirectional:
            rows.append(Measurement("direction_throughput", rates[-1], coords=coords))
        if params.protocol == "udp":
            packets = int(counted["packets"])
            jitter = float(counted["jitter_ms"]) / 1000
            rows.append(Measurement("jitter", jitter, coords=coords, n=packets))
            lost_fraction = int(counted["lost_packets"]) / packets
            rows.append(Measurement("lost_fraction", lost_fraction, coords=coords, n=packets))
            reordered = [stream["udp"].get("out_of_order") for stream in end["streams"]]
            if not coords and None not in reordered:
                rows.append(Measurement("out_of_order", float(sum(reordered)), n=packets))
        elif "retransmits" in sent:  # only Linux and FreeBSD report them
            rows.append(Measurement("retransmits", float(sent["retransmits"]), coords=coords))
    return [
        Measurement("throughput", sum(rates)),
        Measurement("sent_throughput", sum(sent_rates)),
        *rows,
    ]


def _streams(end: dict[str, Any], params: IperfParams) -> list[Measurement]:
    """Return the bytes and bit/s of each stream at its receiver, and the round trips of TCP."""
    rows: list[Measurement] = []
    numbers = dict.fromkeys((name for name, _ in _DIRECTIONS), 0)
    for stream in end["streams"]:
        side = stream.get("receiver") or stream["udp"]
        share = _arrived(side) if "udp" in stream else 1.0
        # The flag names the client's side of the stream.
        direction = _DIRECTIONS[not (stream.get("sender") or side).get("sender", True)][0]
        numbers[direction] += 1
        coords = {"direction": direction} if params.bidirectional else {}
        subject = f"stream {numbers[direction]}"
        for metric, key in (("bytes", "bytes"), ("stream_throughput", "bits_per_second")):
            value = float(side[key]) * share
            rows.append(Measurement(metric, value, coords=coords, subject=subject))
    rows.append(Measurement("bytes", sum(row.value for row in rows if row.metric == "bytes")))
    if params.protocol == "tcp":
        # The value is 0 if the sender is remote: iperf3 does not transfer its kernel's figures.
        senders = [side["sender"] for side in end["streams"] if side["sender"].get("mean_rtt", 0)]
        for stat, of_all in (("mean", fmean), ("min", min), ("max", max)) if senders else ():
            value = of_all(float(sender[f"{stat}_rtt"]) for sender in senders)
            rows.append(Measurement("rtt", value / 1e6, stat))
    return rows


def _seconds(receivers: Sequence[dict[str, Any]], params: IperfParams) -> list[Measurement]:
    """Return the bit/s that the receivers got in each measured second, at most 300 values.

    Omitted seconds and the rest after the last whole second are left out. A run of one second has
    none, since the second is the whole run.
    """
    by_side = map(_received_seconds, receivers)
    rates = [sum(both) for both in zip(*by_side, strict=False)][: int(params.duration)]
    step = -(-len(rates) // 300)
    starts = range(0, len(rates), step) if len(rates) > 1 else ()
    return [
        Measurement("second_throughput", fmean(rates[at : at + step]), subject=f"second {at + 1}")
        for at in starts
    ]


def _received_seconds(report: dict[str, Any]) -> list[float]:
    """Return the bit/s of each whole second that a side received in, without omitted ones."""
    figures = chain.from_iterable(interval.items() for interval in report["intervals"])
    totals = [total for name, total in figures if name.startswith("sum")]
    received = [total for total in totals if total.get("sender") is False]
    return [
        float(total["bits_per_second"])
        for total in received
        if not total.get("omitted") and total["seconds"] > 0.5
    ]


def _cpu(
    report: dict[str, Any], params: IperfParams, cores: Mapping[str, Any]
) -> list[Measurement]:
    """Return the cores that sender and receiver used, and whether one had no more.

    With `bidirectional` the client counts as the sender. A side whose cores are not known has as
    many as threads.
    """
    used = report["end"]["cpu_utilization_percent"]
    threaded = _version(report) >= THREADED
    threads = params.streams * params.directions if threaded else 1
    client = float(used["host_total"]) / 100
    server = float(used["remote_total"]) / 100
    bound = any(
        load >= BUSY * min(int(cores.get(role) or threads), threads)
        for role, load in (("client", client), ("server", server))
    )
    if cores.get("shared") and client + server >= BUSY * int(cores["client"]):
        bound = True
    sender, receiver = (server, client) if params.reverse else (client, server)
    return [
        Measurement("sender_cpu", sender),
        Measurement("receiver_cpu", receiver),
        Measurement("cpu_bound", float(bound)),
    ]


# -- iperf 2 ---------------------------------------------------------------------------------------


def iperf2_command(params: IperfParams, role: str, address: str, port: int) -> list[str]:
    """Return the argv of iperf 2 as `--client` or `--server` (options: iperf(1))."""
    is_client = role == "--client"
    options: dict[str, object] = {
        # The role comes first, because iperf forgets the streams that were named before it.
        role: address if is_client else True,
        "--time": f"{params.duration:.0f}" if is_client else None,
        "--bind": None if is_client else address,
        "--port": port,
        "--reportstyle": "C",
        "--parallel": params.streams,
        "--ipv6_domain": ":" in address,
        "--reverse": is_client and params.reverse,
    }
    return ["iperf", *argv_of(options)]


def parse_iperf2(texts: Mapping[str, str], params: IperfParams) -> list[Measurement]:
    """Return the bytes and bit/s of the streams at their receiver, and in all.

    Raises Failed if a stream has no whole line, or ended early.
    """
    receiver, sender = ("client", "server") if params.reverse else ("server", "client")
    sent = _iperf2_streams(texts.get(sender, ""), params, shortest=0.9 * params.duration)
    received = _iperf2_streams(texts.get(receiver, ""), params)
    # As in iperf's own sum, the time is that of the longest stream at its sender. A receiver counts
    # from its first read, which is so late for many streams on a busy machine that its rates are
    # too high.
    seconds = max(8 * size / rate for size, rate in sent)
    rows = [
        Measurement("throughput", 8 * sum(size for size, _ in received) / seconds),
        Measurement("sent_throughput", 8 * sum(size for size, _ in sent) / seconds),
        Measurement("bytes", sum(size for size, _ in received)),
    ]
    for number, (size, _) in enumerate(received, 1):
        subject = f"stream {number}"
        rows += [
            Measurement("bytes", size, subject=subject),
            Measurement("stream_throughput", 8 * size / seconds, subject=subject),
        ]
    return rows


def _iperf2_streams(
    text: str, params: IperfParams, shortest: float = 0.0
) -> list[tuple[float, float]]:
    """Return bytes and bit/s of each stream, which has to last for `shortest` seconds.

    The line of their sum has no number, but -1.
    """
    lines = re.findall(r"(?m)^\d{14}(?:,[^,\n]*){4},\d+,0\.0+-([\d.]+),(\d+),(\d+)\n", text)
    streams = [
        (float(size), float(rate))
        for end, size, rate in lines
        if float(end) >= shortest and int(rate) > 0
    ]
    if len(streams) != params.streams:
        raise Failed(f"iperf reports {len(streams)} of {params.streams} streams to their end")
    return streams

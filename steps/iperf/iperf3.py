"""Read iperf3's JSON (`--json`) and check that iperf3 used the requested options."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perfdag.outcome import Failed, Invalid, Measurement, Skip
from perfdag.steps.iperf.params import IperfParams
from perfdag.steps.iperf.rows import by_second, by_stream
from perfdag.steps.json_report import read_report

BUSY = 0.95
"""Share of its cores above which a side, not the network, limits the throughput."""
THREADED = (3, 16)
"""First iperf3 with a thread for each stream (its release notes)."""
_DIRECTIONS = (("client_to_server", ""), ("server_to_client", "_bidir_reverse"))


def read(text: str) -> dict[str, Any]:
    """Return iperf3's report; up to 3.12 a line of text may precede it. Raises Failed."""
    return read_report("iperf3", text, {"client": text})


def give_up(error: str, texts: dict[str, str]) -> None:
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


def version(report: dict[str, Any]) -> tuple[int, ...]:
    """Return the version, for example (3, 12); (0,) if the report has none."""
    match = re.search(r"iperf (\d+(?:\.\d+)+)", str(report.get("start", {}).get("version", "")))
    return tuple(int(part) for part in match[1].split(".")) if match else (0,)


def verify(report: dict[str, Any], params: IperfParams, texts: dict[str, str]) -> None:
    """Check that iperf3 used the requested options. Raises Invalid if it used others."""
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
    if end["sum_sent"]["seconds"] < 0.9 * params.duration:
        raise Failed(
            f"iperf3 ended after {end['sum_sent']['seconds']:.1f} s of {params.duration:g} s", texts
        )


def measurements(
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
    sent = sum(float(end[f"sum_sent{suffix}"]["bits_per_second"]) for _, suffix in directions)
    measurements.append(Measurement("sent_throughput", sent))
    for (name, suffix), value in zip(directions, received, strict=True):
        coords = {"direction": name} if params.bidirectional else {}
        if params.bidirectional:
            measurements.append(Measurement("direction_throughput", value, coords=coords))
        if params.protocol == "udp":
            measurements += _udp(end, suffix, coords)
        elif "retransmits" in end[f"sum_sent{suffix}"]:  # only Linux and FreeBSD report them
            measurements.append(
                Measurement(
                    "retransmits", float(end[f"sum_sent{suffix}"]["retransmits"]), coords=coords
                )
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
        received.append(_whole_seconds(read(texts.get("server", ""))))
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
    return by_stream(received, params.bidirectional)


def _received(end: dict[str, Any], suffix: str) -> float:
    """Return bit/s at the receiver.

    Before 3.7, a UDP report has only `sum`: what was sent, and the lost datagrams.
    """
    total = end.get(f"sum_received{suffix}")
    if total is not None:
        return float(total["bits_per_second"])
    total = end[f"sum{suffix}"]
    return float(total["bits_per_second"]) * (
        1 - int(total["lost_packets"]) / int(total["packets"])
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
    threaded = version(report) >= THREADED
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

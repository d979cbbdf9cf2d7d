"""Reading iperf3's JSON (`--json`): what was measured, and whether it is what was asked for."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from perfdag.benchmark import Failed, Invalid, Measurement, Skip

if TYPE_CHECKING:
    from perfdag.steps.iperf import IperfParams

BUSY = 0.95  # of a core: above it the core, not the network, sets the pace
THREADED = (3, 16)  # the first iperf3 with a thread for each stream (its release notes)
_DIRECTIONS = (("client_to_server", ""), ("server_to_client", "_bidir_reverse"))


def read(text: str) -> dict[str, Any]:
    """iperf3's JSON. 3.12 and older print a line of text before it in some cases. Raises Failed where there is none."""
    try:
        report = json.loads(text[text.index("{") :] if "{" in text else text)
    except ValueError as error:
        raise Failed(
            f"iperf3 printed no JSON ({error}): {text[-200:].strip() or 'nothing at all'}",
            {"client": text},
        ) from error
    if not isinstance(report, dict):
        raise Failed(f"iperf3 printed JSON that is no report: {text[:200]}", {"client": text})
    return report


def give_up(error: str, texts: dict[str, str]) -> None:
    """Raise Skip or Failed with what iperf3 said and what to do."""
    if "TCP_CONGESTION" in error:
        raise Skip(
            f"iperf3: {error}; the kernel's own: cat /proc/sys/net/ipv4/tcp_available_congestion_control",
            texts,
        )
    if "socket buffer size not set" in error:
        raise Failed(
            f"iperf3: {error}; window is above net.core.rmem_max or wmem_max of a host", texts
        )
    raise Failed(f"iperf3: {error}", texts)


def version(report: dict[str, Any]) -> tuple[int, ...]:
    """(3, 12); (0,) where the report does not say."""
    found = re.search(r"iperf (\d+(?:\.\d+)+)", str(report.get("start", {}).get("version", "")))
    return tuple(int(part) for part in found[1].split(".")) if found else (0,)


def verify(report: dict[str, Any], params: "IperfParams", texts: dict[str, str]) -> None:
    """What was asked is what ran. Raises Invalid where the tool or the kernel took less."""
    start, end = report["start"], report["end"]
    asked = start["test_start"]
    for name, got, wanted in (
        ("streams", asked["num_streams"], params.streams),
        ("protocol", asked["protocol"].lower(), params.protocol),
        ("duration", asked["duration"], params.duration),
        ("omit", asked["omit"], params.omit),
        ("mss", start.get("tcp_mss", params.mss), params.mss),
        ("congestion", end.get("sender_tcp_congestion", params.congestion), params.congestion),
    ):
        if wanted is not None and got != wanted:
            raise Invalid(f"asked for {name} {wanted}, iperf3 used {got}", texts)
    if params.window and start.get("sndbuf_actual", params.window) < params.window:
        raise Invalid(
            f"asked for a window of {params.window} B, the kernel gave {start['sndbuf_actual']} B",
            texts,
        )
    paths = [
        each["pmtu"]
        for interval in report["intervals"]
        for each in interval["streams"]
        if each.get("pmtu")
    ]
    # 20 bytes IPv4 + 20 bytes TCP is the least a segment carries beside its payload
    if params.mss and paths and min(paths) - 40 < params.mss:
        raise Invalid(
            f"asked for mss {params.mss} B, a path MTU of {min(paths)} B holds at most {min(paths) - 40} B",
            texts,
        )
    expected = params.streams * (2 if params.bidirectional else 1)
    if len(end["streams"]) != expected:
        raise Failed(
            f"iperf3 reports {len(end['streams'])} streams, {expected} were asked for", texts
        )
    if end["sum_sent"]["seconds"] < 0.9 * params.duration:
        raise Failed(
            f"iperf3 ended after {end['sum_sent']['seconds']:.1f} s of {params.duration:g} s", texts
        )


def measurements(
    report: dict[str, Any], params: "IperfParams", texts: dict[str, str], cores: Mapping[str, Any]
) -> list[Measurement]:
    """Values of a whole report in base units; `cores` as sides() has them. Raises Failed where the receiver got nothing, KeyError where a part is absent."""
    end = report["end"]
    directions = _DIRECTIONS if params.bidirectional else _DIRECTIONS[:1]
    received = [_received(end, suffix) for _, suffix in directions]
    if not all(each > 0 for each in received):
        raise Failed("iperf3's receiver got nothing", texts)
    found = [Measurement("throughput", sum(received))]
    sent = sum(float(end[f"sum_sent{suffix}"]["bits_per_second"]) for _, suffix in directions)
    found.append(Measurement("sent_throughput", sent))
    for (name, suffix), value in zip(directions, received, strict=True):
        coords = {"direction": name} if params.bidirectional else {}
        if params.bidirectional:
            found.append(Measurement("direction_throughput", value, coords=coords))
        if params.protocol == "udp":
            found += _udp(end, suffix, coords)
        elif "retransmits" in end[f"sum_sent{suffix}"]:  # Linux and FreeBSD tell
            found.append(
                Measurement(
                    "retransmits", float(end[f"sum_sent{suffix}"]["retransmits"]), coords=coords
                )
            )
    if params.protocol == "tcp":
        found += _round_trips(end)
    found += _seconds(report, params, texts)
    seen = sides(report, params, cores)
    found += [Measurement(f"{side.name}_cpu", side.used) for side in seen[:2]]
    if seen:
        found.append(Measurement("cpu_bound", float(any(side.bound for side in seen))))
    return found


def _seconds(
    report: dict[str, Any], params: "IperfParams", texts: dict[str, str]
) -> list[Measurement]:
    """Bit/s that the receivers got within each second that is measured. Raises Failed where the server received and its report is broken."""
    received = [_whole_seconds(report)] if params.reverse or params.bidirectional else []
    if not params.reverse:
        received.append(_whole_seconds(read(texts.get("server", ""))))
    return by_second([sum(rates) for rates in zip(*received, strict=False)][: int(params.duration)])


def _whole_seconds(report: dict[str, Any]) -> list[float]:
    """Bit/s of all streams that this side receives, by second; what is omitted and the rest after the last second are left out."""
    sums = [
        each
        for interval in report["intervals"]
        for name, each in interval.items()
        if name.startswith("sum")
    ]
    return [
        float(each["bits_per_second"])
        for each in sums
        if not each.get("omitted") and each.get("sender") is False and each["seconds"] > 0.5
    ]


def by_second(rates: Sequence[float]) -> list[Measurement]:
    """`second_throughput` of each second, at most 300: of a longer run the mean of as many seconds as makes it fewer. One is the whole."""
    step = -(-len(rates) // 300)
    starts = range(0, len(rates), step) if len(rates) > 1 else ()
    return [
        Measurement("second_throughput", fmean(rates[at : at + step]), subject=f"second {at + 1}")
        for at in starts
    ]


def _received(end: dict[str, Any], suffix: str) -> float:
    """Bit/s at the receiver. Before 3.7 a UDP report has `sum` alone, with what was sent and the datagrams lost of it."""
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
    found = [
        Measurement("jitter", float(total["jitter_ms"]) / 1e3, coords=coords, n=packets),
        Measurement("lost_fraction", lost / packets, coords=coords, n=packets),
    ]
    disordered = [stream["udp"].get("out_of_order") for stream in end["streams"]]
    if not suffix and not coords and None not in disordered:
        found.append(Measurement("out_of_order", float(sum(disordered)), n=packets))
    return found


def _round_trips(end: dict[str, Any]) -> list[Measurement]:
    # 0 where the sender is on the far side: its kernel's figures are not sent over
    senders = [
        stream["sender"] for stream in end["streams"] if stream["sender"].get("mean_rtt", 0) > 0
    ]
    if not senders:
        return []
    mean = sum(float(each["mean_rtt"]) for each in senders) / len(senders)
    lowest, highest = (
        min(each["min_rtt"] for each in senders),
        max(each["max_rtt"] for each in senders),
    )
    return [
        Measurement("rtt", us / 1e6, stat)
        for stat, us in (("mean", mean), ("min", lowest), ("max", highest))
    ]


@dataclass(frozen=True)
class Side:
    """A sender or a receiver, or `both` where they share their cores: the cores it used, how many it can, and these in words."""

    name: str
    used: float
    limit: int
    words: str

    @property
    def bound(self) -> bool:
        """Whether it used about all that it can."""
        return self.used >= BUSY * self.limit


def sides(report: dict[str, Any], params: "IperfParams", cores: Mapping[str, Any]) -> list[Side]:
    """Sender and receiver, then both where they share their cores; with `bidirectional` the client counts as the sender.

    `cores`: how many the client and the server may run on (`client`, `server`), and whether they are the same (`shared`); a side that
    is not told has as many as it has threads.
    """
    used = report.get("end", {}).get("cpu_utilization_percent")
    if not used:
        return []
    threaded = version(report) >= THREADED
    threads = params.streams * (2 if params.bidirectional else 1) if threaded else 1
    made = []
    for name, there in (("sender", params.reverse), ("receiver", not params.reverse)):
        role, tool = ("remote_total", "server") if there else ("host_total", "client")
        had = int(cores.get(tool) or threads)
        what = f"{had} cores that it may run on" if had < threads else f"{threads} threads"
        words = what if threaded else "one core, all that this version uses"
        made.append(Side(name, float(used[role]) / 100, min(had, threads), words))
    if cores.get("shared"):
        made.append(
            Side(
                "both",
                made[0].used + made[1].used,
                int(cores["client"]),
                f"the {cores['client']} cores that both share",
            )
        )
    return made

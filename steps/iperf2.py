"""Reading iperf2's text (options -e, -f b and, from 2 s on, -i 1); format: iperf 2.1 source, tables headed `[ ID] Interval ...`."""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfdag.benchmark import Failed, Invalid, Measurement, Output, Skip
from perfdag.steps.iperf3 import by_second

if TYPE_CHECKING:
    from perfdag.steps.iperf import IperfParams

_ROW = re.compile(
    r"^\[\s*(?P<star>\*?)(?P<id>\d+)\]\s+(?P<start>[\d.]+)-\s*(?P<end>[\d.]+) sec"
    r"\s+(?P<bytes>\d+) Bytes\s+(?P<rate>\d+) bits/sec(?:[ \t]+(?P<rest>\S.*))?\r?\n",
    re.M,
)
_WRITES = re.compile(r"\d+/\d+\s+(?P<retries>\d+)\s")
_WINDOW = re.compile(r"\d+/\d+\s+\d+\s+(?P<kib>\d+)K/(?P<rtt>\d+)(?:\(\d+\))?\s+us")
_DATAGRAMS = re.compile(r"(?P<jitter>[\d.]+) ms\s+(?P<lost>\d+)/\s*(?P<total>\d+) \(")

_BUFFER = re.compile(
    r"^(?:TCP window|UDP buffer) size:\s+(\d+) Byte \(WARNING: requested\s+(\d+) Byte\)", re.M
)
_REFUSED = re.compile(r"^Attempt to set '.*' congestion control failed.*", re.M)
_CONGESTION = re.compile(r"^TCP congestion control set to (\S+)", re.M)
_MSS = re.compile(r"\(icwnd/mss/irtt=\d+/(\d+)/\d+\)")
_TCP_OPTIONS = 40  # bytes of a segment that TCP's options take at most; the kernel tells what is left for the payload


@dataclass(frozen=True)
class _Stream:
    end: float
    bytes: int
    rest: str


def version(text: str) -> str:
    """`iperf2 2.1.8` from what `iperf -v` prints."""
    found = re.search(r"iperf version (\S+)", text)
    return f"iperf2 {found[1]}" if found else "iperf2"


def verify(params: "IperfParams", texts: dict[str, str]) -> None:
    """What was asked is what ran, as far as iperf2 tells. Raises Invalid where the kernel took less, Skip where it lacks the congestion control."""
    said = "\n".join(texts.values())
    refused = _REFUSED.search(said)
    if refused:
        raise Skip(
            f"iperf2: {refused[0]}; the kernel's own: cat /proc/sys/net/ipv4/tcp_available_congestion_control",
            texts,
        )
    others = set(_CONGESTION.findall(said)) - {params.congestion}
    if params.congestion and others:
        raise Invalid(
            f"asked for congestion {params.congestion}, iperf2 used {', '.join(sorted(others))}",
            texts,
        )
    for given, asked in _BUFFER.findall(said):
        if int(given) < int(
            asked
        ):  # Linux doubles what it grants, so more than was asked is no fault
            raise Invalid(
                f"asked for a window of {asked} B, the kernel gave {given} B; its limits: net.core.rmem_max, wmem_max",
                texts,
            )
    for used in map(int, _MSS.findall(said)):
        if params.mss and not params.mss - _TCP_OPTIONS <= used <= params.mss:
            raise Invalid(f"asked for mss {params.mss} B, a connection used {used} B", texts)


def parse(
    output: Output, streams: int, duration: float, protocol: str, reverse: bool, bidirectional: bool
) -> list[Measurement]:
    """Measurements of a test; rates in bit/s, jitter in s. Raises Failed where a stream's last line is not there."""
    server, client = output.texts.get("server", ""), output.texts.get("client", "")
    # a client's text repeats what the server counted: read each side for its own half only
    client = client.split("Server Report:")[0] if protocol == "udp" and not reverse else client
    halves = []
    if not reverse:
        halves.append(
            ("client_to_server", _total(server, "received", False), _total(client, "sent", False))
        )
    if reverse or bidirectional:
        starred = bidirectional
        halves.append(
            ("server_to_client", _total(client, "received", True), _total(server, "sent", starred))
        )
    found: list[Measurement] = []
    for name, received, sent in halves:
        _complete(name, received, streams, duration, output)
        coords = {"direction": name} if bidirectional else {}
        if bidirectional:
            found.append(Measurement("direction_throughput", _rate(received), coords=coords))
        if protocol == "udp":
            found += _datagrams(received, output)
        retries = [_WRITES.match(stream.rest) for stream in sent]
        if len(sent) != streams or min(stream.end for stream in sent) < 0.9 * duration:
            whole = sum(stream.end >= 0.9 * duration for stream in sent)
            raise Failed(
                f"iperf2's sender reports {whole} of {streams} streams to their end", output.texts
            )
        if protocol == "tcp" and all(retries):  # Linux tells, others do not
            found.append(
                Measurement(
                    "retransmits",
                    float(sum(int(each["retries"]) for each in retries if each)),
                    coords=coords,
                )
            )
    if protocol == "tcp":
        found += _windows(
            [
                *(_seconds(server if reverse else client, False)),
                *(_seconds(server, True) if bidirectional else []),
            ]
        )
    total = sum(_rate(received) for _, received, _ in halves)
    texts = [(server, False)] * (not reverse) + [(client, True)] * (reverse or bidirectional)
    by_side = [_received_by_second(text, starred, streams) for text, starred in texts]
    return [
        Measurement("throughput", total),
        *found,
        *by_second([sum(rates) for rates in zip(*by_side, strict=False)][: int(duration)]),
    ]


def _wrote(row: "re.Match[str]") -> bool:
    """Whether a line tells of writes, as those of a sender do."""
    return re.match(r"\d+/\d+\s", row["rest"] or "") is not None


def _received_by_second(text: str, starred: bool, streams: int) -> list[float]:
    """Bit/s of all streams by second, up to the first second that is not told of every stream."""
    told: dict[int, list[float]] = {}
    for row in _ROW.finditer(text):
        start, end = float(row["start"]), float(row["end"])
        if bool(row["star"]) == starred and not _wrote(row) and 0.5 < end - start < 1.5:
            told.setdefault(round(start), []).append(float(row["rate"]))
    rates: list[float] = []
    while len(told.get(len(rates), [])) == streams:
        rates.append(sum(told[len(rates)]))
    return rates


def _seconds(text: str, starred: bool) -> list[str]:
    """What is said beside the rates second by second, for all streams; of a stream that has a total only, beside that."""
    by_stream: dict[str, list[str]] = {}
    for row in _ROW.finditer(text):
        if bool(row["star"]) == starred:
            by_stream.setdefault(row["id"], []).append(row["rest"] or "")
    return [each for rows in by_stream.values() for each in (rows[:-1] or rows)]


def _windows(said: list[str]) -> list[Measurement]:
    """Round-trip time and congestion window at the sender, where the kernel told iperf2 of them."""
    found = [match for match in map(_WINDOW.match, said) if match]
    made = []
    for metric, values in (
        ("rtt", [int(each["rtt"]) / 1e6 for each in found]),
        ("congestion_window", [int(each["kib"]) * 1024.0 for each in found]),
    ):
        if values:
            stats = {"mean": sum(values) / len(values), "min": min(values), "max": max(values)}
            made += [
                Measurement(metric, value, stat, n=len(values)) for stat, value in stats.items()
            ]
    return made


def _total(text: str, side: str, starred: bool) -> list[_Stream]:
    """The last line from second 0 of each stream that sent or received; a star marks the far side's stream of a duplex test."""
    last: dict[str, _Stream] = {}
    for row in _ROW.finditer(text):
        rest = row["rest"] or ""
        if (
            float(row["start"]) != 0
            or bool(row["star"]) != starred
            or (rest and _wrote(row) != (side == "sent"))
        ):
            continue
        last[row["id"]] = _Stream(float(row["end"]), int(row["bytes"]), rest)
    return list(last.values())


def _complete(
    name: str, received: list[_Stream], streams: int, duration: float, output: Output
) -> None:
    if len(received) != streams:
        said = (output.texts.get("client_stderr") or output.texts.get("client") or "").strip()[
            -200:
        ]
        raise Failed(
            f"iperf2 reports {len(received)} of {streams} streams {name.replace('_', ' ')}: {said}",
            output.texts,
        )
    short = min(stream.end for stream in received)
    if short < 0.9 * duration or not all(stream.bytes for stream in received):
        raise Failed(
            f"iperf2's shortest stream {name.replace('_', ' ')} lasted {short:.2f} s of {duration:g} s",
            output.texts,
        )


def _rate(received: list[_Stream]) -> float:
    return 8 * sum(stream.bytes for stream in received) / max(stream.end for stream in received)


def _datagrams(received: list[_Stream], output: Output) -> list[Measurement]:
    rows = [_DATAGRAMS.match(stream.rest) for stream in received]
    if not all(rows):
        raise Failed("iperf2's UDP report lacks jitter and lost datagrams", output.texts)
    lost = sum(int(row["lost"]) for row in rows if row)
    total = sum(int(row["total"]) for row in rows if row)
    if not total:
        raise Failed("iperf2's receiver counted no datagram", output.texts)
    jitter = sum(float(row["jitter"]) for row in rows if row) / len(rows)
    return [
        Measurement("jitter", jitter / 1e3, n=total),
        Measurement("lost_fraction", lost / total, n=total),
    ]

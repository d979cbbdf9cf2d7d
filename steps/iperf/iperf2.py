"""Read iperf2's text (options -e, -f b and, from 2 s on, -i 1).

Source: tables headed `[ ID] Interval ...` in the source of iperf 2.1.
"""

import re
from dataclasses import dataclass

from perfdag.benchmark.contract import Output
from perfdag.outcome import Failed, Invalid, Measurement, Skip
from perfdag.steps.iperf.params import IperfParams
from perfdag.steps.iperf.rows import by_second, by_stream

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
_TCP_OPTIONS = 40
"""Most bytes of a segment for TCP's options; the kernel reports what is left for payload."""


@dataclass(frozen=True)
class _Stream:
    end: float
    bytes: int
    rest: str


def version(text: str) -> str:
    """Return `iperf2 2.1.8` from the output of `iperf -v`."""
    match = re.search(r"iperf version (\S+)", text)
    return f"iperf2 {match[1]}" if match else "iperf2"


def verify(params: IperfParams, texts: dict[str, str]) -> None:
    """Check the options that iperf2 reports.

    Raises Invalid if the kernel granted less, Skip if it lacks the congestion control.
    """
    log = "\n".join(texts.values())
    refused = _REFUSED.search(log)
    if refused:
        raise Skip(
            f"iperf2: {refused[0]}; the kernel's own:"
            " cat /proc/sys/net/ipv4/tcp_available_congestion_control",
            texts,
        )
    others = set(_CONGESTION.findall(log)) - {params.congestion}
    if params.congestion and others:
        raise Invalid(
            f"congestion {params.congestion} was requested,"
            f" iperf2 used {', '.join(sorted(others))}",
            texts,
        )
    for granted, requested in _BUFFER.findall(log):
        # Linux doubles what it grants, so a larger buffer is fine.
        if int(granted) < int(requested):
            raise Invalid(
                f"a window of {requested} B was requested, the kernel granted {granted} B;"
                " its limits: net.core.rmem_max, wmem_max",
                texts,
            )
    for used in map(int, _MSS.findall(log)):
        if params.mss and not params.mss - _TCP_OPTIONS <= used <= params.mss:
            raise Invalid(f"mss {params.mss} B was requested, a connection used {used} B", texts)


def parse(output: Output, params: IperfParams) -> list[Measurement]:
    """Return the measurements; rates in bit/s, jitter in s.

    Raises Failed if the last line of a stream is missing.
    """
    streams, duration, protocol = params.streams, params.duration, params.protocol
    reverse, bidirectional = params.reverse, params.bidirectional
    server, client = output.texts.get("server", ""), output.texts.get("client", "")
    # The client repeats what the server counted, so each side is read for its own half only.
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
    measurements: list[Measurement] = []
    for name, received, sent in halves:
        _complete(name, received, streams, duration, output)
        coords = {"direction": name} if bidirectional else {}
        if bidirectional:
            measurements.append(Measurement("direction_throughput", _rate(received), coords=coords))
        if protocol == "udp":
            measurements += _datagrams(received, output)
        retries = [_WRITES.match(stream.rest) for stream in sent]
        if len(sent) != streams or min(stream.end for stream in sent) < 0.9 * duration:
            whole = sum(stream.end >= 0.9 * duration for stream in sent)
            raise Failed(
                f"iperf2's sender reports {whole} of {streams} streams to their end", output.texts
            )
        if protocol == "tcp" and all(retries):  # only Linux reports retransmits
            measurements.append(
                Measurement(
                    "retransmits",
                    float(sum(int(match["retries"]) for match in retries if match)),
                    coords=coords,
                )
            )
    if protocol == "tcp":
        measurements += _windows(
            [
                *(_seconds(server if reverse else client, False)),
                *(_seconds(server, True) if bidirectional else []),
            ]
        )
    by_direction = {
        name: [(stream.bytes, _rate([stream])) for stream in received]
        for name, received, _ in halves
    }
    total = sum(_rate(received) for _, received, _ in halves)
    texts = [(server, False)] * (not reverse) + [(client, True)] * (reverse or bidirectional)
    by_side = [_received_by_second(text, starred, streams) for text, starred in texts]
    return [
        Measurement("throughput", total),
        *measurements,
        *by_stream(by_direction, bidirectional),
        *by_second([sum(rates) for rates in zip(*by_side, strict=False)][: int(duration)]),
    ]


def _is_sender_row(row: "re.Match[str]") -> bool:
    """Whether the line reports writes, which only a sender does."""
    return re.match(r"\d+/\d+\s", row["rest"] or "") is not None


def _received_by_second(text: str, starred: bool, streams: int) -> list[float]:
    """Return bit/s of all streams by second, up to the first second that a stream lacks."""
    by_start: dict[int, list[float]] = {}
    for row in _ROW.finditer(text):
        start, end = float(row["start"]), float(row["end"])
        if bool(row["star"]) == starred and not _is_sender_row(row) and 0.5 < end - start < 1.5:
            by_start.setdefault(round(start), []).append(float(row["rate"]))
    rates: list[float] = []
    while len(by_start.get(len(rates), [])) == streams:
        rates.append(sum(by_start[len(rates)]))
    return rates


def _seconds(text: str, starred: bool) -> list[str]:
    """Return the columns beside the rates, second by second, for all streams.

    A stream with a total only contributes the columns of its total.
    """
    by_stream: dict[str, list[str]] = {}
    for row in _ROW.finditer(text):
        if bool(row["star"]) == starred:
            by_stream.setdefault(row["id"], []).append(row["rest"] or "")
    return [rest for rows in by_stream.values() for rest in (rows[:-1] or rows)]


def _windows(lines: list[str]) -> list[Measurement]:
    """Return round-trip time and congestion window at the sender, if the kernel reports them."""
    matches = [match for match in map(_WINDOW.match, lines) if match]
    measurements = []
    for metric, values in (
        ("rtt", [int(match["rtt"]) / 1e6 for match in matches]),
        ("congestion_window", [int(match["kib"]) * 1024.0 for match in matches]),
    ):
        if values:
            stats = {"mean": sum(values) / len(values), "min": min(values), "max": max(values)}
            measurements += [
                Measurement(metric, value, stat, n=len(values)) for stat, value in stats.items()
            ]
    return measurements


def _total(text: str, side: str, starred: bool) -> list[_Stream]:
    """Return the total line of each stream that sent or received.

    A star marks the far side's stream in a duplex test.
    """
    last: dict[str, _Stream] = {}
    for row in _ROW.finditer(text):
        rest = row["rest"] or ""
        if (
            float(row["start"]) != 0
            or bool(row["star"]) != starred
            or (rest and _is_sender_row(row) != (side == "sent"))
        ):
            continue
        last[row["id"]] = _Stream(float(row["end"]), int(row["bytes"]), rest)
    return list(last.values())


def _complete(
    name: str, received: list[_Stream], streams: int, duration: float, output: Output
) -> None:
    """Raise Failed if a stream is missing or ended early."""
    direction = name.replace("_", " ")
    if len(received) != streams:
        log = (output.texts.get("client_stderr") or output.texts.get("client") or "").strip()
        raise Failed(
            f"iperf2 reports {len(received)} of {streams} streams {direction}: {log[-200:]}",
            output.texts,
        )
    short = min(stream.end for stream in received)
    if short < 0.9 * duration or not all(stream.bytes for stream in received):
        raise Failed(
            f"iperf2's shortest stream {direction} lasted {short:.2f} s of {duration:g} s",
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

"""Rows of streams and of seconds, which iperf2 and iperf3 share."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from perfdag.outcome import Measurement


def by_stream(
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

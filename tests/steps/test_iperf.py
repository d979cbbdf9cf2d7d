"""Streams of iperf 2 on a busy machine: lines of a run of 16 streams for one second."""

import pytest

from perfdag.benchmark.contract import Failed
from perfdag.steps.iperf import IperfParams, parse_iperf2

PARAMS = IperfParams(implementation="iperf2", duration=1.0, streams=2)
SENT = """\
20261128210914,10.244.242.37,33112,10.244.241.39,12011,7,0.0-1.0,15859776,125607064
20261128210914,10.244.242.37,33118,10.244.241.39,12011,6,0.0-1.1,21233728,159118504
20261128210914,10.244.242.37,0,10.244.241.39,12011,-1,0.0-1.1,37093504,284725568
"""
RECEIVED = """\
20261128210914,10.244.242.37,33112,10.244.241.39,12011,15,0.0-0.8,15859776,154795404
20261128210914,10.244.242.37,33118,10.244.241.39,12011,16,0.0-0.9,21233728,198037257
20261128210914,10.244.242.37,0,10.244.241.39,12011,-1,0.0-1.1,37093504,284725568
"""


def test_a_receiver_that_counts_late_is_no_stream_that_ended_early() -> None:
    rows = parse_iperf2({"client": SENT, "server": RECEIVED}, PARAMS)
    total = {row.metric: row.value for row in rows if not row.subject}
    assert total["bytes"] == 15859776 + 21233728
    # iperf's own sum of the sender; the rates of the receiver add up to 353 Mbit/s
    assert total["throughput"] == pytest.approx(284725568, rel=0.03)
    assert total["throughput"] == total["sent_throughput"]


@pytest.mark.parametrize(
    ("client", "server"),
    [
        (SENT.replace("0.0-1.0", "0.0-0.5"), RECEIVED),
        (SENT, RECEIVED.partition("\n")[2]),
        (SENT.partition("\n")[2], RECEIVED),
    ],
    ids=["sender ended early", "receiver lacks a stream", "sender lacks a stream"],
)
def test_a_stream_that_ended_early_or_is_absent_fails(client: str, server: str) -> None:
    with pytest.raises(Failed, match="1 of 2 streams"):
        parse_iperf2({"client": client, "server": server}, PARAMS)

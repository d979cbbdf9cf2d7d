"""Record what the real tools print on this machine: `python tests/recorded/record.py [NAME...]`.

netperf 2.7.0 is that of Debian 12, 2.7.1 that of Debian 13.
"""

import sys
from pathlib import Path
from typing import Any

from perfdag import testing
from perfdag.benchmark.registry import get
from perfdag.steps import fio, imb, iperf, latency

HERE = Path(__file__).parent
_FAST: dict[str, Any] = {"size": "16MiB", "runtime": "300ms"}
_SMALL: dict[str, Any] = {"max_log": 10, "iterations": 100}
CASES: dict[str, dict[str, Any]] = {
    "iperf/tcp": {"duration": 1},
    "iperf/tcp-2-streams-bidirectional": {"duration": 1, "streams": 2, "bidirectional": True},
    "iperf/tcp-reverse": {"duration": 2, "reverse": True, "omit": 1},
    "iperf/tcp-reno-mss-window": {
        "duration": 1,
        "congestion": "reno",
        "mss": 1000,
        "window": "1MiB",
    },
    "iperf/udp-lossy": {"duration": 1, "protocol": "udp", "rate": "5Gbit/s", "streams": 2},
    "iperf/udp-bidirectional": {
        "duration": 1,
        "protocol": "udp",
        "rate": "100Mbit/s",
        "bidirectional": True,
    },
    "iperf/tcp-seconds": {"duration": 3, "omit": 1, "streams": 2},
    "iperf/udp-bidirectional-seconds": {
        "duration": 2,
        "protocol": "udp",
        "rate": "100Mbit/s",
        "bidirectional": True,
    },
    "iperf/iperf2-2-streams": {"implementation": "iperf2", "duration": 1, "streams": 2},
    "iperf/iperf2.2-2-streams": {"implementation": "iperf2", "duration": 1, "streams": 2},
    "iperf/iperf2-reverse": {"implementation": "iperf2", "duration": 1, "reverse": True},
    "iperf/no-such-congestion": {"duration": 1, "congestion": "nope"},
    "latency/tcp-rr": {"duration": 1},
    "latency/tcp-rr-2.7.0": {"duration": 1, "request_size": 100, "response_size": 20000},
    "latency/tcp-crr": {"test": "TCP_CRR", "duration": 1},
    "latency/udp-rr": {"test": "UDP_RR", "duration": 1, "response_size": 1000},
    "fio/randread": {"rw": "randread", "iodepth": 8, **_FAST},
    "fio/randrw-psync-fsync": {
        "rw": "randrw",
        "rwmixread": 70,
        "ioengine": "psync",
        "numjobs": 2,
        "fsync": 32,
        **_FAST,
    },
    "fio/write-once": {
        "rw": "write",
        "bs": "1MiB",
        "size": "32MiB",
        "runtime": None,
        "ioengine": "io_uring",
    },
    "fio/two-hosts": {
        "rw": "randread",
        "numjobs": 2,
        "iodepth": 4,
        "shape": {"hosts": {"count": 2}},
        **_FAST,
    },
    "imb/pingpong-tcp": {**_SMALL},
    "imb/pingpong-shm": {"transport": "shm", **_SMALL},
    "imb/sendrecv-shm": {"benchmark": "Sendrecv", "transport": "shm", **_SMALL},
    "imb/allreduce-tcp": {"benchmark": "Allreduce", "ranks_per_host": 2, **_SMALL},
    "imb/barrier-shm": {"benchmark": "Barrier", "transport": "shm", **_SMALL},
    "imb/openmpi-tcp": {"mpi": "openmpi", **_SMALL},
    "imb/openmpi-shm": {"mpi": "openmpi", "transport": "shm", **_SMALL},
    # in the image imb-openmpi
    "imb/openmpi5-tcp": {"mpi": "openmpi", "oversubscribe": True, **_SMALL},
    "imb/openmpi5-shm": {
        "mpi": "openmpi",
        "oversubscribe": True,
        "transport": "shm",
        **_SMALL,
    },
    "imb/uniband-shm": {"benchmark": "Uniband", "transport": "shm", **_SMALL},
}

PARSERS: dict[str, Any] = {
    "iperf": iperf.parse,
    "latency": latency.parse,
    "fio": fio.parse,
    "imb": imb.parse,
}
"""The parser of each benchmark that `record` records."""


def load(name: str) -> testing.Recording:
    """The benchmark, its params and the output of a recording."""
    benchmark: Any = get(name.split("/")[0])
    return testing.load(benchmark, PARSERS[name.split("/")[0]], HERE / name)


if __name__ == "__main__":
    for each in sys.argv[1:] or CASES:
        given = {key: value for key, value in CASES[each].items() if key != "shape"}
        testing.record(get(each.split("/")[0]), given, HERE / each, CASES[each].get("shape"))

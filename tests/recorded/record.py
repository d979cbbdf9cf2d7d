"""Record what the real tools print on this machine: `python tests/recorded/record.py [NAME...]`.

netperf 2.7.0 is that of Debian 12, 2.7.1 that of Debian 13.
Each recording is NAME.json beside NAME.ROLE.txt: the sidecar has the command, the tool's version, the parameters and the facts the step
knew; the texts are as the tool wrote them, but for the paths of the virtual environment and of scratch folders.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from perfdag.benchmark.contract import Gang, Output
from perfdag.benchmark.registry import get
from perfdag.hosts.local import LocalHost
from perfdag.outcome import SampleError
from perfdag.shape import Shape, merge

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
    "iperf/no-such-congestion": {"duration": 1, "congestion": "nope"},
    "iperf/iperf2-tcp": {"implementation": "iperf2", "duration": 1, "streams": 2},
    "iperf/iperf2-reverse": {"implementation": "iperf2", "duration": 1, "reverse": True},
    "iperf/iperf2-bidirectional": {
        "implementation": "iperf2",
        "duration": 1,
        "bidirectional": True,
    },
    "iperf/iperf2-udp": {
        "implementation": "iperf2",
        "duration": 1,
        "streams": 2,
        "protocol": "udp",
        "rate": "50Mbit/s",
    },
    "iperf/iperf2-tcp-seconds": {"implementation": "iperf2", "duration": 3, "streams": 2},
    "iperf/iperf2-reverse-seconds": {"implementation": "iperf2", "duration": 2, "reverse": True},
    "iperf/iperf2-bidirectional-seconds": {
        "implementation": "iperf2",
        "duration": 2,
        "bidirectional": True,
    },
    "iperf/iperf2-udp-seconds": {
        "implementation": "iperf2",
        "duration": 2,
        "streams": 2,
        "protocol": "udp",
        "rate": "50Mbit/s",
    },
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


def record(name: str, case: dict[str, Any]) -> None:
    """Run one case and write its files; an output that parses to an error is recorded too."""
    benchmark = get(name.split("/")[0])
    given = {key: value for key, value in case.items() if key != "shape"}
    params = benchmark.Params(**given)
    shape = Shape(**merge(benchmark.shape(params), case.get("shape", {})))
    with tempfile.TemporaryDirectory() as scratch:
        gang = Gang([LocalHost() for _ in range(shape.hosts.count)], shape, 60, scratch)
        try:
            output = benchmark.run(gang, params)
        except SampleError as error:
            output = Output(error.texts)
        clean = {scratch: "/tmp/scratch", sys.prefix: "/opt/venv"}

        def tidy(text: str) -> str:
            for old, new in clean.items():
                text = text.replace(old, new)
            return text

        target = HERE / name
        target.parent.mkdir(exist_ok=True)
        texts = {role: text for role, text in output.texts.items() if text}
        for role, text in texts.items():
            target.with_name(f"{target.name}.{role}.txt").write_text(tidy(text))
        made = {
            "tool": output.tool,
            "commands": output.argv,
            "params": given,
            "facts": output.facts,
            "texts": sorted(texts),
        }
        target.with_name(f"{target.name}.json").write_text(tidy(json.dumps(made, indent=1)) + "\n")


def load(name: str) -> tuple[Any, Any, Output]:
    """The benchmark, its params and the output of a recording."""
    sidecar = json.loads((HERE / f"{name}.json").read_text())
    texts = {role: (HERE / f"{name}.{role}.txt").read_text() for role in sidecar["texts"]}
    benchmark = get(name.split("/")[0])
    return (
        benchmark,
        benchmark.Params(**sidecar["params"]),
        Output(texts, sidecar["commands"], sidecar["tool"], sidecar["facts"]),
    )


if __name__ == "__main__":
    for each in sys.argv[1:] or CASES:
        record(each, CASES[each])

"""Throughput of the queue's frontend: 64 clients, 16 backends, 1 ms of work, by the original wire and by the kept one.

    python benchmarks/queue_frontend.py [--original DIR] [--seconds 5] [--rounds 3]

DIR holds `frontend`, `client` and `backend` of intel/k8s-device-scalability-tester, built with `go build -o DIR ./cmd/...`. With it every round
runs, one after the other: theirs alone, our frontend between their clients and backends, and ours alone on both wires; the ratio is to theirs of the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path

PERFDAG = [sys.executable, "-m", "perfdag", "queue"]


class Running:
    """Processes that end with the block, by their own ids."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, argv: list[str]) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.processes.append(process)
        return process

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            process.wait()


def ports(count: int) -> list[int]:
    """Free ports of the loopback."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return found


def fetch(port: int, path: str) -> str:
    """A page of a client's control port, waiting until it listens."""
    for _ in range(100):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=10) as answer:
                return str(answer.read().decode())
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"no client on port {port}")


def cpu_seconds(process: subprocess.Popen[bytes]) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def theirs_at(program: str, port: int) -> list[str]:
    """One of Intel's backends."""
    polling = ["-backoff", "0.001", "-backoff-max", "0.001"]
    return [program, "-faddr", f"127.0.0.1:{port}", "-name", "sleep", "-ignore", *polling, "--", "sleep", "0.001"]


def ours_at(kept: bool, port: int) -> list[str]:
    """One of ours, by the entry that starts fastest, so that 16 are there when the clock starts."""
    workload = {"command": ["sleep", "0.001"]}
    polling = {"backoff": 0.001, "backoff_max": 0.001}
    options = {"frontend": f"127.0.0.1:{port}", "queue": "sleep", "pod": "p", "node": "n", "kept": kept, **polling, "workload": workload}
    return [sys.executable, "-m", "perfdag.steps.queue.backend", json.dumps(options)]


def measure(
    frontend: list[str], client: list[str], backend: Callable[[int], list[str]], seconds: float, settle: float
) -> tuple[float, float]:
    """Items a second with 64 clients and 16 backends of 1 ms, and the frontend's CPU seconds an item; raises SystemExit
    where a request failed."""
    caddr, waddr, maddr, control = ports(4)
    at = "127.0.0.1"
    with Running() as running:
        served = running.start([*frontend, "-caddr", f"{at}:{caddr}", "-waddr", f"{at}:{waddr}", "-maddr", f"{at}:{maddr}", "sleep"])
        time.sleep(1)
        for _ in range(16):
            running.start(backend(waddr))
        running.start([*client, "-faddr", f"{at}:{caddr}", "-caddr", f"{at}:{control}", "-req-now", "64", "-req-max", "64"])
        fetch(control, "fails?type=plain")
        time.sleep(settle)
        fetch(control, "reset?type=plain")
        before = cpu_seconds(served)
        time.sleep(seconds)
        used = cpu_seconds(served) - before
        rate, fails = float(fetch(control, "reqs-per-sec?type=plain")), int(fetch(control, "fails?type=plain"))
    if fails:
        raise SystemExit(f"{fails} requests failed")
    return rate, used / (rate * seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--original", type=Path, help="folder with Intel's programs")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    ours = {part: [*PERFDAG, part] for part in ("frontend", "client")}
    plain = ["-wire", "original"]
    cases: dict[str, tuple[list[str], list[str], Callable[[int], list[str]]]] = {}
    if args.original:
        theirs = {part: [str(args.original / part)] for part in ours}
        backend = partial(theirs_at, str(args.original / "backend"))
        cases["theirs: their clients, frontend and backends"] = (theirs["frontend"], theirs["client"], backend)
        cases["original wire: their clients and backends, our frontend"] = (ours["frontend"], theirs["client"], backend)
    cases["original wire: all ours"] = (ours["frontend"], [*ours["client"], *plain], partial(ours_at, False))
    cases["kept wire: all ours"] = (ours["frontend"], ours["client"], partial(ours_at, True))
    rates: dict[str, list[float]] = {name: [] for name in cases}
    costs: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(args.rounds):
        for name, parts in cases.items():
            rate, cost = measure(*parts, seconds=args.seconds, settle=3.0)
            rates[name].append(rate)
            costs[name].append(cost)
    base = statistics.median(rates[next(iter(cases))])
    load = os.getloadavg()[0]
    print(
        f"64 clients, 16 backends, 1 ms of work; {os.cpu_count()} CPUs, load {load:.1f}; median of {args.rounds} rounds, range in brackets"
    )
    for name, values in rates.items():
        middle = statistics.median(values)
        spread, cost = f"[{min(values):.0f} to {max(values):.0f}]", 1e6 * statistics.median(costs[name])
        print(f"{name:<58} {middle:6.0f}/s {spread:<14} {middle / base:5.2f} x the first line; frontend {cost:4.0f} us CPU an item")
    print(json.dumps(rates))


if __name__ == "__main__":
    main()

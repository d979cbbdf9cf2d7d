"""Throughput of the queue's frontend: 64 clients, 16 backends, 1 ms of work.

    python benchmarks/queue_frontend.py [--original DIR] [--seconds 5] [--rounds 3] [--programs]

DIR holds `frontend`, `client` and `backend` of intel/k8s-device-scalability-tester, built with `go
build -o DIR ./cmd/...`. Every round runs each frontend once under the same load (queue_load.py, one
process), then ours among 50 half-open peers, then ours with one request at a time. Ratios are to
the first line. Exit 1 where a limit is not held: twice the original frontend (with
--original), p99 of the dispatch below 10 ms among 50 half-open peers. --programs measures with real
clients and backends instead, theirs and ours, one process each; on few cores these take most of the
time.
"""

import argparse
import contextlib
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from queue_load import Load, half_open

PERFDAG = [sys.executable, "-m", "perfdag", "queue"]
LEAST_RATIO, MOST_DISPATCH_MS = 2.0, 10.0


class Running:
    """Processes that end with the block, by their own ids."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, argv: list[str]) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.processes.append(process)
        return process

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            process.wait()


def ports(count: int) -> list[int]:
    """Free ports of the loopback."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    values = [item.getsockname()[1] for item in sockets]
    for item in sockets:
        item.close()
    return values


def fetch(port: int, path: str) -> str:
    """A page of a client's control port, waiting until it listens."""
    for _ in range(100):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=10) as answer:
                return str(answer.read().decode())
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"no client on port {port}")


def listening(frontend: list[str], caddr: int, waddr: int, maddr: int) -> list[str]:
    """A frontend's command line with its addresses and its queue."""
    at = "127.0.0.1"
    return [
        *frontend,
        "-caddr",
        f"{at}:{caddr}",
        "-waddr",
        f"{at}:{waddr}",
        "-maddr",
        f"{at}:{maddr}",
        "sleep",
    ]


def wait_for(port: int) -> None:
    """Until something listens there."""
    for _ in range(100):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.05)
    raise SystemExit(f"nothing listens on port {port}")


def cpu_seconds(process: subprocess.Popen[bytes]) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def backend_at(program: list[str], port: int) -> list[str]:
    """The command line of a backend."""
    polling = ["-backoff", "0.001", "-backoff-max", "0.001", "-ignore"]
    at = ["-faddr", f"127.0.0.1:{port}", "-name", "sleep"]
    return [*program, *at, *polling, "--", "sleep", "0.001"]


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    name: str
    frontend: tuple[str, ...]
    stuck: int = 0
    clients: int = 64
    work: float = 0.001
    pause: float = 0.0


@dataclass
class Figures:
    """What the rounds of a case gave: items a second, CPU seconds of the frontend an item, and
    latencies in seconds.
    """

    rates: list[float] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)
    round_trips: list[float] = field(default_factory=list)
    dispatches: list[float] = field(default_factory=list)


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def finished_count(port: int) -> int:
    """What the frontend itself counts as done."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return int(
            float(
                re.findall(r"^hpa_queue_success_total\{.*\} (\S+)$", answer.read().decode(), re.M)[
                    0
                ]
            )
        )


def measure_case(case: Case, seconds: float, into: Figures) -> None:
    """One round of a case under the load of this process.

    Raises SystemExit where requests failed or the frontend counts others than we.
    """
    caddr, waddr, maddr = ports(3)
    with Running() as running:
        server = running.start(listening([*case.frontend], caddr, waddr, maddr))
        wait_for(maddr)
        stuck = half_open((caddr, waddr), case.stuck)
        load = Load((caddr, waddr), clients=case.clients, work=case.work, pause=case.pause)
        load.run(0.5)
        done, cpu = finished_count(maddr), cpu_seconds(server)
        # Half-open peers are cut off after 5 s.
        outcome = load.run(min(seconds, 4.0) if case.stuck else seconds)
        cpu, done = cpu_seconds(server) - cpu, finished_count(maddr) - done
        load.close()
        for peer in stuck:
            peer.close()
    if outcome.failed or abs(done - outcome.done) > 2 * case.clients + 2:
        raise SystemExit(
            f"{case.name}: {outcome.failed} requests failed, {outcome.done} were answered "
            f"and {done} counted by the frontend"
        )
    into.rates.append(outcome.done / outcome.seconds)
    into.costs.append(cpu / outcome.done)
    into.round_trips += outcome.round_trips
    into.dispatches += outcome.dispatches


def compare(args: argparse.Namespace) -> bool:
    """The frontends under one and the same load; whether the limits are held."""
    ours = (*PERFDAG, "frontend")
    cases = [Case("theirs", (str(args.original / "frontend"),))] if args.original else []
    cases += [
        Case("ours", ours),
        Case("ours, 50 half-open peers", ours, stuck=50),
        Case("ours, 50 half-open peers, one request at a time", ours, 50, 1, 0.0, 0.002),
    ]
    figures = {case: Figures() for case in cases}
    for _ in range(args.rounds):
        for case, into in figures.items():
            measure_case(case, args.seconds, into)
    base = statistics.median(figures[cases[0]].rates)
    for case, result in figures.items():
        middle, spread = (
            statistics.median(result.rates),
            f"[{min(result.rates):.0f} to {max(result.rates):.0f}]",
        )
        text = f"{case.name:<66} {middle:6.0f}/s {spread:<16}"
        if case.clients > 1:
            text += (
                f" {middle / base:5.2f} x; frontend {1e6 * statistics.median(result.costs):3.0f} "
                f"us CPU an item;"
            )
        for what, values in (
            ("dispatch", result.dispatches if case.clients > 1 else []),
            ("round trip", result.round_trips),
        ):
            if values:
                text += (
                    f" {what} p50 {1e3 * percentile(values, 0.5):.1f} p99 "
                    f"{1e3 * percentile(values, 0.99):.1f} ms;"
                )
        print(text.rstrip(";"))
    print(json.dumps({case.name: result.rates for case, result in figures.items()}))
    ok = True
    if args.original:
        theirs, ours_at_it = (
            statistics.median(result.rates) for result in list(figures.values())[:2]
        )
        ok = limit(
            "throughput over the original frontend's",
            ours_at_it / theirs,
            LEAST_RATIO,
            at_least=True,
        )
    for case, result in figures.items():
        if case.stuck and case.clients > 1:
            ok &= limit(
                f"{case.name}: p99 of the dispatch in ms",
                1e3 * percentile(result.dispatches, 0.99),
                MOST_DISPATCH_MS,
            )
    return ok


def limit(what: str, value: float, bound: float, at_least: bool = False) -> bool:
    """Print a figure with its limit; whether it is held."""
    ok = value >= bound if at_least else value < bound
    print(
        f"{what}: {value:.2f} (limit {'at least' if at_least else 'below'} {bound:g}: "
        f"{'held' if ok else 'NOT HELD'})"
    )
    return ok


def measure(
    frontend: list[str],
    client: list[str],
    backend: Callable[[int], list[str]],
    seconds: float,
    settle: float,
) -> tuple[float, float]:
    """Items a second with 64 clients and 16 backends of 1 ms, and the frontend's CPU seconds an
    item; raises SystemExit where a request failed.
    """
    caddr, waddr, maddr, control = ports(4)
    at = "127.0.0.1"
    with Running() as running:
        server = running.start(listening(frontend, caddr, waddr, maddr))
        wait_for(maddr)
        for _ in range(16):
            running.start(backend(waddr))
        running.start(
            [
                *client,
                "-faddr",
                f"{at}:{caddr}",
                "-caddr",
                f"{at}:{control}",
                "-req-now",
                "64",
                "-req-max",
                "64",
            ]
        )
        fetch(control, "fails?type=plain")
        time.sleep(settle)
        fetch(control, "reset?type=plain")
        before = cpu_seconds(server)
        time.sleep(seconds)
        cpu = cpu_seconds(server) - before
        rate, fails = (
            float(fetch(control, "reqs-per-sec?type=plain")),
            int(fetch(control, "fails?type=plain")),
        )
    if fails:
        raise SystemExit(f"{fails} requests failed")
    return rate, cpu / (rate * seconds)


def programs(args: argparse.Namespace) -> bool:
    """The frontends between real clients and backends; no limit is set for them."""
    ours = {part: [*PERFDAG, part] for part in ("frontend", "client", "backend")}
    ours["client"].append("--open")  # Intel's client takes no POST
    cases: dict[str, tuple[list[str], list[str], Callable[[int], list[str]]]] = {}
    if args.original:
        theirs = {part: [str(args.original / part)] for part in ours}
        backend = partial(backend_at, [str(args.original / "backend")])
        cases["theirs: their clients, frontend and backends"] = (
            theirs["frontend"],
            theirs["client"],
            backend,
        )
        cases["their clients and backends, our frontend"] = (
            ours["frontend"],
            theirs["client"],
            backend,
        )
    cases["all ours"] = (ours["frontend"], ours["client"], partial(backend_at, ours["backend"]))
    rates: dict[str, list[float]] = {name: [] for name in cases}
    costs: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(args.rounds):
        for name, parts in cases.items():
            rate, cost = measure(*parts, seconds=args.seconds, settle=3.0)
            rates[name].append(rate)
            costs[name].append(cost)
    base = statistics.median(rates[next(iter(cases))])
    for name, values in rates.items():
        middle = statistics.median(values)
        spread, cost = (
            f"[{min(values):.0f} to {max(values):.0f}]",
            1e6 * statistics.median(costs[name]),
        )
        print(
            f"{name:<58} {middle:6.0f}/s {spread:<14} {middle / base:5.2f} x the first line; "
            f"frontend {cost:4.0f} us CPU an item"
        )
    print(json.dumps(rates))
    return True


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--original", type=Path, help="folder with Intel's programs")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--programs", action="store_true", help="with real clients and backends")
    args = parser.parse_args()
    before = os.getloadavg()[0]
    what = (
        f"64 clients, 16 backends, 1 ms of work; {os.cpu_count()} CPUs, load {before:.1f} "
        f"before; median of {args.rounds} rounds"
    )
    print(f"{what} of {args.seconds:g} s, range in brackets", flush=True)
    if not (programs if args.programs else compare)(args):
        raise SystemExit(1)


if __name__ == "__main__":
    main()

"""Rows for the tests of charts, made up here; the real ones come from runs."""

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from perfdag.identity import canonical, digest
from perfdag.results.schema import SAMPLES

RUN = "20261120T020000Z-1a2b3c4d"
START = datetime(2026, 11, 20, 2, 0, tzinfo=UTC)
ENV = {
    "host": "node-1",
    "kernel": "6.8.0",
    "cpu_model": "Model <X>",
    "cpu_cores": 2,
    "memory_bytes": 24 << 30,
    "nics": [],
}


def sample(
    benchmark: str,
    params: dict[str, Any],
    repetition: int,
    values: list[dict[str, Any]],
    *,
    status: str = "ok",
    error: str | None = None,
    noise: str | None = None,
    phase: str = "measure",
    entry: str | None = None,
    shape: dict[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Rows of one sample; `values` are dicts with metric, value, unit and what differs from the
    defaults.
    """
    point = digest(benchmark, canonical(params), canonical(shape or {}))
    base = {
        "schema_version": 1,
        "suite": "trial",
        "entry": entry or benchmark,
        "benchmark": benchmark,
        "benchmark_version": "1",
        "point": point,
        "params": canonical(params),
        "shape": canonical(shape or {}),
        "run_id": RUN,
        "trigger": "manual",
        "batch": 0,
        "repetition": repetition,
        "phase": phase,
        "order_index": repetition,
        "attempt": 1,
        "status": status,
        "error": error,
        "noise": noise,
        "started_at": START + timedelta(seconds=repetition),
        "finished_at": START + timedelta(seconds=repetition + 1),
        "nodes": ["node-1"],
        "env": canonical(ENV),
        "env_class": "2 threads",
        "perfdag_version": "0.1",
    }
    outcome = []
    for item in values or [{}]:
        coords = canonical(item.get("coords", {}))
        metric, stat = item.get("metric"), item.get("stat", "value" if item else None)
        identity = digest("trial", point, "1", coords, metric or "", stat or "")
        outcome.append(
            {
                **base,
                "coords": coords,
                "metric": metric,
                "stat": stat,
                "series_id": identity,
                "sample_id": digest(identity, RUN, str(repetition), phase),
                "value": item.get("value"),
                "unit": item.get("unit"),
                "better": item.get("better"),
                "headline": item.get("headline", False) if item else None,
                "subject": item.get("subject"),
            }
        )
    return outcome


def table(*samples: list[dict[str, Any]]) -> pa.Table:
    """A table of SAMPLES."""
    return pa.Table.from_pylist([row for rows in samples for row in rows], schema=SAMPLES)


def value(metric: str, number: float, unit: str = "s", **more: Any) -> dict[str, Any]:
    """A value of a metric: rates are better where they are higher, all others where lower."""
    better = "higher" if unit.endswith("/s") else "lower"
    return {"metric": metric, "value": number, "unit": unit, "better": better, **more}


def throughput(number: float, **more: Any) -> dict[str, Any]:
    return value("throughput", number, "bit/s", headline=True) | more


def latency(number: float, **more: Any) -> dict[str, Any]:
    return value("latency", number, headline=True) | more


def plain() -> pa.Table:
    """Four points of a benchmark with no chart of its own, the last failed, the second
    disturbed; three samples each, one warm-up.
    """
    samples = []
    for streams, base in ((1, 10e9), (2, 18e9), (4, 23e9)):
        for repetition in (1, 2, 3):
            values = [
                throughput(base * (1 + 0.01 * repetition)),
                value("retransmits", 3.0 * repetition, "1"),
            ]
            noise = "steal 4.0%" if streams == 2 and repetition == 2 else None
            samples.append(sample("plain", {"streams": streams}, repetition, values, noise=noise))
        samples.append(sample("plain", {"streams": streams}, 1, [throughput(1.0)], phase="warmup"))
    samples += [
        sample(
            "plain",
            {"streams": 8},
            r,
            [],
            status="failed",
            error="exit 1: <connection> refused & gone",
        )
        for r in (1, 2, 3)
    ]
    return table(*samples)


def swept() -> pa.Table:
    """Latency over message size for two transports, seven samples each, and one that failed."""
    samples = []
    for transport, base in (("shm", 2e-7), ("tcp", 8e-6)):
        for repetition in range(1, 8):
            values = [
                latency(
                    base * (1 + 0.01 * repetition) + size * 1e-9, coords={"message_bytes": size}
                )
                for size in (0, *(2**k for k in range(23)))
            ]
            samples.append(sample("swept", {"transport": transport}, repetition, values))
    samples.append(
        sample("swept", {"transport": "rdma"}, 1, [], status="skipped", error="no RDMA device")
    )
    return table(*samples)


def fio(depths: tuple[int, ...] = (1, 4, 16, 64)) -> pa.Table:
    """Random reads at several queue depths, and one mixed point."""
    samples = []
    for depth in depths:
        for repetition in range(1, 7):
            rate = 20e3 * depth**0.6 * (1 + 0.02 * repetition)
            samples.append(
                sample(
                    "fio",
                    {"rw": "randread", "iodepth": depth, "bs": 4096},
                    repetition,
                    io("read", rate, depth / rate),
                )
            )
    for repetition in (1, 2, 3):
        values = io("read", 5e3 * repetition, 1e-4) + io("write", 4e3, 3e-4)
        samples.append(
            sample("fio", {"rw": "randrw", "iodepth": 1, "bs": 4096}, repetition, values)
        )
    return table(*samples)


def io(direction: str, rate: float, late: float) -> list[dict[str, Any]]:
    coords = {"direction": direction}
    return [
        value("iops", rate, "1/s", headline=True, coords=coords),
        value("bandwidth", rate * 4096, "B/s", headline=True, coords=coords),
        *(
            latency(late * k, stat=stat, coords=coords, headline=False)
            for stat, k in (("p50", 1), ("p99", 4), ("p99.9", 9))
        ),
    ]


def imb(kind: str = "Allreduce", ranks: tuple[int, ...] = (2, 4, 8)) -> pa.Table:
    """A collective at several rank counts; a PingPong gives bandwidth too; the last point
    failed.
    """
    samples = []
    for count in ranks:
        for repetition in (1, 2, 3):
            values = [value("operation_time", 1e-3, headline=True)]
            for size in (0, *(2**k for k in range(2, 21))):
                late = 1e-6 * count + size * 1e-9 * repetition
                coords = {"message_bytes": size}
                values.append(latency(late, stat="mean", coords=coords, headline=False))
                if kind == "PingPong" and size:
                    values.append(value("bandwidth", size / late, "B/s", coords=coords))
            samples.append(sample("imb", {"benchmark": kind, "ranks": count}, repetition, values))
    samples.append(
        sample(
            "imb", {"benchmark": kind, "ranks": 16}, 1, [], status="failed", error="mpirun: exit 1"
        )
    )
    return table(*samples)


def iperf_paths() -> pa.Table:
    """TCP between pods and between nodes, with two MTUs and two numbers of streams, 10 s each,
    one of them with a dip in second 5.
    """
    samples = []
    paths = itertools.product((1500, 9000), (1, 4), (False, True), (1, 2, 3))
    for mtu, streams, host, repetition in paths:
        rate = 9e9 * streams**0.5 * (1 + 0.2 * host) * (1 + mtu / 90_000) * (1 + 0.01 * repetition)
        dip = 0.5 if (mtu, streams, host) == (9000, 4, False) else 1.0
        shape = {"hosts": {"count": 2}, "network": {"mtu": mtu, "host": host}}
        values = [throughput(rate)]
        for second in range(1, 11):
            own = rate * (dip if second == 5 else 1 + 0.002 * second)
            each = value("second_throughput", own, "bit/s", subject=f"second {second}")
            values.append(each | {"better": "none"})
        params = {"protocol": "tcp", "streams": streams}
        samples.append(sample("iperf", params, repetition, values, shape=shape))
    return table(*samples)

"""Charts of benchmarks for the documentation, from sample figures: nothing here was measured."""

import sys
from collections.abc import Callable, Iterator
from math import ceil, exp, log2
from pathlib import Path
from typing import Any

import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parent.parent))

from perfdag.benchmark.contract import Benchmark, Measurement
from perfdag.benchmark.registry import get
from perfdag.charts.pictures import charts, to_bytes
from perfdag.charts.view import figures
from perfdag.results.samples import as_rows
from perfdag.results.summary import points_of
from tests.charts import rows

Values = Iterator[Measurement]
SIZES = [2**power for power in range(1, 23)]


def _command(params: dict[str, Any], f: float) -> Values:
    yield Measurement("wall_time", 0.05 * params["level"] ** 1.2 * f)


def _latency(params: dict[str, Any], f: float) -> Values:
    late = (18e-6 if params["protocol"] == "udp" else 21e-6) * (1 + params["request"] / 65536) * f
    yield Measurement("transaction_rate", 1 / late)
    for stat, times in (("p50", 0.95), ("p90", 1.2), ("p99", 2.1)):
        yield Measurement("latency", late * times, stat)


def _openfoam(params: dict[str, Any], f: float) -> Values:
    yield Measurement("solve_time", (4 + 96 / params["procs"]) * f)
    yield Measurement("mesh_time", 3 * f)
    yield Measurement("startup_time", 0.8 * f)


def _rdma_bandwidth(params: dict[str, Any], f: float) -> Values:
    rates = {
        size: 1.9e11 / f * size / (size + 16384 / params["qps"] ** 0.5)
        for size in (*SIZES, 8 << 20)
    }
    yield Measurement("highest_bandwidth", max(rates.values()))
    for size, rate in rates.items():
        yield Measurement("bandwidth", rate, "mean", {"message_bytes": size})


def _rdma_latency(params: dict[str, Any], f: float) -> Values:
    start = {"write": 1e-6, "read": 1.9e-6}[params["mode"]]
    yield Measurement("lowest_latency", start * f, "p50")
    for size in SIZES:
        for stat, times in (("p50", 1.0), ("p99", 1.6)):
            late = (start + size / 2.4e10) * times * f
            yield Measurement("latency", late, stat, {"message_bytes": size})


def _torchbench(params: dict[str, Any], f: float) -> Values:
    late = (0.012 + 0.009 * params["batch_size"]) * f
    yield Measurement("batch_time", late, "p50")
    yield Measurement("samples_rate", params["batch_size"] / late)


def _resnet50(params: dict[str, Any], f: float) -> Values:
    if params["scenario"] == "offline":
        yield Measurement("throughput", 400 * params["batch"] / (params["batch"] + 3) * f)
        return
    yield Measurement("tail_latency", 0.012 * f, "p90")
    for stat, late in (("p50", 9e-3), ("p90", 12e-3), ("p95", 13e-3), ("p99", 17e-3)):
        yield Measurement("latency", late * f, stat)


def _overhead(params: dict[str, Any], f: float) -> Values:
    mean = {"nice": 0.01, "kata": 0.07, "env": 0.03}[params["wrapper"][0]] * f
    yield Measurement("overhead", mean, "mean")
    yield Measurement("overhead_bound", mean - 0.012, "low")
    yield Measurement("overhead_bound", mean + 0.012, "high")


def _interference(params: dict[str, Any], f: float) -> Values:
    yield Measurement("fairness", 0.996)
    for copy, ratio in enumerate((0.52, 0.49)):
        name = f"copy {copy}"
        for when, times in (("alone", 1.0), ("together", ratio * f)):
            yield Measurement("rate", 95 * times, coords={"when": when}, subject=name)
            yield Measurement("tail", 0.011 / times, coords={"when": when}, subject=name)
        yield Measurement("rate_kept", ratio * f, subject=name)
        yield Measurement("tail_inflation", 1 / (ratio * f), subject=name)


def _queue_scaling(params: dict[str, Any], f: float) -> Values:
    rate = {n: 5 * n / (1 + 0.03 * (n - 1) + 0.0004 * n * (n - 1)) * f for n in (1, 2, 4, 8)}
    yield Measurement("serial_share", 0.03)
    yield Measurement("coherence", 0.0004)
    yield Measurement("single_rate", 5.0)
    for n, each in rate.items():
        at = {"replicas": n}
        yield Measurement("throughput", each, coords=at)
        for stat, times in (("p50", 1.0), ("p95", 1.3)):
            yield Measurement("latency", n / each * times, stat, at)
        if n > 1:
            yield Measurement("efficiency", each / n / rate[1], coords=at)
            for stat, shift in (("value", 0.0), ("lower", -0.04), ("upper", 0.04)):
                yield Measurement("gain", each / rate[n // 2] + shift, stat, at)


def _objects(last: str, since: str) -> Callable[[dict[str, Any], float], Values]:
    """Return the figures of a run at scale whose objects end in the stage `last`."""

    def values(params: dict[str, Any], f: float) -> Values:
        count = 100
        size = {"count": count}
        for number in range(count):
            name = f"object-{number}"
            for stage, first, spread in (("scheduled", 0.2, 2.0), (last, 1.5, 14.0)):
                late = (first + spread * log2(1 + number / count) * exp(number / count / 3)) * f
                at = {**size, "stage": stage, "since": since}
                yield Measurement("object_latency", late, coords=at, subject=name)
                yield Measurement("object_time", late + number / 50, coords=at, subject=name)

    return values


SAMPLES: dict[str, tuple[list[dict[str, Any]], Callable[[dict[str, Any], float], Values]]] = {
    "command": ([{"argv": ["xz", "FILE"], "level": n} for n in (1, 3, 6, 9)], _command),
    "latency": (
        [{"protocol": p, "request": n} for p in ("tcp", "udp") for n in (1, 16384)],
        _latency,
    ),
    "openfoam": ([{"size": "S", "procs": n, "nodes": 1} for n in (1, 2, 4, 8)], _openfoam),
    "rdma-bandwidth": ([{"mode": "write", "qps": n} for n in (1, 4)], _rdma_bandwidth),
    "rdma-latency": ([{"mode": mode} for mode in ("write", "read")], _rdma_latency),
    "torchbench": ([{"model": "resnet50", "batch_size": n} for n in (1, 2, 4, 8, 16)], _torchbench),
    "resnet50": (
        [{"scenario": "offline", "batch": n} for n in (1, 8, 32)]
        + [{"scenario": "single-stream", "batch": 1}],
        _resnet50,
    ),
    "resnet50-overhead": (
        [{"wrapper": [name], "limit": 0.05} for name in ("nice", "env", "kata")],
        _overhead,
    ),
    "resnet50-interference": ([{"copies": 2, "scenario": "single-stream"}], _interference),
    "queue-scaling": ([{"command": ["sleep", "0.2"], "limit": 8}], _queue_scaling),
    "scale": ([{"count": 100}], _objects("ready", "submitted")),
    "vmi-burst": ([{"count": 100}], _objects("running", "created")),
    "vmi-steady": ([{"count": 100}], _objects("running", "created")),
}
TAIL = {"min": 0.3, "p50": 1, "p90": 1.6, "p99": 3, "p99.9": 9, "p99.99": 20, "max": 40}
"""Statistics of the completion of I/Os as factors of their median."""


def _fio() -> pa.Table:
    """Return reads and writes of two block sizes over four depths, with their percentiles."""
    samples = []
    for rw, direction in (("randread", "read"), ("randwrite", "write")):
        for size in (4096, 65536):
            for depth in (1, 4, 16, 64):
                for repetition in (1, 2, 3):
                    late = 80e-6 * (1 + depth / 16) * (1 + size / 65536) * (1 + 0.02 * repetition)
                    values = rows.io(direction, depth / (late + 50e-6), late * 3)
                    values += [
                        rows.value(
                            "completion_latency",
                            late * factor,
                            stat=stat,
                            coords={"direction": direction},
                        )
                        for stat, factor in TAIL.items()
                    ]
                    params = {"rw": rw, "bs": size, "iodepth": depth}
                    samples.append(rows.sample("fio", params, repetition, values))
    return rows.table(*samples)


def _pingpong() -> pa.Table:
    """Return PingPong over shared memory and TCP: latency, bandwidth and the headlines."""
    samples = []
    for transport, start, peak in (("shm", 0.4e-6, 9e9), ("tcp", 14e-6, 3e9)):
        for repetition in (1, 2, 3):
            slower = 1 + 0.03 * repetition
            half = 2 ** ceil(log2(start * peak))
            values = [
                rows.value("zero_byte_latency", start * slower, headline=True),
                rows.value("peak_bandwidth", peak / slower, "B/s", headline=True),
                rows.value("half_bandwidth_size", half, "B", headline=False),
            ]
            for size in [0, *(2**k for k in range(23))]:
                late = (start + size / peak) * slower
                coords = {"message_bytes": size}
                values.append(rows.value("latency", late, stat="mean", coords=coords))
                if size:
                    values.append(rows.value("bandwidth", size / late, "B/s", coords=coords))
            params = {"benchmark": "PingPong", "ranks": 2, "transport": transport}
            samples.append(rows.sample("imb", params, repetition, values))
    return rows.table(*samples)


TABLES = {"fio": _fio, "imb": _pingpong, "iperf": rows.iperf_paths}


def _headlines(benchmark: Benchmark[Any]) -> Callable[[dict[str, Any], float], Values]:
    """Return what stands for the figures of a benchmark that has none here."""
    headlines = [metric.name for metric in benchmark.metrics if metric.headline]
    return lambda params, f: (Measurement(name, f / 2) for name in headlines)


def sample_table(name: str) -> pa.Table:
    """Return sample rows of a benchmark: five repetitions that differ by some percent."""
    if name in TABLES:
        return TABLES[name]()
    benchmark = get(name)
    points, values = SAMPLES.get(name, ([{}], _headlines(benchmark)))
    return rows.table(
        *(
            rows.sample(
                name,
                params,
                repetition,
                as_rows(benchmark, list(values(params, 1 + factor))),
            )
            for params in points
            for repetition, factor in enumerate((0, 0.01, -0.02, 0.03, -0.01), start=1)
        )
    )


def picture(name: str) -> bytes:
    """Return the first chart of a benchmark as SVG."""
    table = sample_table(name)
    _slug, figure = next(iter(figures(points_of(table), table, charts(name))))
    return to_bytes(figure)[0]

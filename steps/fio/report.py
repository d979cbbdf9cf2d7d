"""Read fio's JSON (`--output-format=json`).

Source: fio's manual, section 'Interpreting the output'.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from perfdag.outcome import Failed, Measurement
from perfdag.stats.percentiles import needed
from perfdag.steps.json_report import read_report

PERCENTILES = (50, 90, 95, 99, 99.9, 99.99)
_LATENCIES = (
    ("latency", "lat_ns"),
    ("completion_latency", "clat_ns"),
    ("submission_latency", "slat_ns"),
)
_ALL = "All clients"


def parse(
    texts: Mapping[str, str],
    directions: tuple[str, ...],
    runtime: float | None,
    workers: Mapping[str, str] | None = None,
) -> list[Measurement]:
    """Return measurements by direction: iops in 1/s, bandwidth in B/s, latencies in s.

    With several hosts, `workers` names each host by its server's `address:port`. Rows with that
    subject belong to one host, rows without a subject to all. The percentiles of all hosts are
    computed from their histograms (json+), never averaged, as fio merges no percentiles.
    Raises Failed if a direction or a host is missing from the report.
    """
    # Warnings and the servers' log lines precede the report on the same stream.
    report = read_report("fio", texts.get("client", ""), texts)
    try:
        if not workers:
            return _one(_jobs(report, "jobs", 1, texts)[0], directions, runtime, texts)
        clients = _jobs(report, "client_stats", len(workers), texts)
        by_server = {f"{job['hostname']}:{job['port']}": job for job in clients}
        by_host = []
        for server, subject in workers.items():
            by_host += _one(by_server[server], directions, runtime, texts, subject)
        clients_total = (job for job in report["client_stats"] if job["jobname"] == _ALL)
        total = next(clients_total, None)
        if total is None:
            raise Failed(f"fio's report lacks the total of {len(workers)} hosts", texts)
        return (
            _one(_with_percentiles(total, clients, directions), directions, runtime, texts)
            + by_host
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise Failed(f"fio's report lacks {error}: not the JSON of a whole run", texts) from error


def _with_percentiles(
    total: dict[str, Any], clients: list[dict[str, Any]], directions: tuple[str, ...]
) -> dict[str, Any]:
    """Add percentiles of all hosts to the total, if every host's report has its histogram."""
    merged = dict(total)
    for direction in directions:
        side = merged[direction] = dict(total[direction])
        for _, key in _LATENCIES:
            bins = [client[direction].get(key, {}).get("bins") for client in clients]
            if key in side and all(bins):
                side[key] = {**side[key], "percentile": percentiles(bins)}
    return merged


def percentiles(histograms: Sequence[Mapping[str, int]]) -> dict[str, float]:
    """Return percentiles of several histograms together, in ns, as fio computes them.

    A percentile is the value of the bin where the count reaches p % of all.
    """
    counts: dict[int, int] = {}
    for histogram in histograms:
        for nanoseconds, count in histogram.items():
            counts[int(nanoseconds)] = counts.get(int(nanoseconds), 0) + count
    total, reached, remaining = sum(counts.values()), 0, list(PERCENTILES)
    values: dict[str, float] = {}
    for value in sorted(counts):
        reached += counts[value]
        while remaining and reached >= remaining[0] / 100 * total:
            values[f"{remaining.pop(0):f}"] = float(value)
    return values


def _jobs(
    report: dict[str, Any], key: str, count: int, texts: Mapping[str, str]
) -> list[dict[str, Any]]:
    jobs = [job for job in report[key] if job["jobname"] != _ALL]
    for job in jobs:
        if job["error"]:
            raise Failed(f"fio's job ended with error {job['error']}", texts)
    if len(jobs) != count:
        raise Failed(f"fio reports {len(jobs)} jobs, {count} were requested", texts)
    return jobs


def _one(
    job: dict[str, Any],
    directions: tuple[str, ...],
    runtime: float | None,
    texts: Mapping[str, str],
    subject: str | None = None,
) -> list[Measurement]:
    measurements = []
    for direction in directions:
        side = job[direction]
        total = int(side["total_ios"])
        if total <= 0:
            raise Failed(f"fio completed no {direction}", texts)
        # fio reports its runtime in ms. A job that ends early hit an error or a device's end.
        if runtime is not None and side["runtime"] / 1000 < 0.9 * runtime:
            raise Failed(
                f"fio's {direction} ended after {side['runtime'] / 1000:.2f} s of {runtime:g} s",
                texts,
            )
        coords = {"direction": direction}
        # fio 2 reports KiB/s only.
        bandwidth = side["bw_bytes"] if "bw_bytes" in side else side["bw"] * 1024
        measurements.append(
            Measurement("iops", float(side["iops"]), coords=coords, n=total, subject=subject)
        )
        measurements.append(
            Measurement("bandwidth", float(bandwidth), coords=coords, n=total, subject=subject)
        )
        for metric, key in _LATENCIES:
            # fio 2 reports microseconds, under the name without a suffix.
            block, scale = (side[key], 1e9) if key in side else (side[key.removesuffix("_ns")], 1e6)
            measurements += _latency(metric, block, scale, coords, subject, total)
    sync = job.get("sync", {}).get("lat_ns", {})
    if sync.get("N"):
        measurements += _latency("sync_latency", sync, 1e9, {}, subject, int(sync["N"]))
    measurements.append(Measurement("user_cpu", float(job["usr_cpu"]) / 100, subject=subject))
    measurements.append(Measurement("system_cpu", float(job["sys_cpu"]) / 100, subject=subject))
    return measurements


def _latency(
    metric: str,
    block: Mapping[str, Any],
    scale: float,
    coords: Mapping[str, str],
    subject: str | None,
    total: int,
) -> list[Measurement]:
    """Return mean, extremes, and the percentiles that this many I/Os support.

    The list is empty if fio measured none, as for the submission latency of psync.
    """
    n = int(block.get("N", total))
    if n == 0 or block["max"] == 0:
        return []
    stats = {
        "mean": block["mean"],
        "min": block["min"],
        "max": block["max"],
        "stddev": block["stddev"],
    }
    percentile = {float(p): value for p, value in block.get("percentile", {}).items()}
    stats |= {
        f"p{p:g}": percentile[p]
        for p in map(float, PERCENTILES)
        if p in percentile and n >= needed(p / 100)
    }
    return [
        Measurement(metric, float(value) / scale, stat, coords, n, subject)
        for stat, value in stats.items()
    ]

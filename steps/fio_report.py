"""Reading fio's JSON (`--output-format=json`); format: fio's manual, section 'Interpreting the output'."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from perfdag.benchmark import Failed, Measurement
from perfdag.stats.percentiles import needed

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
    """Measurements by direction: iops 1/s, bandwidth B/s, latencies s. Raises Failed where a direction or a host is not in the report.

    With several hosts `workers` names each by the address and port of its server (`10.0.0.1:8765`): there is a subject for each by that
    name, and rows without one for all. fio merges no percentiles: those of all are computed
    from the hosts' histograms (json+), never averaged.
    """
    report = _read(texts)
    try:
        if not workers:
            return _one(_jobs(report, "jobs", 1, texts)[0], directions, runtime, texts)
        clients = _jobs(report, "client_stats", len(workers), texts)
        by_server = {f"{job['hostname']}:{job['port']}": job for job in clients}
        found = []
        for server, subject in workers.items():
            found += _one(by_server[server], directions, runtime, texts, subject)
        total = next((each for each in report["client_stats"] if each["jobname"] == _ALL), None)
        if total is None:
            raise Failed(f"fio's report lacks the total of {len(workers)} hosts", texts)
        return (
            _one(_with_percentiles(total, clients, directions), directions, runtime, texts) + found
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise Failed(f"fio's report lacks {error}: not the JSON of a whole run", texts) from error


def _with_percentiles(
    total: dict[str, Any], clients: list[dict[str, Any]], directions: tuple[str, ...]
) -> dict[str, Any]:
    """The total with percentiles of all hosts, where each host's report has the bins of its histogram."""
    merged = dict(total)
    for direction in directions:
        side = merged[direction] = dict(total[direction])
        for _, key in _LATENCIES:
            bins = [client[direction].get(key, {}).get("bins") for client in clients]
            if key in side and all(bins):
                side[key] = {**side[key], "percentile": percentiles(bins)}
    return merged


def percentiles(histograms: Sequence[Mapping[str, int]]) -> dict[str, float]:
    """Percentiles of histograms together, as fio computes them: the value (ns) of the bin where the count reaches p % of all."""
    counts: dict[int, int] = {}
    for each in histograms:
        for nanoseconds, count in each.items():
            counts[int(nanoseconds)] = counts.get(int(nanoseconds), 0) + count
    total, reached, left = sum(counts.values()), 0, list(PERCENTILES)
    found: dict[str, float] = {}
    for value in sorted(counts):
        reached += counts[value]
        while left and reached >= left[0] / 100 * total:
            found[f"{left.pop(0):f}"] = float(value)
    return found


def _read(texts: Mapping[str, str]) -> dict[str, Any]:
    text = texts.get("client", "")
    # warnings, and the servers' chatter in client mode, come before the report on the same stream
    start = re.search(r"^\{", text, re.M)
    try:
        report, _ = json.JSONDecoder().raw_decode(text, start.start() if start else 0)
    except ValueError as error:
        raise Failed(
            f"fio printed no JSON ({error}): {text[-200:].strip() or 'nothing at all'}", texts
        ) from error
    if not isinstance(report, dict):
        raise Failed("fio printed JSON that is no report", texts)
    return report


def _jobs(
    report: dict[str, Any], key: str, count: int, texts: Mapping[str, str]
) -> list[dict[str, Any]]:
    jobs = [job for job in report[key] if job["jobname"] != _ALL]
    for job in jobs:
        if job["error"]:
            raise Failed(f"fio's job ended with error {job['error']}", texts)
    if len(jobs) != count:
        raise Failed(f"fio reports {len(jobs)} jobs, {count} were asked for", texts)
    return jobs


def _one(
    job: dict[str, Any],
    directions: tuple[str, ...],
    runtime: float | None,
    texts: Mapping[str, str],
    subject: str | None = None,
) -> list[Measurement]:
    found = []
    for direction in directions:
        side = job[direction]
        total = int(side["total_ios"])
        if total <= 0:
            raise Failed(f"fio completed no {direction}", texts)
        # fio's runtime is in ms; a job that ends early has hit an error or the end of its device
        if runtime is not None and side["runtime"] / 1000 < 0.9 * runtime:
            raise Failed(
                f"fio's {direction} ended after {side['runtime'] / 1000:.2f} s of {runtime:g} s",
                texts,
            )
        coords = {"direction": direction}
        bandwidth = (
            side["bw_bytes"] if "bw_bytes" in side else side["bw"] * 1024
        )  # fio 2 has KiB/s only
        found.append(
            Measurement("iops", float(side["iops"]), coords=coords, n=total, subject=subject)
        )
        found.append(
            Measurement("bandwidth", float(bandwidth), coords=coords, n=total, subject=subject)
        )
        for metric, key in _LATENCIES:
            # fio 2 has microseconds under the bare name
            block, scale = (side[key], 1e9) if key in side else (side[key.removesuffix("_ns")], 1e6)
            found += _latency(metric, block, scale, coords, subject, total)
    sync = job.get("sync", {}).get("lat_ns", {})
    if sync.get("N"):
        found += _latency("sync_latency", sync, 1e9, {}, subject, int(sync["N"]))
    found.append(Measurement("user_cpu", float(job["usr_cpu"]) / 100, subject=subject))
    found.append(Measurement("system_cpu", float(job["sys_cpu"]) / 100, subject=subject))
    return found


def _latency(
    metric: str,
    block: Mapping[str, Any],
    scale: float,
    coords: Mapping[str, str],
    subject: str | None,
    total: int,
) -> list[Measurement]:
    """Mean, extremes and those percentiles that this many I/Os support; nothing where fio measured none (slat of psync)."""
    n = int(block.get("N", total))
    if n == 0 or block["max"] == 0:
        return []
    found = {
        "mean": block["mean"],
        "min": block["min"],
        "max": block["max"],
        "stddev": block["stddev"],
    }
    given = {float(p): value for p, value in block.get("percentile", {}).items()}
    found |= {
        f"p{p:g}": given[p] for p in map(float, PERCENTILES) if p in given and n >= needed(p / 100)
    }
    return [
        Measurement(metric, float(value) / scale, stat, coords, n, subject)
        for stat, value in found.items()
    ]

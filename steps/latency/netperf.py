"""The command lines of netperf, and its output as `SELECTOR=value` lines (option -k).

Source: netperf's manual, omni output selectors, and hist.h of netperf 2.7.
"""

import math
import re

from perfdag.outcome import Failed, Invalid, Measurement
from perfdag.stats.percentiles import needed
from perfdag.steps.latency.params import LatencyParams

_STATS = {
    "mean": "MEAN_LATENCY",
    "min": "MIN_LATENCY",
    "p50": "P50_LATENCY",
    "p90": "P90_LATENCY",
    "p99": "P99_LATENCY",
    "max": "MAX_LATENCY",
}
_USED = {"REQUEST_SIZE": "request_size", "RESPONSE_SIZE": "response_size"}
_NUMBERS = ("THROUGHPUT", "ELAPSED_TIME", *_USED, *_STATS.values())
_HEADERS = ("THROUGHPUT_UNITS", "PROTOCOL", "DIRECTION")
_WHOLE = 0.9
"""Least share of the duration that a whole test takes, and that UDP's transactions fill."""


def commands(
    params: LatencyParams, address: str, port: int, service: tuple[str, int] | None = None
) -> tuple[list[str], list[str]]:
    """Return the argv of the server and of the client.

    -D keeps the server in the foreground, -N without a log file. -j keeps the histogram of the
    latencies. The second -H is the address where the server takes the data connection. A server
    cannot have the address of a `service`, so the client is told the port of that connection.
    """
    family, at = "-6" if ":" in address else "-4", ["-p", str(port)]
    target, data = (
        (service[0], ["-P", f"0,{service[1]}"]) if service else (address, ["-H", address])
    )
    client = ["netperf", family, "-H", target, *at, "-t", params.test]
    client += ["-l", f"{params.duration:.0f}", "-j", "-P", "0", "--", *data]
    client += ["-r", f"{params.request_size},{params.response_size}"]
    client += ["-k", ",".join((*_NUMBERS, *_HEADERS))]
    return ["netserver", "-D", "-N", family, "-L", address, *at], client


def measurements(text: str, params: LatencyParams) -> list[Measurement]:
    """Return the measurements: transactions in 1/s, latencies in s.

    Raises Failed if a value is missing or no transaction ended. Raises Invalid if netperf measured
    another transaction or waited for an answer that never came.
    """
    texts = {"client": text}
    lines = dict(re.findall(r"^([A-Z0-9_]+)=(.*)\n", text, re.M))
    try:
        values = {name: float(lines[name]) for name in _NUMBERS}
        units, *used = (lines[name] for name in _HEADERS)
    except (KeyError, ValueError) as error:
        raise Failed(f"netperf's output lacks {error}", texts) from error
    if units != "Trans/s" or not all(math.isfinite(value) for value in values.values()):
        raise Failed(f"netperf printed no transactions a second but {units}", texts)
    requested = [
        params.test[:3],
        "Connect|Send|Recv" if params.test == "TCP_CRR" else "Send|Recv",
        *(getattr(params, name) for name in _USED.values()),
    ]
    measured = [*used, *(values[name] for name in _USED)]
    if measured != requested:
        raise Invalid(f"{requested} was requested, netperf measured {measured}", texts)
    rate, elapsed = values["THROUGHPUT"], values["ELAPSED_TIME"]
    if elapsed < _WHOLE * params.duration:
        raise Failed(f"netperf ended after {elapsed:g} s of {params.duration:g} s", texts)
    count, us = round(rate * elapsed), {stat: values[name] for stat, name in _STATS.items()}
    if count < 1:
        raise Failed("netperf completed no transaction", texts)
    if not (0 <= us["min"] <= us["mean"] <= us["max"] and us["p50"] <= us["p90"] <= us["p99"]):
        raise Failed(f"netperf's latencies are out of order: {us}", texts)
    rows = [Measurement("transaction_rate", rate, n=count)]
    rows += [
        Measurement("latency", value / 1e6, stat, n=count)
        for stat, value in us.items()
        if stat[0] != "p" or count >= max(2, needed(int(stat[1:]) / 100))
    ]
    idle = elapsed - us["mean"] / 1e6 * count
    # The last transaction is cut off at the end, and it may be as slow as the slowest.
    if params.test == "UDP_RR" and idle > max((1 - _WHOLE) * elapsed, us["max"] / 1e6):
        raise Invalid(
            f"no answer in {idle:.2f} s of {elapsed:.2f} s: netperf waits to the end for a datagram"
            " that was lost; measure again, or for a shorter time",
            texts,
            rows,
        )
    return rows

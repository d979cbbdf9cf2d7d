"""latency: time of a request and its response between two hosts, with netperf."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from perfdag.benchmark.contract import (
    AtMost,
    Benchmark,
    Failed,
    Gang,
    Identity,
    Invalid,
    Measurement,
    Metric,
    Output,
    Params,
    PositiveDuration,
    Problem,
    ShortForm,
    Size,
    Tool,
    argv_of,
    needed,
)

_DATAGRAM = 65507
"""Most bytes of payload in a UDP datagram over IPv4."""


class LatencyParams(Params):
    """The transaction and how long it is repeated."""

    test: Literal["TCP_RR", "TCP_CRR", "UDP_RR"] = Field(
        "TCP_RR",
        description="a request and its response over one TCP connection, over a new connection"
        " for each transaction, or as UDP datagrams",
    )
    duration: PositiveDuration = Field(
        10.0, le=86400, description="seconds that are measured; whole seconds"
    )
    request_size: Size = Field(1, ge=1, le=1 << 20, description="bytes of a request")
    response_size: Size = Field(1, ge=1, le=1 << 20, description="bytes of a response")
    port: int | None = Field(
        None, ge=1024, le=65535, description="port of the server; unset: a free one"
    )

    def problems(self) -> Iterator[Problem]:
        """Yield the parameters that contradict one another."""
        if self.duration % 1:
            yield Problem(
                "whole-seconds", f"duration: netperf takes whole seconds, not {self.duration:g}"
            )
        if self.test == "UDP_RR" and max(self.request_size, self.response_size) > _DATAGRAM:
            yield Problem(
                "large-datagram",
                f"request_size and response_size: a datagram has at most {_DATAGRAM} B",
            )


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


_PACKAGES = {"apt": "netperf", "brew": "netperf"}
_ADVICE = (
    "apt-get install netperf (Debian 12: in non-free), or build github.com/HewlettPackard/netperf"
)


class Latency(Benchmark[LatencyParams]):
    """Transactions a second and the latency of one, over TCP or UDP, with netperf.

    The client runs on the first host, the server on the second. One transaction is in flight. The
    percentiles are those of netperf's histogram. Its steps are 1 us up to 100 us, and 1 to 10 %
    of the value above. UDP_RR stops at a lost datagram, and the sample is invalid.

    Clock: netperf's. It starts when the client sends a request, with TCP_CRR before it connects.
    It stops when the whole response is received, with TCP_CRR when the connection is closed.
    The rate counts the transactions in `duration`.
    """

    tools = (Tool("netperf", _PACKAGES, _ADVICE), Tool("netserver", _PACKAGES, _ADVICE))
    network = "services"
    pins = ("client", "server")
    canaries = ("cpu", "loopback")
    short_forms: ClassVar[Mapping[str, ShortForm]] = {
        "test": {"TCP_RR": "TCP", "TCP_CRR": "TCP with connect", "UDP_RR": "UDP"},
        "request_size": "requests of {}",
        "response_size": "answers of {}",
        "duration": "for {}",
    }
    metrics = (
        Metric(
            "transaction_rate", "1/s", "higher", "transactions completed in a second", headline=True
        ),
        Metric(
            "latency", "s", "lower", "time of one transaction: mean, min, p50, p90, p99 and max"
        ),
    )

    def shape(self, params: LatencyParams) -> dict[str, Any]:
        return {"image": "netperf", "hosts": {"count": 2}}

    def identities(self, params: LatencyParams) -> Iterable[Identity]:
        yield AtMost(("transaction_rate", "latency"), (1,))  # one is in flight

    def seconds(self, params: LatencyParams) -> float:
        return params.duration + 0.1

    def run(self, gang: Gang, params: LatencyParams) -> list[Measurement]:
        client, server = gang.hosts
        port = params.port or server.free_port()
        # -D keeps the server in the foreground, -N without a log file.
        serve = ["netserver", "-D", "-N", _family(server.address)]
        serve += argv_of({"-L": server.address, "-p": port})
        # A server cannot have the address of a Service: the client is told the port of the data
        # connection, which otherwise goes to the server's address.
        data = (
            ["-P", f"0,{server.free_port()}"]
            if gang.shape.network.forwarded
            else ["-H", server.address]
        )
        connect = client_command(params, server.target, port, data)
        with server.serve(serve, port=port, cpus=gang.shape.hosts.cpus.server) as serving:
            finished = client.run(connect, timeout=gang.timeout, cpus=gang.shape.hosts.cpus.client)
            served = serving.stop()
        version = re.search(r"version (\S+)", client.run(["netperf", "-V"], timeout=10).stdout)
        texts = {
            "client": finished.stdout,
            "client_stderr": finished.stderr,
            "server": served.stderr,
        }
        gang.output = Output(
            {role: text for role, text in texts.items() if text},
            [serve, connect],
            f"netperf {version[1]}" if version else "netperf",
            {"server_address": server.target, "client_address": client.address},
        )
        if "Unable to start netserver" in served.stderr:
            raise Failed(f"another process answered netperf on port {port}: {served.tail()}")
        finished.check("netperf")
        return parse(gang.output.texts, params)


def _family(address: str) -> str:
    return "-6" if ":" in address else "-4"


def client_command(params: LatencyParams, target: str, port: int, data: Sequence[str]) -> list[str]:
    """Return the argv of the client; -j keeps the histogram of the latencies.

    `data` are the options of the data connection.
    """
    of_netperf = {
        _family(target): True,
        "-H": target,
        "-p": port,
        "-t": params.test,
        "-l": f"{params.duration:.0f}",
        "-j": True,
        "-P": 0,
    }
    of_test = {
        "-r": f"{params.request_size},{params.response_size}",
        "-k": ",".join((*_NUMBERS, *_HEADERS)),
    }
    return ["netperf", *argv_of(of_netperf), "--", *data, *argv_of(of_test)]


def parse(texts: Mapping[str, str], params: LatencyParams) -> list[Measurement]:
    """Return the measurements: transactions in 1/s, latencies in s.

    Raises Failed if a value is missing or no transaction ended. Raises Invalid if netperf measured
    another transaction or waited for an answer that never came.
    """
    lines = dict(re.findall(r"^([A-Z0-9_]+)=(.*)\n", texts.get("client", ""), re.M))
    try:
        values = {name: float(lines[name]) for name in _NUMBERS}
        used = [lines[name] for name in _HEADERS]
    except (KeyError, ValueError) as error:
        raise Failed(f"netperf's output lacks {error}") from error
    requested = [
        "Trans/s",
        params.test[:3],
        "Connect|Send|Recv" if params.test == "TCP_CRR" else "Send|Recv",
        *(getattr(params, name) for name in _USED.values()),
    ]
    measured = [*used, *(values[name] for name in _USED)]
    if measured != requested:
        raise Invalid(f"{requested} was requested, netperf measured {measured}")
    rate = values["THROUGHPUT"]
    elapsed = values["ELAPSED_TIME"]
    if elapsed < _WHOLE * params.duration:
        raise Failed(f"netperf ended after {elapsed:g} s of {params.duration:g} s")
    if not 1 <= rate * elapsed < math.inf:
        raise Failed("netperf completed no transaction")
    count = round(rate * elapsed)
    us = {stat: values[name] for stat, name in _STATS.items()}
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
            measurements=rows,
        )
    return rows

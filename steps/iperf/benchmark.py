"""iperf: throughput between two hosts with iperf3 (or iperf2)."""

import contextlib
import re
from typing import Any, ClassVar

from perfdag.benchmark.contract import Gang, Metric, Output, Params, Tool
from perfdag.hosts.base import CommandResult, Host
from perfdag.hosts.processes import Proto
from perfdag.outcome import Failed, Measurement
from perfdag.shape import Cpus, Shape
from perfdag.steps import two_hosts
from perfdag.steps.iperf import iperf2, iperf3
from perfdag.steps.iperf.params import IperfParams

_MANAGERS = ("apt", "dnf", "zypper", "pacman", "brew")
IPERF3 = Tool("iperf3", dict.fromkeys(_MANAGERS, "iperf3"))
IPERF2 = Tool("iperf", dict.fromkeys(_MANAGERS, "iperf"))


class Iperf(two_hosts.TwoHostBenchmark[IperfParams]):
    """Throughput of TCP or UDP streams between two hosts, with iperf3 or iperf2.

    The client runs on the first host, the server on the second. Without `reverse` the client
    sends. `throughput` is what the receiver got, summed over all streams, and over both
    directions with `bidirectional`. An iperf3 older than 3.16 runs all streams on one core, so
    its version is part of the series. `cpu_bound` is 1 if a side used at least 95 % of the cores
    that it can use. Those are its threads, or the cores it may run on if these are fewer. On one
    machine both sides count together.

    Clock: iperf's own. It starts when all streams are connected and `omit` is over. It stops at
    the receiver's last byte in `duration`. Starting the server, connecting and ending are outside.
    """

    name = "iperf"
    image = "iperf"
    tools = (IPERF3,)
    Params: ClassVar[type[Params]] = IperfParams
    coords = ("direction",)
    metrics = (
        Metric(
            "throughput",
            "bit/s",
            "higher",
            "payload received, all streams and directions",
            headline=True,
            nominal=True,
        ),
        Metric(
            "direction_throughput",
            "bit/s",
            "higher",
            "payload received in one direction of a bidirectional test",
        ),
        Metric(
            "stream_throughput", "bit/s", "none", "payload received by one stream in one direction"
        ),
        Metric("bytes", "B", "none", "payload received: all streams and directions, and by stream"),
        Metric(
            "second_throughput",
            "bit/s",
            "none",
            "payload received in each second of the run, all streams and directions",
        ),
        Metric("sent_throughput", "bit/s", "none", "payload handed to the sender's socket"),
        Metric("retransmits", "1", "lower", "TCP segments sent again"),
        Metric("jitter", "s", "lower", "UDP interarrival jitter (RFC 1889), mean over the streams"),
        Metric("lost_fraction", "1", "lower", "UDP datagrams lost of those sent"),
        Metric("out_of_order", "1", "lower", "UDP datagrams received out of order"),
        Metric(
            "sender_cpu", "1", "lower", "cores used by the sending process; not reported by iperf2"
        ),
        Metric(
            "receiver_cpu",
            "1",
            "lower",
            "cores used by the receiving process; not reported by iperf2",
        ),
        Metric(
            "rtt", "s", "lower", "smoothed round-trip time of TCP at the sender, over the streams"
        ),
        Metric(
            "congestion_window",
            "B",
            "none",
            "TCP congestion window at the sender, over the streams and seconds (iperf2)",
        ),
        Metric(
            "cpu_bound",
            "1",
            "none",
            "1: a process used all its cores, so the network may do more; else 0;"
            " not reported by iperf2",
        ),
    )

    def check(self, params: IperfParams, shape: Shape) -> list[str]:
        return two_hosts.problems(self.name, shape, params.port)

    def directions(self, params: IperfParams) -> int:
        return 2 if params.bidirectional else 1

    def seconds(self, params: IperfParams) -> float:
        return params.duration + params.omit + 0.1

    def least_seconds(self, params: IperfParams) -> float:
        return params.duration + params.omit

    def missing(self, gang: Gang, params: IperfParams) -> list[Tool]:
        tool = IPERF3 if params.implementation == "iperf3" else IPERF2
        return [tool] if any(host.which(tool.program) is None for host in gang.hosts[:2]) else []

    def run(self, gang: Gang, params: IperfParams) -> Output:
        client, server = self.hosts(gang)
        cpus = gang.shape.hosts.cpus
        # iperf3 negotiates a UDP test over TCP, so its server always listens on TCP.
        proto: Proto = params.protocol if params.implementation == "iperf2" else "tcp"
        serving, port = two_hosts.serve(
            server,
            lambda port: commands(params, server.address, port)[0],
            port=params.port,
            proto=proto,
            cpus=cpus.server,
        )
        serve, connect = commands(params, server.address, port, server.target)
        with serving:
            client_end = client.run(connect, timeout=gang.timeout, cpus=cpus.client)
            # The server ends after one test, but never if the client failed.
            server_end = (
                serving.wait(5.0)
                if client_end.code == 0 and not _refused(client_end)
                else serving.stop()
            )
        texts = {"client": client_end.stdout, "server": server_end.stdout}
        texts |= {
            f"{role}_stderr": end.stderr
            for role, end in (("client", client_end), ("server", server_end))
            if end.stderr
        }
        if client_end.timed_out or (client_end.code != 0 and not _refused(client_end)):
            client_end.check(params.implementation)
        if not _refused(client_end) and server_end.code != 0:
            # Another process answered the client on this port.
            error = re.search(r'"error":\s*"(.*)"', server_end.stdout)
            reason = error[1] if error else server_end.tail()
            raise Failed(
                f"{params.implementation}'s server exited {server_end.code} although the client"
                f" ended well: {reason}",
                texts,
            )
        facts = {
            "server_address": server.target,
            "client_address": client.address,
            "cores": _cores(client, server, cpus),
        }
        output = Output(texts, [serve, connect], facts=facts)
        if params.implementation == "iperf2":
            version = client.run(["iperf", "-v"], timeout=10)
            texts["version"] = version.stdout + version.stderr
            output.tool = iperf2.version(texts["version"])
        else:
            output.tool = "iperf3 " + ".".join(
                map(str, iperf3.version(iperf3.read(client_end.stdout)))
            )
        self._note_cpu_bound(output, params)
        return output

    def _note_cpu_bound(self, output: Output, params: IperfParams) -> None:
        """Describe a side that used all its cores. Leave a broken output to parse()."""
        if params.implementation == "iperf2":
            return
        with contextlib.suppress(Failed):
            report = iperf3.read(output.texts["client"])
            for side in iperf3.sides(report, params, output.facts["cores"]):
                if side.bound:
                    load = 100 * side.used / side.limit
                    output.facts["cpu_bound"] = (
                        f"{side.name}: busy for {load:.0f} % of {side.limit_text}"
                    )

    def parse(self, output: Output, params: IperfParams) -> list[Measurement]:
        if params.implementation == "iperf2":
            iperf2.verify(params, output.texts)
            return iperf2.parse(output, params)
        report = iperf3.read(output.texts.get("client", ""))
        if "error" in report:
            iperf3.give_up(str(report["error"]), output.texts)
        try:
            iperf3.verify(report, params, output.texts)
            return iperf3.measurements(
                report, params, output.texts, output.facts.get("cores") or {}
            )
        except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
            raise Failed(
                f"iperf3's report lacks {error}: not the JSON of a whole test", output.texts
            ) from error

    def series(self, output: Output) -> str:
        return output.tool


def _cores(client: Host, server: Host, cpus: Cpus) -> dict[str, Any]:
    """Count the cores that each side may run on. `shared` marks that both run on the same ones."""
    cores: dict[str, Any] = {}
    for role, host, pins in (("client", client, cpus.client), ("server", server, cpus.server)):
        finished = host.run(["nproc"], timeout=10, cpus=pins)
        if finished.code == 0 and finished.stdout.strip().isdigit():
            cores[role] = int(finished.stdout)
    same = client.name == server.name and cpus.client == cpus.server
    return cores | {"shared": True} if same and len(cores) == 2 else cores


def commands(
    params: IperfParams, address: str, port: int, target: str | None = None
) -> tuple[list[str], list[str]]:
    """Return the argv of the server and of the client (options: iperf3(1), iperf(1)).

    The server binds to `address`, and the client connects to `target`, if it differs.
    """
    target = target or address
    if params.implementation == "iperf2":
        return _iperf2_commands(params, address, port, target)
    client = [
        "iperf3",
        "--client",
        target,
        "--port",
        str(port),
        "--json",
        "--connect-timeout",
        "10000",
    ]
    client += ["--time", f"{params.duration:.0f}", "--parallel", str(params.streams)]
    options: list[tuple[str, object]] = [
        ("--omit", f"{params.omit:.0f}" if params.omit else None),
        ("--bitrate", None if params.rate is None else f"{params.rate:.0f}"),
        ("--length", params.length),
        ("--set-mss", params.mss),
        ("--window", params.window),
        ("--congestion", params.congestion),
    ]
    client += [str(part) for flag, value in options if value is not None for part in (flag, value)]
    flags = [
        ("--udp", params.protocol == "udp"),
        ("--reverse", params.reverse),
        ("--bidir", params.bidirectional),
    ]
    client += [flag for flag, wanted in [*flags, ("--zerocopy", params.zerocopy)] if wanted]
    client += params.extra_args
    server = ["iperf3", "--server", "--bind", address, "--one-off", "--port", str(port), "--json"]
    return server, client


def _iperf2_commands(
    params: IperfParams, address: str, port: int, target: str
) -> tuple[list[str], list[str]]:
    # -e reports the sending side and its losses, -f b whole bit/s.
    common = ["-p", str(port), "-f", "b", "-e"]
    # -i 1 adds a line for each second; in a shorter test it would repeat the total.
    common += ["-i", "1"] if params.duration >= 2 else []
    common += ["-u"] if params.protocol == "udp" else []
    common += ["-V"] if ":" in address else []
    common += ["-w", str(params.window)] if params.window is not None else []
    client = [
        "iperf",
        "-c",
        target,
        *common,
        "-t",
        f"{params.duration:g}",
        "-P",
        str(params.streams),
    ]
    client += ["-b", f"{params.rate:.0f}"] if params.rate else []
    client += ["-l", str(params.length)] if params.length is not None else []
    client += ["-M", str(params.mss)] if params.mss is not None else []
    # Each side sets the congestion control of what it sends.
    congestion = ["-Z", params.congestion] if params.congestion is not None else []
    client += ["-R"] if params.reverse else congestion
    client += ["--full-duplex"] if params.bidirectional else []
    client += params.extra_args
    return ["iperf", "-s", "-B", address, *common, "-P", str(params.streams), *congestion], client


def _refused(finished: CommandResult) -> bool:
    """Whether iperf3 reports an error in its JSON; its exit code is 0 or 1, by version."""
    return '"error"' in finished.stdout[-2000:]

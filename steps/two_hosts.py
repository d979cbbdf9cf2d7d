"""The base of benchmarks between a client and a server: two hosts, a server on a free port."""

from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar

from perfdag.benchmark.contract import Benchmark, Gang, Network, Params
from perfdag.hosts.base import Host, Server
from perfdag.outcome import Failed
from perfdag.shape import Shape

P = TypeVar("P", bound=Params)


class TwoHostBenchmark(Benchmark[P], Generic[P]):
    """A benchmark between a client on the first host and a server on the second.

    Its params may have the `port` of the server.
    """

    network: ClassVar[Network] = "services"
    canaries: ClassVar[tuple[str, ...]] = ("cpu", "loopback")
    pins: ClassVar[tuple[str, ...]] = ("client", "server")

    def shape(self, params: P) -> dict[str, Any]:
        return {"hosts": {"count": 2}}

    def check(self, params: P, shape: Shape) -> list[str]:
        count = shape.hosts.count
        if getattr(params, "port", None) and shape.network.forwarded:
            return ["port: a Service forwards ports of its own; leave port out"]
        if count < 2:
            return [f"hosts.count is {count}; {self.name} needs 2 (a client and a server)"]
        if count > 2:
            return [
                f"hosts.count is {count}; {self.name} measures 2 hosts,"
                " or set hosts.pairs (all, ring, `random N`)"
            ]
        return []

    def hosts(self, gang: Gang) -> tuple[Host, Host]:
        """Return client and server. Raises Failed: a pair must not stand for a larger gang."""
        if len(gang.hosts) != 2:
            count = len(gang.hosts)
            raise Failed(f"{self.name} measures 2 hosts, not {count}; set hosts.count to 2")
        return gang.hosts[0], gang.hosts[1]


def serve(
    host: Host, argv: Sequence[str], option: str, port: int | None, cpus: str | None
) -> tuple[Server, list[str], int]:
    """Start a server that takes its port with `option`; return it with its command and its port.

    Try another free port if a process takes it first, unless `port` is set. Raises Failed.
    """
    for attempt in range(3):
        chosen = port or host.free_port()
        command = [*argv, option, str(chosen)]
        try:
            return host.serve(command, port=chosen, cpus=cpus), command, chosen
        except Failed:
            if port or attempt == 2:
                raise
    raise AssertionError("not reached")

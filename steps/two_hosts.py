"""The base of benchmarks between a client and a server: two hosts, a server on a free port."""

from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

from perfdag.benchmark.contract import Benchmark, Gang, Network, Params
from perfdag.hosts.base import Host, Server
from perfdag.outcome import Failed
from perfdag.shape import Shape

P = TypeVar("P", bound=Params)


class TwoHostBenchmark(Benchmark[P], Generic[P]):
    """A benchmark between a client on the first host and a server on the second."""

    network: ClassVar[Network] = "services"
    canaries: ClassVar[tuple[str, ...]] = ("cpu", "loopback")
    pins: ClassVar[tuple[str, ...]] = ("client", "server")

    def shape(self, params: P) -> dict[str, Any]:
        return {"hosts": {"count": 2}}

    def hosts(self, gang: Gang) -> tuple[Host, Host]:
        """Return client and server. Raises Failed: a pair must not stand for a larger gang."""
        if len(gang.hosts) != 2:
            count = len(gang.hosts)
            raise Failed(f"{self.name} measures 2 hosts, not {count}; set hosts.count to 2")
        return gang.hosts[0], gang.hosts[1]


def problems(name: str, shape: Shape, port: int | None = None) -> list[str]:
    """Return why a shape has not one client and one server on this port, or an empty list."""
    if port and shape.network.forwarded:
        return ["port: a Service forwards ports of its own; leave port out"]
    count = shape.hosts.count
    if count < 2:
        return [f"hosts.count is {count}; {name} needs 2 (a client and a server)"]
    if count > 2:
        return [
            f"hosts.count is {count}; {name} measures 2 hosts,"
            " or set hosts.pairs (all, ring, `random N`)"
        ]
    return []


def serve(
    host: Host,
    argv_on: Callable[[int], list[str]],
    *,
    port: int | None,
    cpus: str | None,
) -> tuple[Server, int]:
    """Start the server whose argv is `argv_on(port)`; return it with its port.

    Try another free port if a process takes it first, unless `port` is set. Raises Failed.
    """
    for attempt in range(3):
        chosen = port or host.free_port()
        try:
            return host.serve(argv_on(chosen), port=chosen, cpus=cpus), chosen
        except Failed:
            if port or attempt == 2:
                raise
    raise AssertionError("not reached")

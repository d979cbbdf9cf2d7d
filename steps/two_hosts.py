"""The base of benchmarks between a client and a server: two hosts."""

from typing import Any, ClassVar, Generic, TypeVar

from perfdag.benchmark.contract import Benchmark, Network, Params, broken
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
        return broken(
            (
                getattr(params, "port", None) and shape.network.forwarded,
                "port: a Service forwards ports of its own; leave port out",
            ),
            (
                shape.hosts.count != 2,
                f"hosts.count is {shape.hosts.count}; {self.name} measures 2 hosts, a client and a"
                " server, or more with hosts.pairs (all, ring, `random N`)",
            ),
        )

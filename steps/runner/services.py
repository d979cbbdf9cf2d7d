"""Services of a gang: how clients reach its hosts where `network.path` is one of a Service."""

import contextlib

import orjson

from perfdag.hosts.forwarding import PROGRAM, Forwarding
from perfdag.outcome import Failed
from perfdag.shape import Shape
from perfdag.steps.runner.batch_objects import services_key
from perfdag.steps.runner.gather import CONNECT_PATIENCE, GangUnavailable, Hosts, by_rank
from perfdag.steps.runner.pod_context import PodContext
from perfdag.store.base import Store


def forward(
    context: PodContext, store: Store, shape: Shape, number: int, gang: Hosts, side: int = 0
) -> None:
    """Set how clients reach each host of a gang, and wait until the Services forward.

    Raises GangUnavailable, StoreError.
    """
    if not shape.network.forwarded:
        return
    ranked, first = by_rank(gang.pods), side * shape.hosts.count
    for rank, service in orjson.loads(store.get(services_key(context, number))).items():
        if 0 <= int(rank) - first < len(gang.hosts):
            node = ranked[int(rank)].node_address
            address = node if shape.network.path == "nodeport" else service["address"]
            host = gang.hosts[int(rank) - first]
            host.forwarding = Forwarding(str(address), service["ports"])
    reach = [(host, host.forwarding) for host in gang.hosts if host.forwarding]
    with contextlib.ExitStack() as listeners:
        for host, each in reach:
            argv = [*PROGRAM, "listen", host.address, str(each.ports[0])]
            try:
                listeners.enter_context(host.serve(argv, port=each.ports[0]))
            except Failed as error:
                raise GangUnavailable(str(error)) from None
        for client in gang.hosts:
            others = [each for host, each in reach if host is not client]
            targets = [text for each in others for text in (each.address, str(each.ports[0]))]
            argv = [*PROGRAM, "connect", str(CONNECT_PATIENCE), *targets]
            ended = client.run(argv, timeout=2 * CONNECT_PATIENCE)
            if ended.code:
                raise GangUnavailable(
                    f"network.path: {shape.network.path}: {client.name} reaches no server at "
                    f"{ended.tail()}; does a NetworkPolicy refuse it?"
                )

"""The hosts that a loop measures on: those of a machine, or of a gang of pods."""

from collections.abc import Mapping, Sequence
from typing import Any

from perfdag.hosts.base import Host
from perfdag.hosts.local import LocalHost
from perfdag.shape import ACROSS, Resources, Shape
from perfdag.suite.points import Pair

NO_ZONES: Mapping[str, str] = {}


class GangLost(Exception):
    """A host is gone: the sample under way is not stored, and another gang may measure it."""


class LocalPool:
    """This machine, once for each host of a shape, at its loopback address.

    Another pool of hosts overrides what differs.
    """

    volume: str | None = None
    """The folder where the volume of the shape is mounted."""
    earlier_attempts = 0
    """Attempts at the batch before this one."""
    zones = NO_ZONES
    """Zones by node name, if hosts are numbered by zone."""

    def __init__(
        self, where: Mapping[str, Any] | None = None, facts: Mapping[str, Any] | None = None
    ) -> None:
        self.where, self.facts = dict(where or {}), dict(facts or {})
        """Provenance (image digest, Workflow) and facts of every sample."""

    def hosts_for(self, shape: Shape) -> Sequence[Host]:
        """Return the hosts for a shape."""
        address = "::1" if shape.network.family == "ipv6" else "127.0.0.1"
        return [LocalHost(address) for _ in range(shape.hosts.count)]

    def refuses(self, shape: Shape) -> str | None:
        """Return why the hosts cannot provide a shape, or None."""
        return needs_cluster(shape)

    def misplacement(self, shape: Shape, hosts: Sequence[Host]) -> str | None:
        """Return why the hosts break the placement of the shape, or None."""
        return None

    def advice(self, shape: Shape, error: str) -> str | None:
        """Return what to do about the error of a sample, or None."""
        return None

    def lost(self) -> str | None:
        """Return why the failure of a sample does not count, or None."""
        return None


def needs_cluster(shape: Shape) -> str | None:
    """Return why one machine cannot provide a shape, as the reason of a skipped sample, or None."""
    network, hosts = shape.network, shape.hosts
    requests = {
        "network.host: false (a pod network)": network.host is False,
        f"network.path: {network.path}": network.forwarded,
        "network.name (Multus)": network.name is not None,
        "network.mtu": network.mtu is not None,
        # Traffic of a machine to itself passes none of its interfaces, whatever the address.
        "network.interface": network.interface not in (None, "lo") and hosts.count > 1,
        "hosts.placement: spread": hosts.placement == "spread" and hosts.count > 1,
        "hosts.exclusive": hosts.exclusive,
        "hosts.roles": hosts.roles is not None,
        "hosts.pairs: across-zones": hosts.pairs == ACROSS,
        "resources": shape.resources != Resources() or bool(shape.hugepages),
        "a volume": shape.volume is not None,
        "node_selector or zones": bool(shape.node_selector or shape.zones),
        # `rdma` is a permission of a pod. On a machine the benchmark itself reports what is absent.
        "privileges": bool(set(shape.privileges) - {"rdma", "block"}),
        "scheduler: volcano": shape.scheduler != "default",
        "runtime_class": shape.runtime_class is not None,
    }
    reasons = [name for name, requested in requests.items() if requested]
    return f"{', '.join(reasons)}: needs a cluster (perfdag submit)" if reasons else None


def by_number(hosts: Sequence[Host], zones: Mapping[str, str] = NO_ZONES) -> list[Host]:
    """Return hosts in the order of their numbers in pairs.

    That is the order of the zones of their nodes, where `zones` has them, then of the names.
    """
    return sorted(hosts, key=lambda host: (zones.get(host.name, ""), host.name))


def two_of(hosts: Sequence[Host], pair: Pair, zones: Mapping[str, str] = NO_ZONES) -> list[Host]:
    """Return the two hosts of a pair."""
    ranked = by_number(hosts, zones)
    return [ranked[pair.first], ranked[pair.second]]

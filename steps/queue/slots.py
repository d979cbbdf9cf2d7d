"""How many connections a frontend has, and how they are shared where they are scarce."""

from __future__ import annotations

import contextlib
import resource
import socket
from collections import Counter
from dataclasses import dataclass, field

RESERVE = 384
"""Descriptors of the process that are no peers: the metrics port's connections, listeners, files."""
SCARCE = 0.75
"""Share of all connections beyond which no address may have more than its own share."""


@dataclass(slots=True)
class Slots:
    """``total`` connections at once. Where more than three quarters are taken, an address that holds ``share`` of all gets
    no more: a whole cluster behind one address has room, and one address alone never takes all. An IPv6 address counts
    with its neighbours of the same /64."""

    total: int
    share: float
    taken: int = 0
    hosts: Counter[str | bytes] = field(default_factory=Counter)

    def take(self, host: str) -> str:
        """Count a connection; returns why it has to be refused, empty where there is room. ``leave`` in either case."""
        key = _network(host)
        scarce = self.taken >= SCARCE * self.total and self.hosts[key] >= self.share * self.total
        self.taken += 1
        self.hosts[key] += 1
        if self.taken > self.total:
            return f"too many connections ({self.total})"
        return (
            f"too many connections from one address ({self.hosts[key] - 1} of {self.total})"
            if scarce and self.share < 1
            else ""
        )

    def leave(self, host: str) -> None:
        """Count a connection that has ended."""
        key = _network(host)
        self.taken -= 1
        self.hosts[key] -= 1
        if not self.hosts[key]:
            del self.hosts[key]


def _network(host: str) -> str | bytes:
    if ":" not in host:
        return host
    return socket.inet_pton(socket.AF_INET6, host.partition("%")[0])[:8]


def raise_limit(peers: int) -> None:
    """Let this process open as many files as so many peers need, as far as its hard limit goes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = peers + RESERVE if hard == resource.RLIM_INFINITY else min(peers + RESERVE, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def admitted(peers: int) -> int:
    """As many of so many peers as this process may open files for."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        peers
        if soft == resource.RLIM_INFINITY
        else max(1, min(peers, soft - min(RESERVE, soft // 2)))
    )

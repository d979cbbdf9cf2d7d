"""The pairs of hosts of a gang, and the rounds that measure them.

A pair of hosts of one gang is a point of its own, so it is stored, retried and resumed alone. The
pairs of one shape share the gang's pods. Hosts are numbered in the order of their nodes' names, so
a pair keeps its number while the nodes stay the same; `across-zones` numbers them in the order of
their zones.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from perfdag.shape import ACROSS

ALL_PAIRS = ("all", ACROSS)
Round = list[tuple[int, int]]
HUNT_MEASUREMENTS = 28
"""Measurements one after the other in a hunt: ten rounds, and one suspect beside the control."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two hosts of a gang, `first` below `second`.

    `of` is the id that all pairs of the same params and shape share, `slot` the position within the
    round.
    """

    first: int
    second: int
    round: int
    slot: int
    of: str
    parallel: int = 1

    @property
    def name(self) -> str:
        """The name of the pair, for example `0-3`."""
        return f"{self.first}-{self.second}"


def rounds(kind: str, hosts: int, seed: int = 0) -> list[Round]:
    """Return the pairs of `hosts` hosts in rounds. No host is twice in a round.

    `hosts` is at least 2. `kind` is `all`, `across-zones` (the same), `ring` or `random N` (N
    distinct pairs). `all` is the 1-factorisation of the complete graph by the circle method:
    hosts - 1 rounds of hosts / 2 pairs. If the number of hosts is odd, there is one round more and
    one host is idle in each.
    `random N` takes the first N of these pairs after a shuffle by `seed`, so it covers hosts
    evenly; N is at most the number of all pairs.
    """
    if kind in ALL_PAIRS:
        return list(_circle(list(range(hosts))))
    if kind == "ring":
        return _ring(hosts)
    remaining = random_pairs(kind)
    shuffled = list(range(hosts))
    random.Random(f"{seed}:pairs").shuffle(shuffled)
    selected: list[Round] = []
    for pairs in _circle(shuffled):
        selected.append(pairs[:remaining])
        remaining -= len(selected[-1])
        if not remaining:
            break
    return selected


def random_pairs(kind: str) -> int:
    """Return the N of `random N`, 0 for another kind of pairs."""
    return int(kind.removeprefix("random ")) if kind.startswith("random ") else 0


def _circle(hosts: list[int]) -> Iterator[Round]:
    """Yield rounds in which every host meets every other host once, as players of a tournament.

    The hosts sit around a table, each opposite another. The first seat is fixed and the others
    rotate. With an odd number of hosts one seat is empty, and the host opposite is idle.
    """
    seats: list[int | None] = [*hosts]
    if len(hosts) % 2:
        seats.append(None)
    half = len(seats) // 2
    for _ in range(len(seats) - 1):
        opposite = zip(seats[:half], reversed(seats[half:]), strict=True)
        yield sorted((min(a, b), max(a, b)) for a, b in opposite if a is not None and b is not None)
        seats = [seats[0], seats[-1], *seats[1:-1]]


def _ring(hosts: int) -> list[Round]:
    if hosts == 2:
        return [[(0, 1)]]
    neighbours = [(host, host + 1) for host in range(hosts - 1)]
    last = (0, hosts - 1)
    # A host is in two pairs. With an odd number of hosts two rounds are too few: the last pair
    # would meet one of its hosts in either.
    if hosts % 2:
        return [neighbours[::2], neighbours[1::2], [last]]
    return [neighbours[::2], [*neighbours[1::2], last]]

"""Pairs of the hosts of one gang: which are measured, in rounds of disjoint pairs, and which of them at once.

A pair is a point of its own, so it is stored, retried and resumed alone; the pairs of one shape share the gang's pods. Hosts are numbered
in the order of their nodes' names, so a pair keeps its number while the nodes stay the same.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfdag.points import Point

Round = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two hosts of a gang, `first` below `second`. `of` is the id that all pairs of one question share, `slot` the place in its round."""

    first: int
    second: int
    round: int
    slot: int
    of: str
    parallel: int = 1

    @property
    def name(self) -> str:
        """`0-3`."""
        return f"{self.first}-{self.second}"


def rounds(kind: str, hosts: int, seed: int = 0) -> list[Round]:
    """The pairs of `hosts` hosts in rounds in which no host is twice. `kind` is `all`, `ring` or `random N` (N distinct pairs).

    `all` is the 1-factorisation of the complete graph by the circle method (hosts - 1 rounds of hosts / 2 pairs; one round more and a host
    idle in each where their number is odd). `random N` takes the first N pairs of it after a shuffle by `seed`, so hosts are covered evenly.
    Raises ValueError where there are fewer pairs than asked for.
    """
    if hosts < 2:
        raise ValueError(f"pairs need 2 hosts or more, not {hosts}")
    if kind == "all":
        return list(_circle(list(range(hosts))))
    if kind == "ring":
        return _ring(hosts)
    wanted, there = int(kind.removeprefix("random ")), hosts * (hosts - 1) // 2
    if wanted > there:
        raise ValueError(f"{wanted:,} random pairs were asked for, {hosts} hosts have {there:,}")
    shuffled = list(range(hosts))
    random.Random(f"{seed}:pairs").shuffle(shuffled)
    made: list[Round] = []
    for each in _circle(shuffled):
        made.append(each[:wanted])
        wanted -= len(made[-1])
        if not wanted:
            break
    return made


def _circle(hosts: list[int]) -> Iterator[Round]:
    # one host stands still and the others go round it; where their number is odd nobody stands there, and who faces nobody rests
    seats: list[int | None] = [*hosts, *([None] if len(hosts) % 2 else [])]
    for _ in range(len(seats) - 1):
        facing = zip(seats[: len(seats) // 2], reversed(seats[len(seats) // 2 :]), strict=True)
        yield sorted((min(a, b), max(a, b)) for a, b in facing if a is not None and b is not None)
        seats = [seats[0], seats[-1], *seats[1:-1]]


def _ring(hosts: int) -> list[Round]:
    if hosts == 2:
        return [[(0, 1)]]
    around = [(min(i, (i + 1) % hosts), max(i, (i + 1) % hosts)) for i in range(hosts)]
    even, odd = around[0 : hosts - hosts % 2 : 2], around[1::2]
    return [even, odd, around[-1:]] if hosts % 2 else [even, odd]


def made(kind: str, hosts: int, seed: int, of: str, parallel: int) -> Iterator[Pair]:
    """The pairs of one question, round by round. Raises ValueError as `rounds` does."""
    for number, each in enumerate(rounds(kind, hosts, seed)):
        for slot, (first, second) in enumerate(each):
            yield Pair(first, second, number, slot, of, parallel)


def together(
    points: Sequence["Point"], order: Sequence[tuple[int, int]], positions: Iterable[int]
) -> list[list[int]]:
    """Positions of the order in groups that are measured at once: one each, but up to `parallel_pairs` of a round of pairs."""
    groups: list[list[int]] = []
    last: object = None
    for position in positions:
        index, repetition = order[position]
        pair = points[index].pair
        key = (
            (pair.of, repetition, pair.round, pair.slot // pair.parallel)
            if pair and pair.parallel > 1
            else None
        )
        if key is not None and key == last:
            groups[-1].append(position)
        else:
            groups.append([position])
        last = key
    return groups

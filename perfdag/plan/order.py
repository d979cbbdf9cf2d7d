"""The order of samples: by round, shuffled from a seed, so that drift affects all points alike."""

import random
from collections.abc import Iterable, Sequence

from perfdag.suite.point import Point


def order(points: list[Point], seed: int, warmup: int = 0) -> list[tuple[int, int]]:
    """Return (point index, repetition) of every sample in the order of measuring.

    Repetitions count from 1; warm-up rounds are -1, -2 and so on. The shuffle of a round is seeded
    from `seed` and the round, so the order of one round does not depend on the number of rounds.
    Host pairs that form one round of disjoint pairs stay together.
    """
    units: dict[object, list[int]] = {}
    for index, point in enumerate(points):
        units.setdefault((point.pair.of, point.pair.round) if point.pair else index, []).append(
            index
        )
    samples: list[tuple[int, int]] = []
    rounds = max((point.rounds for point in points), default=0)
    for repetition in [*range(-1, -warmup - 1, -1), *range(1, rounds + 1)]:
        due = [unit for unit in units.values() if points[unit[0]].rounds >= repetition]
        random.Random(f"{seed}:{repetition}").shuffle(due)
        samples += [(index, repetition) for unit in due for index in unit]
    return samples


def concurrent_groups(
    points: Sequence[Point], order: Sequence[tuple[int, int]], positions: Iterable[int]
) -> list[list[int]]:
    """Group positions of the order that are measured at the same time.

    A group has one position, or up to `parallel_pairs` positions of one round of host pairs.
    """
    groups: list[list[int]] = []
    previous: object = None
    for position in positions:
        index, repetition = order[position]
        pair = points[index].pair
        key = (
            (pair.of, repetition, pair.round, pair.slot // pair.parallel)
            if pair and pair.parallel > 1
            else None
        )
        if key is not None and key == previous:
            groups[-1].append(position)
        else:
            groups.append([position])
        previous = key
    return groups

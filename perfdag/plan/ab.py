"""Plans of a duet: two variants of a suite measured in turn, in ABBA blocks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfdag.plan.plan import Batch, Plan, make_plan, new_run_id, order, place_hosts
from perfdag.shape import SHAPE_KEYS, Problem, digest
from perfdag.stats.design import FEWEST_BLOCKS, MOST_BLOCKS, blocks
from perfdag.suite.document import BadDocument
from perfdag.suite.model import LoadedSuite

A_BLOCK = 2
"""Samples of each variant in a block (ABBA)."""


@dataclass(frozen=True)
class Duet:
    """Plans of the two variants. Point i of one is the counterpart of point i of the other.

    `blocks` holds the order ABBA or BAAB of each block.
    """

    a: Plan
    b: Plan
    blocks: list[str]

    def turns(self, batch: int | None = None) -> list[tuple[str, list[int]]]:
        """Return (variant, positions in its plan) in the order of measurement.

        Each variant's warm-up rounds come first. With `batch`, only samples of this batch.
        """
        plans, seen = {"A": self.a, "B": self.b}, {"A": 0, "B": 0}
        turns = [("A", 0), ("B", 0)]
        for variant in "".join(self.blocks):
            seen[variant] += 1
            turns.append((variant, seen[variant]))
        return [
            (variant, _positions(plans[variant], repetition, batch))
            for variant, repetition in turns
        ]


def prepare_duet(
    a: LoadedSuite,
    b: LoadedSuite,
    labels: tuple[str, str],
    count: int,
    only: Sequence[str] = (),
    limit: float | None = None,
) -> Duet:
    """Plan both variants with two samples of each in every block. Raises BadDocument.

    `limit` is what B may cost. The order follows the `seed` of the suite where it has one,
    otherwise the run id, so that no two duets share an order by chance.
    """
    if not FEWEST_BLOCKS <= count <= MOST_BLOCKS:
        text = f"{FEWEST_BLOCKS} to {MOST_BLOCKS}; fewer cannot reach p = 1 %"
        raise BadDocument([Problem("many-blocks", text, str(count), "--blocks", 1)])
    first = new_run_id()
    seed = a.suite.seed if "seed" in a.suite.model_fields_set else int(digest(first)[:8], 16)
    turns = blocks(count, seed)
    plans = []
    for loaded, variant, other in ((a, "A", "b"), (b, "B", "a")):
        plan = make_plan(
            loaded,
            only=only,
            trigger="ab",
            variant=variant,
            run_id=f"{first[:-1]}{variant.lower()}",
        )
        points = [replace(point, repetitions=count * A_BLOCK, until=None) for point in plan.points]
        options = replace(
            plan.options, words=labels, other=f"{first[:-1]}{other}", blocks=turns, within=limit
        )
        ordered = order(points, seed, loaded.suite.warmup)
        plans.append(
            replace(plan, seed=seed, points=points, order=ordered, batches=[], options=options)
        )
    _check(plans[0], plans[1])
    return Duet(plans[0], plans[1], turns)


def on_cluster(duet: Duet) -> Duet:
    """Return the duet with batches, whose pods measure both variants.

    Points of one entry and shape share their pods for all blocks. Raises BadDocument if the
    variants differ in their shapes.
    """
    a, b = place_hosts(duet.a), place_hosts(duet.b)
    for left, right in zip(a.points, b.points, strict=True):
        mine, other = a.shapes[left.shape], b.shapes[right.shape]
        if mine != other:
            keys = ", ".join(
                key for key in sorted(SHAPE_KEYS) if getattr(mine, key) != getattr(other, key)
            )
            text = (
                f"entry {left.entry}: A and B differ in {keys}, but the same pods measure both; "
                "measure them as two runs, and `perfdag compare` them"
            )
            raise BadDocument([Problem("other-shape", text, "", "ab", 1)])
    points = [
        replace(point, shape=other.shape) for point, other in zip(b.points, a.points, strict=True)
    ]
    plans = []
    for plan in (a, replace(b, points=points, shapes=a.shapes)):
        samples: dict[tuple[int, str], list[int]] = {}
        for position in range(len(plan.order)):
            point = plan.point_at(position)
            samples.setdefault((point.shape, point.entry), []).append(position)
        batches = [
            Batch(shape, mine, sum(plan.point_at(position).seconds for position in mine))
            for (shape, _), mine in sorted(samples.items())
        ]
        options = replace(plan.options, cluster=True)
        plans.append(replace(plan, batches=batches, options=options))
    return replace(duet, a=plans[0], b=plans[1])


def stored_duet(a: Plan, b: Plan) -> Duet:
    """Return the duet of two stored plans."""
    first, second = (a, b) if a.variant == "A" else (b, a)
    return Duet(first, second, list(a.options.blocks))


def _check(a: Plan, b: Plan) -> None:
    left, right = (
        [(p.entry, p.benchmark) for p in a.points],
        [(p.entry, p.benchmark) for p in b.points],
    )
    if left != right:
        entries = sorted({entry for entry, _ in left} ^ {entry for entry, _ in right})
        text = f"{len(left)} points in A and {len(right)} in B must match, entry by entry"
        raise BadDocument([Problem("other-points", text, ", ".join(entries), "ab", 1)])


def _positions(plan: Plan, repetition: int, batch: int | None) -> list[int]:
    """Return the positions of one round in the order of the plan. Round 0 is all warm-up rounds."""
    positions = range(len(plan.order)) if batch is None else plan.batches[batch].samples
    return [
        i
        for i in positions
        if (plan.order[i][1] == repetition if repetition else plan.order[i][1] < 0)
    ]

"""Plans of a duet: two variants of a suite measured side by side in ABBA blocks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfdag.digest import digest
from perfdag.plan.order import order
from perfdag.plan.placement import place_hosts
from perfdag.plan.plan import Batch, Plan, make_plan, new_run_id
from perfdag.shape import Shape
from perfdag.stats.paired import FEWEST_BLOCKS, MOST_BLOCKS, blocks
from perfdag.suite.model import LoadedSuite
from perfdag.suite.yaml_document import BadDocument, Problem

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

    def rounds(self) -> list[tuple[str, int]]:
        """Return (variant, repetition from 1) in the order of measurement."""
        rounds, seen = [], {"A": 0, "B": 0}
        for block in self.blocks:
            for variant in block:
                seen[variant] += 1
                rounds.append((variant, seen[variant]))
        return rounds


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
        raise BadDocument(
            [
                Problem(
                    "--blocks",
                    1,
                    str(count),
                    f"{FEWEST_BLOCKS} to {MOST_BLOCKS}; fewer cannot reach p = 1 %",
                )
            ]
        )
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
        options = {
            **plan.options,
            "words": list(labels),
            "other": f"{first[:-1]}{other}",
            "blocks": turns,
        }
        options |= {} if limit is None else {"within": limit}
        ordered = order(points, seed, loaded.suite.warmup)
        plans.append(
            replace(plan, seed=seed, points=points, order=ordered, batches=[], options=options)
        )
    _check(plans[0], plans[1])
    return Duet(plans[0], plans[1], plans[0].options["blocks"])


def on_cluster(duet: Duet) -> Duet:
    """Return the duet with batches. Raises BadDocument for shapes that cannot run side by side.

    Points with equal shapes in each variant share their pods for all blocks. Batch i of A runs
    beside batch i of B.
    """
    pairs = sorted({(a.shape, b.shape) for a, b in zip(duet.a.points, duet.b.points, strict=True)})
    plans = []
    for side, plan in enumerate((place_hosts(duet.a), place_hosts(duet.b))):
        batches = []
        for pair in pairs:
            mine = {
                i
                for i, points in enumerate(zip(duet.a.points, duet.b.points, strict=True))
                if (points[0].shape, points[1].shape) == pair
            }
            samples = [position for position, (index, _) in enumerate(plan.order) if index in mine]
            batches.append(
                Batch(
                    pair[side],
                    samples,
                    sum(plan.point_at(position).seconds for position in samples),
                )
            )
        plans.append(replace(plan, batches=batches, options={**plan.options, "cluster": True}))
    for left, right in pairs:
        text = _apart(
            Shape.model_validate(duet.a.shapes[left]), Shape.model_validate(duet.b.shapes[right])
        )
        if text:
            raise BadDocument([Problem("ab", 1, "", text)])
    return replace(duet, a=plans[0], b=plans[1])


def _apart(a: Shape, b: Shape) -> str | None:
    """Return why pods of two shapes cannot run side by side, or None where they can."""
    if a.hosts.count != b.hosts.count:
        return (
            f"A has {a.hosts.count} hosts and B {b.hosts.count}: "
            "side by side on the same nodes they need equally many"
        )
    for shape in (a, b):
        if shape.volume and shape.volume.batch_claim:
            return (
                "a ReadWriteMany claim would be shared by both variants; "
                "give volume.claim (an existing one for each), or ReadWriteOnce"
            )
    return None


def stored_duet(a: Plan, b: Plan) -> Duet:
    """Return the duet of two stored plans."""
    return (
        Duet(a, b, list(a.options["blocks"]))
        if a.variant == "A"
        else Duet(b, a, list(b.options["blocks"]))
    )


def _check(a: Plan, b: Plan) -> None:
    left, right = (
        [(p.entry, p.benchmark) for p in a.points],
        [(p.entry, p.benchmark) for p in b.points],
    )
    if left != right:
        entries = sorted({entry for entry, _ in left} ^ {entry for entry, _ in right})
        text = (
            f"{len(left)} points in A and {len(right)} in B must answer one another, entry by entry"
        )
        raise BadDocument([Problem("ab", 1, ", ".join(entries), text)])


def positions(plan: Plan, repetition: int) -> list[int]:
    """Return the positions of one round in the order of the plan. Round 0 is all warm-up rounds."""
    return [
        i
        for i, (_, number) in enumerate(plan.order)
        if (number == repetition if repetition else number < 0)
    ]

"""Plans of a duet: two variants of a suite measured side by side in ABBA blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfdag.document import BadDocument, Problem
from perfdag.ids import digest
from perfdag.plan import Batch, Plan, make_plan, new_run_id
from perfdag.points import order
from perfdag.shape import Shape
from perfdag.stats.paired import FEWEST_BLOCKS, MOST_BLOCKS, blocks
from perfdag.suite import Loaded

A_BLOCK = 2
"""Samples of each variant in a block (ABBA)."""


@dataclass(frozen=True)
class Duel:
    """Plans of the two variants; point i of one answers point i of the other. `blocks` holds ABBA or BAAB for each."""

    a: Plan
    b: Plan
    blocks: list[str]

    def rounds(self) -> list[tuple[str, int]]:
        """(variant, repetition from 1) in the order they are measured."""
        made, seen = [], {"A": 0, "B": 0}
        for block in self.blocks:
            for variant in block:
                seen[variant] += 1
                made.append((variant, seen[variant]))
        return made


def prepare(a: Loaded, b: Loaded, words: tuple[str, str], count: int, only: Sequence[str] = (), limit: float | None = None) -> Duel:
    """Plan both variants with two samples of each in every block; `limit` is what B may cost. Raises BadDocument where their points do not
    match.

    The order is of the suite's `seed` where it gives one, else of the run id: no two duels share the luck of one order.
    """
    if not FEWEST_BLOCKS <= count <= MOST_BLOCKS:
        raise BadDocument([Problem("--blocks", 1, str(count), f"{FEWEST_BLOCKS} to {MOST_BLOCKS}; fewer cannot reach p = 1 %")])
    first = new_run_id()
    seed = a.suite.seed if "seed" in a.suite.model_fields_set else int(digest(first)[:8], 16)
    turns = blocks(count, seed)
    plans = []
    for loaded, variant, other in ((a, "A", "b"), (b, "B", "a")):
        plan = make_plan(loaded, only=only, trigger="ab", variant=variant, run_id=f"{first[:-1]}{variant.lower()}")
        points = [replace(point, repetitions=count * A_BLOCK, until=None) for point in plan.points]
        options = {**plan.options, "words": list(words), "other": f"{first[:-1]}{other}", "blocks": turns}
        options |= {} if limit is None else {"within": limit}
        ordered = order(points, seed, loaded.suite.warmup)
        plans.append(replace(plan, seed=seed, points=points, order=ordered, batches=[], options=options))
    _check(plans[0], plans[1])
    return Duel(plans[0], plans[1], plans[0].options["blocks"])


def on_cluster(duel: Duel) -> Duel:
    """The duel with batches: points whose shapes are alike in each variant share their pods for all blocks.

    Batch i of A and batch i of B stand side by side. Raises BadDocument for shapes that cannot.
    """
    pairs = sorted({(a.shape, b.shape) for a, b in zip(duel.a.points, duel.b.points, strict=True)})
    plans = []
    for side, plan in enumerate((duel.a, duel.b)):
        batches = []
        for pair in pairs:
            mine = {i for i, each in enumerate(zip(duel.a.points, duel.b.points, strict=True)) if (each[0].shape, each[1].shape) == pair}
            samples = [position for position, (index, _) in enumerate(plan.order) if index in mine]
            batches.append(Batch(pair[side], samples, sum(plan.points[plan.order[each][0]].seconds for each in samples)))
        plans.append(replace(plan, batches=batches, options={**plan.options, "cluster": True}))
    for left, right in pairs:
        text = _apart(Shape.model_validate(duel.a.shapes[left]), Shape.model_validate(duel.b.shapes[right]))
        if text:
            raise BadDocument([Problem("ab", 1, "", text)])
    return replace(duel, a=plans[0], b=plans[1])


def _apart(a: Shape, b: Shape) -> str | None:
    """Why pods of two shapes cannot stand side by side; None where they can."""
    if a.hosts.count != b.hosts.count:
        return f"A has {a.hosts.count} hosts and B {b.hosts.count}: side by side on the same nodes they need equally many"
    for shape in (a, b):
        if shape.volume and shape.volume.kind == "claim" and shape.volume.access == "ReadWriteMany" and not shape.volume.claim:
            return "a ReadWriteMany claim would be shared by both variants; give volume.claim (an existing one for each), or ReadWriteOnce"
    return None


def recall(a: Plan, b: Plan) -> Duel:
    """Return the duel of two stored plans."""
    return Duel(a, b, list(a.options["blocks"])) if a.variant == "A" else Duel(b, a, list(b.options["blocks"]))


def _check(a: Plan, b: Plan) -> None:
    left, right = [(p.entry, p.benchmark) for p in a.points], [(p.entry, p.benchmark) for p in b.points]
    if left != right:
        entries = sorted({entry for entry, _ in left} ^ {entry for entry, _ in right})
        text = f"{len(left)} points in A and {len(right)} in B must answer one another, entry by entry"
        raise BadDocument([Problem("ab", 1, ", ".join(entries), text)])


def positions(plan: Plan, repetition: int) -> list[int]:
    """Return the positions in the plan's order of one round; 0 gives the warm-up rounds."""
    return [i for i, (_, each) in enumerate(plan.order) if (each == repetition if repetition else each < 0)]

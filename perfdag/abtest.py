"""Two variants of a suite side by side: their plans, the order of the blocks, and the paired analysis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfdag import results
from perfdag.checks import Tuning, fraction
from perfdag.document import BadDocument, Problem
from perfdag.ids import digest
from perfdag.plan import Batch, Plan, make_plan, new_run_id
from perfdag.plan_order import order
from perfdag.shape import Shape
from perfdag.stats.paired import (
    FEWEST_BLOCKS,
    MOST_BLOCKS,
    Bound,
    Judged,
    Paired,
    blocks,
    judge,
    paired,
    within,
)
from perfdag.stats.robust import Array
from perfdag.store import Store
from perfdag.suite_model import Loaded
from perfdag.trends import COLUMNS, SeriesInfo, measured, of_table

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


@dataclass(frozen=True)
class Line:
    """One series of the duel with its verdict; `label` tells its point from others of the entry, both variants' words. `bound`: what B costs
    against the limit of the duel, where it has one."""

    info: SeriesInfo
    label: str
    judged: Judged
    bound: Bound | None = None


@dataclass(frozen=True)
class Outcome:
    """Verdicts of the series that both variants have in at least one block; `unpaired` says for the others who has them.

    `absent` names what a limit cannot be held against for that reason: headline series, and points that have none in either variant.
    `damaged` names files that could not be read.
    """

    lines: list[Line]
    unpaired: list[str]
    absent: list[str]
    damaged: list[str]


def prepare(
    a: Loaded,
    b: Loaded,
    words: tuple[str, str],
    count: int,
    only: Sequence[str] = (),
    limit: float | None = None,
) -> Duel:
    """Plan both variants with two samples of each in every block; `limit` is what B may cost. Raises BadDocument where their points do not
    match.

    The order is of the suite's `seed` where it gives one, else of the run id: no two duels share the luck of one order.
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
            "words": list(words),
            "other": f"{first[:-1]}{other}",
            "blocks": turns,
        }
        options |= {} if limit is None else {"within": limit}
        ordered = order(points, seed, loaded.suite.warmup)
        plans.append(
            replace(plan, seed=seed, points=points, order=ordered, batches=[], options=options)
        )
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
            mine = {
                i
                for i, each in enumerate(zip(duel.a.points, duel.b.points, strict=True))
                if (each[0].shape, each[1].shape) == pair
            }
            samples = [position for position, (index, _) in enumerate(plan.order) if index in mine]
            batches.append(
                Batch(
                    pair[side],
                    samples,
                    sum(plan.points[plan.order[each][0]].seconds for each in samples),
                )
            )
        plans.append(replace(plan, batches=batches, options={**plan.options, "cluster": True}))
    for left, right in pairs:
        text = _apart(
            Shape.model_validate(duel.a.shapes[left]), Shape.model_validate(duel.b.shapes[right])
        )
        if text:
            raise BadDocument([Problem("ab", 1, "", text)])
    return replace(duel, a=plans[0], b=plans[1])


def _apart(a: Shape, b: Shape) -> str | None:
    """Why pods of two shapes cannot stand side by side; None where they can."""
    if a.hosts.count != b.hosts.count:
        return f"A has {a.hosts.count} hosts and B {b.hosts.count}: side by side on the same nodes they need equally many"
    for shape in (a, b):
        if (
            shape.volume
            and shape.volume.kind == "claim"
            and shape.volume.access == "ReadWriteMany"
            and not shape.volume.claim
        ):
            return "a ReadWriteMany claim would be shared by both variants; give volume.claim (an existing one for each), or ReadWriteOnce"
    return None


def recall(a: Plan, b: Plan) -> Duel:
    """Return the duel of two stored plans."""
    return (
        Duel(a, b, list(a.options["blocks"]))
        if a.variant == "A"
        else Duel(b, a, list(b.options["blocks"]))
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
    """Return the positions in the plan's order of one round; 0 gives the warm-up rounds."""
    return [
        i
        for i, (_, each) in enumerate(plan.order)
        if (each == repetition if repetition else each < 0)
    ]


def analyse(store: Store, duel: Duel, tuning: Tuning, *, everything: bool = False) -> Outcome:
    """Return the verdict of each headline series (of every series with `everything`), of headline ones also against the limit that the plan's
    options give as `within`. Raises StoreError."""
    sides = []
    damaged: list[str] = []
    for plan in (duel.a, duel.b):
        table = results.load(
            store, suites=[plan.suite], runs=[plan.run_id], columns=list(COLUMNS), damaged=damaged
        )
        rows = table.filter(measured(table))
        sides.append(_series(rows, plan, len(duel.blocks)))
    limit = duel.a.options.get("within")
    found: list[tuple[_Key, SeriesInfo, Paired, Bound | None]] = []
    unpaired, absent = [], []
    for key in {**sides[0], **sides[1]}:
        has = [side[key] for side in sides if key in side]
        info = has[0][0]
        name = " ".join(filter(None, (info.entry, _label(duel, key[0]), info.name)))
        if not (everything or info.headline):
            continue
        if len(has) == 2 and np.isfinite(has[0][1] + has[1][1]).any():
            found.append((key, info, *_held(info, has[0][1], has[1][1], tuning, limit)))
            continue
        absent += [name] if info.headline and info.better in ("higher", "lower") else []
        alone = f"{'A' if key in sides[0] else 'B'} alone has values of it"
        unpaired.append(
            f"{name}: {alone if len(has) == 1 else 'no block in which both have values of it'}"
        )
    for i in sorted(
        set(range(len(duel.a.points)))
        - {key[0] for side in sides for key, (info, _) in side.items() if info.headline}
    ):
        name = " ".join(filter(None, (duel.a.points[i].entry, _label(duel, i))))
        absent.append(name)
        unpaired.append(f"{name}: neither has a headline value")
    judged = judge([each[2] for each in found])
    lines = [
        Line(info, _label(duel, key[0]), verdict, bound)
        for (key, info, _, bound), verdict in zip(found, judged, strict=True)
    ]
    return Outcome(lines, unpaired, absent, damaged)


def _held(
    info: SeriesInfo, a: Array, b: Array, tuning: Tuning, limit: float | None
) -> tuple[Paired, Bound | None]:
    """Compare one series, and hold it against the limit where it is a headline."""
    both = np.concatenate([a, b])
    both = both[np.isfinite(both)]
    min_effect, absolute = tuning.effect(info, both)
    result = paired(a, b, better=info.better, min_effect=min_effect, absolute=absolute)
    if limit is None or not info.headline:
        return result, None
    # the limit is a share: a difference in seconds or bit/s, as `checks` may ask for, has to be made one
    shares = paired(a, b, better=info.better, min_effect=min_effect, absolute=fraction(info, both))
    return result, within(shares, limit)


_Key = tuple[int, str, str, str]


def _series(rows: pa.Table, plan: Plan, count: int) -> dict[_Key, tuple[SeriesInfo, Array]]:
    """Return each series' block medians, shape (blocks,), by the number of its point and what of it is measured."""
    number = {point.id: i for i, point in enumerate(plan.points)}
    medians: dict[_Key, tuple[SeriesInfo, Array]] = {}
    # of_table leaves out runs of `ab`, which is right for a history and not here.
    column = rows.schema.get_field_index("trigger")
    plain = rows.set_column(column, "trigger", pa.array(["manual"] * rows.num_rows, pa.string()))
    for info in of_table(plain, plan.suite).series if rows.num_rows else []:
        if info.canary:
            continue
        mine = rows.filter(pc.equal(rows["series_id"], info.series_id))
        values = mine["value"].to_numpy().astype(np.float64)
        block = (mine["repetition"].to_numpy().astype(np.int64) - 1) // A_BLOCK
        each = np.full(count, np.nan)
        for k in range(count):
            if (block == k).any():
                each[k] = np.median(values[block == k])
        medians[(number[info.point], info.coords, info.metric, info.stat)] = (info, each)
    return medians


def _label(duel: Duel, index: int) -> str:
    a, b = duel.a.points[index].label, duel.b.points[index].label
    return a if a == b else f"{a or '-'} | {b or '-'}"


def data(duel: Duel, outcome: Outcome) -> dict[str, Any]:
    """Return the outcome as plain data; effects are B against A, relative (0.1 is +10 %) unless the metric is a fraction."""
    from dataclasses import asdict

    return {
        "a": {"run_id": duel.a.run_id, "words": duel.a.options["words"][0]},
        "b": {"run_id": duel.b.run_id, "words": duel.a.options["words"][1]},
        "suite": duel.a.suite,
        "blocks": duel.blocks,
        "series": [
            {
                **asdict(each.info),
                "label": each.label,
                "word": each.judged.word,
                "why": each.judged.why,
                **asdict(each.judged.result),
            }
            | ({"within": asdict(each.bound)} if each.bound else {})
            for each in outcome.lines
        ],
        "unpaired": outcome.unpaired,
        "damaged": outcome.damaged,
    }

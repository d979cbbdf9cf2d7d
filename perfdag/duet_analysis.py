"""The paired analysis of a duet: a verdict for every series that both variants have."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfdag import results
from perfdag.duet_plan import A_BLOCK, Duel
from perfdag.plan import Plan
from perfdag.stats.paired import Bound, Judged, Paired, judge, paired, within
from perfdag.stats.robust import Array
from perfdag.store import Store
from perfdag.trends import COLUMNS, SeriesInfo, measured, of_table
from perfdag.tuning import Tuning, fraction


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


def analyse(store: Store, duel: Duel, tuning: Tuning, *, everything: bool = False) -> Outcome:
    """Return the verdict of each headline series (of every series with `everything`), of headline ones also against the limit that the plan's
    options give as `within`. Raises StoreError."""
    sides = []
    damaged: list[str] = []
    for plan in (duel.a, duel.b):
        table = results.load(store, suites=[plan.suite], runs=[plan.run_id], columns=list(COLUMNS), damaged=damaged)
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
        unpaired.append(f"{name}: {alone if len(has) == 1 else 'no block in which both have values of it'}")
    for i in sorted(set(range(len(duel.a.points))) - {key[0] for side in sides for key, (info, _) in side.items() if info.headline}):
        name = " ".join(filter(None, (duel.a.points[i].entry, _label(duel, i))))
        absent.append(name)
        unpaired.append(f"{name}: neither has a headline value")
    judged = judge([each[2] for each in found])
    lines = [Line(info, _label(duel, key[0]), verdict, bound) for (key, info, _, bound), verdict in zip(found, judged, strict=True)]
    return Outcome(lines, unpaired, absent, damaged)


def _held(info: SeriesInfo, a: Array, b: Array, tuning: Tuning, limit: float | None) -> tuple[Paired, Bound | None]:
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
    return {
        "a": {"run_id": duel.a.run_id, "words": duel.a.options["words"][0]},
        "b": {"run_id": duel.b.run_id, "words": duel.a.options["words"][1]},
        "suite": duel.a.suite,
        "blocks": duel.blocks,
        "series": [
            {**asdict(each.info), "label": each.label, "word": each.judged.word, "why": each.judged.why, **asdict(each.judged.result)}
            | ({"within": asdict(each.bound)} if each.bound else {})
            for each in outcome.lines
        ],
        "unpaired": outcome.unpaired,
        "damaged": outcome.damaged,
    }

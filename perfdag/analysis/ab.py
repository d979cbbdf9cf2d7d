"""The paired analysis of a duet: a verdict for every series that both variants have."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfdag.analysis.medians import COLUMNS, is_measured, medians_of_rows
from perfdag.analysis.verdict import Tuning, fraction
from perfdag.plan.ab import A_BLOCK, Duet
from perfdag.plan.plan import Plan
from perfdag.results.schema import load_rows
from perfdag.results.summary import SeriesInfo
from perfdag.stats.paired import Bound, PairedEffect, PairedVerdict, judge, paired, within
from perfdag.stats.scales import Array
from perfdag.store.base import Store


@dataclass(frozen=True)
class SeriesVerdict:
    """One series of a duet with its verdict. `label` tells its point from others of the entry.

    `bound` is the cost of B against the limit of the duet, where there is one.
    """

    info: SeriesInfo
    label: str
    judged: PairedVerdict
    bound: Bound | None = None


@dataclass(frozen=True)
class Outcome:
    """Verdicts of the series that both variants have in at least one block.

    `unpaired` names the other series and the variant that has them. `absent` names headline series,
    and points without any, that the limit cannot be checked for. `damaged` names unreadable files.
    """

    lines: list[SeriesVerdict]
    unpaired: list[str]
    absent: list[str]
    damaged: list[str]


def analyse(store: Store, duet: Duet, tuning: Tuning, *, everything: bool = False) -> Outcome:
    """Return the verdict of each headline series, or of every series with `everything`.

    Headline series are also checked against the limit that the plan's options have as `within`.
    Raises StoreError.
    """
    sides = []
    damaged: list[str] = []
    for plan in (duet.a, duet.b):
        table = load_rows(
            store, suites=[plan.suite], runs=[plan.run_id], columns=list(COLUMNS), damaged=damaged
        )
        rows = table.filter(is_measured(table))
        sides.append(_series(rows, plan, len(duet.blocks)))
    limit = duet.a.options.within
    compared: list[tuple[_Key, SeriesInfo, PairedEffect, Bound | None]] = []
    unpaired, absent = [], []
    for key in {**sides[0], **sides[1]}:
        present = [side[key] for side in sides if key in side]
        info = present[0][0]
        name = " ".join(filter(None, (info.entry, _label(duet, key[0]), info.name)))
        if not (everything or info.headline):
            continue
        if len(present) == 2 and np.isfinite(present[0][1] + present[1][1]).any():
            result = _compare_series(info, present[0][1], present[1][1], tuning, limit)
            compared.append((key, info, *result))
            continue
        absent += [name] if info.headline and info.better in ("higher", "lower") else []
        variant = "A" if key in sides[0] else "B"
        why = f"only {variant} has values" if len(present) == 1 else "no block has values of both"
        unpaired.append(f"{name}: {why}")
    for i in sorted(
        set(range(len(duet.a.points)))
        - {key[0] for side in sides for key, (info, _) in side.items() if info.headline}
    ):
        name = " ".join(filter(None, (duet.a.points[i].entry, _label(duet, i))))
        absent.append(name)
        unpaired.append(f"{name}: neither variant has a headline value")
    judged = judge([row[2] for row in compared])
    lines = [
        SeriesVerdict(info, _label(duet, key[0]), verdict, bound)
        for (key, info, _, bound), verdict in zip(compared, judged, strict=True)
    ]
    return Outcome(lines, unpaired, absent, damaged)


def _compare_series(
    info: SeriesInfo, a: Array, b: Array, tuning: Tuning, limit: float | None
) -> tuple[PairedEffect, Bound | None]:
    """Compare one series. Check a headline against the limit."""
    both = np.concatenate([a, b])
    both = both[np.isfinite(both)]
    min_effect, absolute = tuning.effect(info, both)
    result = paired(a, b, better=info.better, min_effect=min_effect, absolute=absolute)
    if limit is None or not info.headline:
        return result, None
    # The limit is a share, but `checks` may set an effect in the unit of the metric.
    shares = paired(a, b, better=info.better, min_effect=min_effect, absolute=fraction(info, both))
    return result, within(shares, limit)


_Key = tuple[int, str, str, str, str]


def _series(rows: pa.Table, plan: Plan, count: int) -> dict[_Key, tuple[SeriesInfo, Array]]:
    """Return the block medians of each series, shape (blocks,), by point number and metric."""
    number = {point.id: i for i, point in enumerate(plan.points)}
    medians: dict[_Key, tuple[SeriesInfo, Array]] = {}
    # medians_of_rows leaves out runs of `ab`.
    column = rows.schema.get_field_index("trigger")
    plain = rows.set_column(column, "trigger", pa.array(["manual"] * rows.num_rows, pa.string()))
    for info in medians_of_rows(plain, plan.suite).series if rows.num_rows else []:
        if info.canary:
            continue
        own = rows.filter(pc.equal(rows["series_id"], info.series_id))
        values = own["value"].to_numpy().astype(np.float64)
        block = (own["repetition"].to_numpy().astype(np.int64) - 1) // A_BLOCK
        by_block = np.full(count, np.nan)
        for k in range(count):
            if (block == k).any():
                by_block[k] = np.median(values[block == k])
        medians[(number[info.point], *info.key[1:])] = (info, by_block)
    return medians


def _label(duet: Duet, index: int) -> str:
    a, b = duet.a.points[index].label, duet.b.points[index].label
    return a if a == b else f"{a or '-'} | {b or '-'}"


def outcome_data(duet: Duet, outcome: Outcome) -> dict[str, Any]:
    """Return the outcome as plain data.

    Effects are B against A, relative (0.1 is +10 %) unless the metric is a fraction.
    """
    return {
        "a": {"run_id": duet.a.run_id, "words": duet.a.options.words[0]},
        "b": {"run_id": duet.b.run_id, "words": duet.a.options.words[1]},
        "suite": duet.a.suite,
        "blocks": duet.blocks,
        "series": [
            {
                **asdict(line.info),
                "label": line.label,
                "word": line.judged.word,
                "why": line.judged.why,
                **asdict(line.judged.result),
            }
            | ({"within": asdict(line.bound)} if line.bound else {})
            for line in outcome.lines
        ],
        "unpaired": outcome.unpaired,
        "damaged": outcome.damaged,
    }

"""The paired analysis of a duet: a verdict for every series that both variants have."""

from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfdag.analysis.medians import is_measured
from perfdag.analysis.verdict import Tuning, fraction
from perfdag.plan.plan import A_BLOCK, Duet, Plan
from perfdag.results.schema import load_rows
from perfdag.results.summary import SERIES_COLUMNS, SeriesInfo
from perfdag.signals import EXIT_FAILED, EXIT_GATE, EXIT_OK
from perfdag.stats.paired import Bound, Paired, judge, paired, within
from perfdag.stats.robust import median
from perfdag.stats.scales import Array
from perfdag.store.base import Store

_SAMPLE = ("run_id", "repetition", "phase", "status", "error", "subject", "value")


@dataclass(frozen=True)
class SeriesVerdict:
    """One series of a duet with its verdict. `label` tells its point from others of the entry.

    `bound` is the cost of B against the limit of the duet, where there is one.
    """

    info: SeriesInfo
    label: str
    judged: Paired
    bound: Bound | None = None

    @property
    def name(self) -> str:
        """The entry, the label of the point and the metric."""
        return " ".join(filter(None, (self.info.entry, self.label, self.info.name)))


@dataclass(frozen=True)
class Outcome:
    """Verdicts of the series that both variants have in at least one block.

    `unpaired` names the other series and the variant that has them. `absent` names headline series,
    and points without any, that the limit cannot be checked for. `failed` counts samples that were
    not ok by their reason. `damaged` names unreadable files.
    """

    duet: Duet
    lines: list[SeriesVerdict]
    unpaired: list[str]
    absent: list[str]
    failed: Counter[str]
    damaged: list[str]

    @property
    def exit_code(self) -> int:
        """3 if a headline misses the limit or has no values, 1 if a sample failed or none is ok."""
        bounds = {line.bound.word for line in self.lines if line.bound}
        if self.duet.a.options.within is not None and (self.absent or bounds != {"passes"}):
            return EXIT_GATE
        return EXIT_FAILED if self.failed or not self.lines else EXIT_OK

    def data(self) -> dict[str, Any]:
        """Return the outcome as plain data.

        Effects are B against A, relative (0.1 is +10 %) unless the metric is a fraction.
        """
        words = self.duet.a.options.words
        return {
            "a": {"run_id": self.duet.a.run_id, "words": words[0]},
            "b": {"run_id": self.duet.b.run_id, "words": words[1]},
            "suite": self.duet.a.suite,
            "blocks": self.duet.blocks,
            "series": [
                {**asdict(line.info), "label": line.label, **asdict(line.judged)}
                | ({"within": asdict(line.bound)} if line.bound else {})
                for line in self.lines
            ],
            "unpaired": self.unpaired,
            "damaged": self.damaged,
        }


def analyse(store: Store, duet: Duet, tuning: Tuning, *, everything: bool = False) -> Outcome:
    """Return the verdict of each headline series, or of every series with `everything`.

    Headline series are also checked against the limit that the plan's options have as `within`.
    Raises StoreError.
    """
    damaged: list[str] = []
    table = load_rows(
        store,
        suites=[duet.a.suite, duet.b.suite],
        runs=[duet.a.run_id, duet.b.run_id],
        columns=[*SERIES_COLUMNS, *_SAMPLE],
        damaged=damaged,
    )
    rows = table.filter(is_measured(table))
    a, b = (_block_medians(rows, plan, len(duet.blocks)) for plan in (duet.a, duet.b))
    lines, unpaired, absent = list[SeriesVerdict](), list[str](), list[str]()
    for key in {**a, **b}:
        present = [side[key] for side in (a, b) if key in side]
        info, label = present[0][0], _label(duet, key[0])
        name = " ".join(filter(None, (info.entry, label, info.name)))
        if not (everything or info.headline):
            continue
        if len(present) == 2 and np.isfinite(present[0][1] + present[1][1]).any():
            result = _compare_series(info, present[0][1], present[1][1], tuning, duet)
            lines.append(SeriesVerdict(info, label, *result))
            continue
        absent += [name] if info.headline and info.better in ("higher", "lower") else []
        variant = "A" if key in a else "B"
        why = f"only {variant} has values" if len(present) == 1 else "no block has values of both"
        unpaired.append(f"{name}: {why}")
    with_headline = {key[0] for side in (a, b) for key, (info, _) in side.items() if info.headline}
    for i, point in enumerate(duet.a.points):
        if i not in with_headline:
            absent.append(f"{point.entry} {_label(duet, i)}".strip())
            unpaired.append(f"{absent[-1]}: neither variant has a headline value")
    judged = judge([line.judged for line in lines])
    lines = [replace(line, judged=own) for line, own in zip(lines, judged, strict=True)]
    return Outcome(duet, lines, unpaired, absent, _failed(table), damaged)


def _failed(table: pa.Table) -> Counter[str]:
    """Count the samples that are not ok by their reason."""
    columns = ["run_id", "point", "repetition", "phase", "status", "error"]
    samples = {
        (row["run_id"], row["point"], row["repetition"]): row["error"] or row["status"]
        for row in table.select(columns).to_pylist()
        if row["phase"] == "measure" and row["status"] not in ("ok", "skipped")
    }
    return Counter(samples.values())


def _compare_series(
    info: SeriesInfo, a: Array, b: Array, tuning: Tuning, duet: Duet
) -> tuple[Paired, Bound | None]:
    """Compare one series. Check a headline against the limit of the duet."""
    both = np.concatenate([a, b])
    both, limit = both[np.isfinite(both)], duet.a.options.within
    min_effect, absolute = tuning.effect(info, both)
    result = paired(a, b, better=info.better, min_effect=min_effect, absolute=absolute)
    if limit is None or not info.headline:
        return result, None
    # The limit is a share, but `checks` may set an effect in the unit of the metric.
    shares = paired(a, b, better=info.better, min_effect=min_effect, absolute=fraction(info, both))
    return result, within(shares, limit)


_Key = tuple[int, str, str, str, str]


def _block_medians(rows: pa.Table, plan: Plan, count: int) -> dict[_Key, tuple[SeriesInfo, Array]]:
    """Return the block medians of each series, shape (blocks,), by point number and metric."""
    number = {point.id: i for i, point in enumerate(plan.points)}
    infos: dict[str, SeriesInfo] = {}
    blocks: dict[str, list[list[float]]] = {}
    for row in rows.filter(pc.equal(rows["run_id"], plan.run_id)).to_pylist():
        identity = row["series_id"]
        if row["point"] in number and identity not in infos:  # no canary
            infos[identity], blocks[identity] = SeriesInfo.of(row), [[] for _ in range(count)]
        if identity in infos:
            blocks[identity][(row["repetition"] - 1) // A_BLOCK].append(row["value"])
    return {
        (number[info.point], *info.key[1:]): (info, np.array([*map(median, blocks[identity])]))
        for identity, info in infos.items()
    }


def _label(duet: Duet, index: int) -> str:
    a, b = duet.a.points[index].label, duet.b.points[index].label
    return a if a == b else f"{a or '-'} | {b or '-'}"

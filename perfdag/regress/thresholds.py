"""Thresholds of a suite's `checks`, evaluated for one run."""

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfdag.regress.history import Series, full_name
from perfdag.regress.run_medians import COLUMNS, RunMedians, medians_of_rows
from perfdag.regress.selection import SelectionError, baseline
from perfdag.regress.series import SeriesInfo, series_labels
from perfdag.regress.tuning import covers, settings_by_kind
from perfdag.results.schema import load_rows
from perfdag.stats.robust import Array, TooFewSamplesError, median, percentile
from perfdag.store.base import Store
from perfdag.suite.model import Check, setting
from perfdag.units import short

OPERATORS = {"<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal}


@dataclass(frozen=True)
class ThresholdResult:
    """The result of a rule for one series. `info` is None where the run has no matching series."""

    rule: Check
    info: SeriesInfo | None
    name: str
    state: Literal["ok", "failed", "absent", "unsure", "skipped"]
    text: str

    @property
    def key(self) -> str:
        """The rule and the series, which identify the result across runs."""
        return f"{self.rule.text()} {self.info.series_id if self.info else ''}".strip()


@dataclass(frozen=True)
class References:
    """What ratios refer to: the good levels of series before the run, and named baselines.

    `history` ends with the run, `series` by id are judged with it. `damaged` collects files that
    were left out.
    """

    store: Store
    history: RunMedians
    series: Mapping[str, Series]
    damaged: list[str]


def judge_thresholds(
    past: References, table: pa.Table, rules: Sequence[Check]
) -> Iterator[ThresholdResult]:
    """Yield the result of each threshold for each series that it covers. Raises StoreError."""
    measured = medians_of_rows(table, past.history.suite)
    # Changes and absences of the same series have the same names.
    labels = series_labels([*past.history.series, *measured.series])
    for rule in rules:
        if rule.op is None:
            continue
        covered = [(i, info) for i, info in enumerate(measured.series) if covers(rule, info)]
        if not covered:
            why = _skipped(table, rule)
            state: Literal["skipped", "absent", "unsure"] = "skipped" if why else "absent"
            text = why or f"the run has no value of it{_values_of(rule, measured.series)}"
            yield ThresholdResult(rule, None, rule.text(), state, text)
            continue
        try:
            reference = _reference(past, rule)
        except SelectionError as error:
            yield from (
                ThresholdResult(rule, info, full_name(info, labels), "absent", str(error))
                for _, info in covered
            )
            continue
        for i, info in covered:
            name = full_name(info, labels)
            try:
                limit = _limit(past, reference, rule, info)
                value = _judged_value(table, rule, info, float(measured.value[i, 0]))
            except (TooFewSamplesError, SelectionError) as error:
                # A first run has nothing behind it: the rule will judge the next one.
                first = rule.ratio and not rule.baseline and len(past.history.runs) == 1
                state = "unsure" if first else "absent"
                yield ThresholdResult(rule, info, name, state, str(error))
                continue
            holds = bool(OPERATORS[rule.op](value, limit))
            what = f"p{rule.percentile:g} " if rule.percentile else ""
            word = "holds" if holds else "breaks"
            text = f"{what}{short(value, info.unit)} {word} {rule.op} {short(limit, info.unit)}"
            yield ThresholdResult(rule, info, name, "ok" if holds else "failed", text)


def _values_of(rule: Check, series: Sequence[SeriesInfo]) -> str:
    """Return the values that the series of a rule have of the names in its `where`."""
    anywhere = rule.model_copy(update={"where": {}})
    covered = [settings_by_kind(info) for info in series if covers(anywhere, info)]
    parts = []
    for name in rule.where if covered else ():
        values = {value: None for kinds in covered if (value := setting(name, *kinds)) is not None}
        has = ", ".join(map(str, values)) or "no series has it"
        parts.append(f"{name}: {has}")
    return f"; there are {'; '.join(parts)}" if parts else ""


def _skipped(table: pa.Table, rule: Check) -> str | None:
    """Return why all samples of the entries of a rule were skipped, or None."""
    rows = [
        row
        for row in table.select(["entry", "status", "error"]).to_pylist()
        if fnmatch.fnmatchcase(row["entry"], rule.entry or "")
    ]
    skipped = rows and all(row["status"] == "skipped" for row in rows)
    return str(rows[0]["error"]) if skipped else None


def _judged_value(table: pa.Table, rule: Check, info: SeriesInfo, middle: float) -> float:
    """Return the median of the run, or a percentile of its values. Raises TooFewSamplesError.

    A percentile uses the values of pods or devices where the metric has them.
    """
    if rule.percentile is None:
        return middle
    same = pc.and_(pc.equal(table["point"], info.point), pc.equal(table["metric"], info.metric))
    same = pc.and_(same, pc.equal(pc.fill_null(table["coords"], ""), info.coords))
    ok = pc.and_(pc.equal(table["status"], "ok"), pc.equal(table["phase"], "measure"))
    rows = table.filter(pc.fill_null(pc.and_(same, ok), False))
    of_stat = pc.equal(rows["stat"], info.stat)
    # A pod or device has one value, whatever statistic of them the series is.
    has_subject = pc.is_valid(rows["subject"])
    wanted = (
        pc.and_(has_subject, of_stat),
        pc.and_(has_subject, pc.equal(rows["stat"], "value")),
        of_stat,
    )
    chosen = next(
        (matching for mask in wanted if (matching := rows.filter(mask)).num_rows), rows.slice(0, 0)
    )
    values: Array = chosen["value"].to_numpy().astype(np.float64)
    return percentile(values, rule.percentile / 100).value


def _reference(past: References, rule: Check) -> RunMedians | None:
    """Return the run medians of a rule's baseline, or None without one. Raises SelectionError."""
    if rule.baseline is None:
        return None
    chosen = baseline(past.store, rule.baseline, past.history.suite)
    damaged: list[str] = []
    rows = load_rows(
        past.store,
        suites=[chosen.suite],
        runs=list(chosen.runs),
        columns=list(COLUMNS),
        damaged=damaged,
    )
    past.damaged.extend(key for key in damaged if key not in past.damaged)
    if not rows.num_rows:
        names = f": {', '.join(damaged)}" if damaged else ""
        raise SelectionError(f"baseline {rule.baseline} has no readable rows{names}")
    return medians_of_rows(rows, chosen.suite)


def _limit(past: References, reference: RunMedians | None, rule: Check, info: SeriesInfo) -> float:
    """Return the threshold in the unit of the metric.

    Raises SelectionError where there is no reference value.
    """
    if rule.value is not None:
        return rule.value
    ratio = rule.ratio or 1.0
    if reference is not None:
        positions = [i for i, series in enumerate(reference.series) if series.key == info.key]
        if not positions:
            raise SelectionError(f"baseline {rule.baseline} has no value of it")
        return ratio * median(reference.value[positions[0]])
    line = past.series.get(info.series_id)
    level = line.good_before(len(past.history.runs) - 1) if line else None
    if level is None:
        raise SelectionError("no earlier run has a value of it")
    return ratio * level

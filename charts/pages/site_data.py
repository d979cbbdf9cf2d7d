"""What the site shows: runs, series with their levels and values, a card, and comparisons."""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfdag.analysis.alerts import AlertRecord
from perfdag.analysis.compare import compare_selections
from perfdag.analysis.history import Series, Step, headline_series, verdicts_by_run
from perfdag.analysis.medians import RunInfo, RunMedians
from perfdag.analysis.verdict import (
    RANK,
    Verdict,
    compare_levels,
    compare_sides,
    compare_within,
    percent,
)
from perfdag.identity import Item, digest, grouped
from perfdag.results.run_store import Selection, month_of, report_key, result_key
from perfdag.results.schema import read_rows
from perfdag.results.summary import PointState, summarise, worst_of_points
from perfdag.stats.evidence import STEP
from perfdag.stats.levels import Level
from perfdag.stats.robust import Spread
from perfdag.store.base import Store, is_key
from perfdag.units import scaled, short_seconds

REPORTS_LATER = 30
"""Newest runs that are looked at again for a report that was written after the site."""
REASONS = 3  # most reasons of a run
MISSING = 20  # most series that are named as not compared
VERDICTS = 3  # most verdicts on a card
LEVELS = 8
"""Newest levels of a series that are compared with each other."""
SIDES = {"only_a": "only in A", "only_b": "only in B"}
"""Why series of only one side were not compared, for people."""
DECIDING = {"failed": ("failed", "worse"), "same": ()}
"""The verdicts on series that decide the one on a run, where these are not the same."""

Data = dict[str, Any]
Cells = list[str | float | bool | None]
"""Figures and texts that a page reads by position."""
Clusters = Sequence[tuple[RunMedians, Sequence[Series]]]
"""The runs of each cluster, and the series with their verdicts."""


def run_data(
    store: Store, medians: RunMedians, earlier: dict[str, Data], records: dict[str, AlertRecord]
) -> list[Data]:
    """Return what the site shows of each run, oldest first.

    `earlier` is what the earlier site shows, by run id. Rows are read only of runs that are new or
    changed. Raises StoreError.
    """
    marks = _marks(medians)
    changed = [
        run for run in medians.runs if earlier.get(run.run_id, {}).get("mark") != marks[run.run_id]
    ]
    read = dict(_read(store, medians.suite, changed))
    newest = {run.run_id for run in medians.runs[-REPORTS_LATER:]}
    runs = []
    for run in medians.runs:
        name = run.run_id
        data = read.get(name) or dict(earlier.get(name, {}))
        data |= {
            "id": name,
            "mark": marks[name],
            "cluster": run.cluster,
            "trigger": run.trigger,
            "revision": run.revision,
        }
        if not data.get("report") and (name in newest or name in read):
            data["report"] = report_key(name) in store.list(f"runs/{name}")
        if name in records:
            data["gate"] = "failed" if records[name].failed else "passed"
        runs.append(data)
    return runs


def _marks(medians: RunMedians) -> dict[str, str]:
    """Return a digest of the values and samples of each run, which changes when it is collected."""
    ids = np.array([info.series_id for info in medians.series])
    order = np.argsort(ids)
    points = {id(run.points): run.points for run in medians.runs}  # most runs share one
    texts = {key: repr(counts).encode() for key, counts in points.items()}
    marks = {}
    for column, run in enumerate(medians.runs):
        present = order[np.isfinite(medians.value[order, column])]
        arrays = (ids, medians.value[:, column], medians.n[:, column])
        values = b"".join(array[present].tobytes() for array in arrays)
        mark = hashlib.blake2b(texts[id(run.points)] + values, digest_size=8)
        marks[run.run_id] = mark.hexdigest()
    return marks


def _read(store: Store, suite: str, runs: Sequence[RunInfo]) -> Iterator[tuple[str, Data]]:
    """Yield id and data of each run from its rows."""
    keys = [result_key(suite, run.run_id) for run in runs]
    for run, (_, data) in zip(runs, store.get_many(keys), strict=True):
        try:
            yield run.run_id, _of_rows(read_rows(data))
        except (pa.ArrowInvalid, OSError):  # the roll-up knows it from a time when it was readable
            yield run.run_id, {"trust": "unusable", "why": "its Parquet file is damaged"}


def _of_rows(table: pa.Table) -> Data:
    """Return the trust in a run, the worst verdict of its benchmarks, its failures and duration."""
    summary = summarise(table)
    trust = summary.trust
    reasons = chain.from_iterable(state.reasons for state in summary.points)
    worst = next((verdict for verdict, _ in worst_of_points(summary.verdicts)), None)
    # A skipped point has no trust.
    lost = [state for state in summary.points if state.why and state.point in trust.points]
    start = pc.min(table["started_at"]).as_py()
    end = pc.max(table["finished_at"]).as_py()
    seconds = (end - start).total_seconds() if start and end else None
    return {
        "statuses": summary.statuses,
        "reasons": list(dict.fromkeys(reasons))[:REASONS],
        "trust": trust.level,
        "why": trust.text,
        "benchmark_verdict": worst.kind if worst else None,
        "benchmark_verdict_text": worst.text if worst else "",
        "failed": [_failed(state) for state in lost],
        "seconds": seconds,
        "duration": "-" if seconds is None else short_seconds(seconds),
    }


def _failed(state: PointState) -> Data:
    """Return the row of a point that failed."""
    return {
        "id": state.point,
        "benchmark": state.benchmark,
        "name": state.name,
        "label": state.full_title,
        "text": state.why,
    }


def add_verdicts(clusters: Clusters, runs: Sequence[Data]) -> list[Data]:
    """Add the verdict on each run: that of the headline series that matters most.

    Return a row for each point that failed in a newest run and has no series.
    """
    by_id = {run["id"]: run for run in runs}
    without_series = []
    for medians, series in clusters:
        lines = headline_series(series)
        for run, verdict in zip(medians.runs, verdicts_by_run(lines, medians), strict=True):
            by_id[run.run_id]["verdict"] = verdict
        newest = by_id[medians.runs[-1].run_id]
        points = {line.info.point for line in series}
        failed = [row for row in newest.get("failed", ()) if row["id"] not in points]
        without_series += [row | {"cluster": newest["cluster"]} for row in failed]
        verdicts = [[row["label"], row["text"]] for row in failed]
        kinds = DECIDING.get(newest["verdict"], (newest["verdict"],))
        deciding = [line for line in lines if line.verdict.kind in kinds]
        deciding.sort(key=lambda line: RANK.index(line.verdict.kind))
        verdicts += [[line.label, line.verdict.text] for line in deciding]
        newest["verdicts"] = verdicts[:VERDICTS]
    return without_series


def card(clusters: Clusters) -> Data | None:
    """Return the headline series that stands for a suite: the one whose verdict matters most."""
    lines = list(chain.from_iterable(headline_series(series) for _, series in clusters))
    if not lines:
        return None
    line = min(lines, key=lambda line: RANK.index(line.verdict.kind))
    return _series(line) | {"values": list(zip(line.runs, map(rounded, line.value), strict=True))}


def series_data(clusters: Clusters, failed: Iterable[Data]) -> dict[str, list[Data]]:
    """Return the series of all clusters by benchmark, in the order of the history.

    Before them stand the points that failed and have no series.
    """
    by_benchmark = grouped(failed, lambda row: str(row["benchmark"]))
    for medians, series in clusters:
        for line in series:
            data = _series(line) | _pair_verdicts(line) | {"cluster": medians.runs[0].cluster}
            by_benchmark.setdefault(line.info.benchmark, []).append(data)
    return by_benchmark


def _series(line: Series) -> Data:
    """Return a series for the pages."""
    info = line.info
    verdict = line.verdict
    factor, unit = scaled(info.display_unit, line.levels.current.reference)
    return {
        "id": info.series_id,
        "name": line.name,
        "label": line.label,
        "factor": factor,
        "unit": unit,
        "headline": info.headline,
        "verdict": verdict.kind,
        "text": verdict.text,
        "noisy": verdict.noisy,
        "noise": percent(verdict.noise, verdict.unit, sign=False),
        "newest": rounded(line.newest),
        "levels": [_level(line, level) for level in line.levels.levels],
        # The run in which it left its good level.
        "left": line.worsening.run if line.worsening else None,
        "drift": _drift(line),
        "changes": [_change(line, step) for step in line.steps],
    }


def _level(line: Series, level: Level) -> Cells:
    """Return the first run of a level, its reference, and its band."""
    start = line.runs[level.start]
    return [start, rounded(level.reference), rounded(level.low), rounded(level.high)]


def _drift(line: Series) -> Cells | None:
    """Return the first run of a drift, and the values between which it leads."""
    drift = line.drift
    if drift is None:
        return None
    return [line.runs[drift.start], rounded(drift.begin), rounded(drift.end)]


def _change(line: Series, step: Step) -> Data:
    """Return a step: its run, those between which it may have begun, and what else changed."""
    return {
        "run": step.run,
        "first": step.first,
        "last": step.last,
        "before": step.run_before,
        "verdict": step.kind,
        "size": step.size,
        "step": step.values(line.info),
        "changed": step.changed,
    }


def _pair_verdicts(line: Series) -> Data:
    """Return the verdicts on any two runs of a series: of the first ones, and by their levels.

    `early` has those about each two of the runs `first`, by their spreads. Of later runs, `within`
    has those about two in one level, and `between` those about two in different newest levels.
    Samples whose spread exceeds the median and `least` cannot be trusted, unless the series is
    judged by `absolute` differences. Neither can a point whose headline series all spread so.
    """
    better = line.info.better
    # So few runs decide no level.
    first = line.levels.nights.at[:STEP].tolist()

    def early(a: Spread, b: Spread) -> Verdict:
        return compare_sides(a, b, line.levels, better)

    def between(a: Level, b: Level) -> Verdict | None:
        if a is b:
            return None
        return compare_levels(line.value, line.levels, line.runs, a.start, b.start, better)

    return {
        "point": line.info.point,
        # The spread of a fraction is judged against 1 at least.
        "least": int(line.levels.fraction),
        "absolute": line.levels.absolute,
        "relative": not line.verdict.unit,
        "first": [line.runs[i] for i in first],
        "early": _of_each_two([line.band(i) for i in first], early),
        "within": [_cells(compare_within(level, better)) for level in line.levels.levels],
        "between": _of_each_two(line.levels.levels[-LEVELS:], between),
    }


def _of_each_two(
    parts: Sequence[Item], compare: Callable[[Item, Item], Verdict | None]
) -> list[list[Cells | None]]:
    """Return the verdict on each two parts of a series: a row for each part that comes first."""
    square = []
    for before in parts:
        verdicts = [compare(before, after) for after in parts]
        square.append([_cells(verdict) if verdict else None for verdict in verdicts])
    return square


def values(medians: RunMedians) -> Iterator[tuple[str, str, Callable[[], Data]]]:
    """Yield path, mark and values of the series of each benchmark in each month.

    The values are made only where they are written, because a run changes those of one month.
    """
    months = np.array([month_of(run.run_id) for run in medians.runs])
    benchmarks = np.array([info.benchmark for info in medians.series], dtype=str)
    arrays = (medians.value, medians.low, medians.high, medians.n)
    for benchmark in np.unique(benchmarks[benchmarks != "canary"]).tolist():
        lines = np.flatnonzero(benchmarks == benchmark)
        for month in np.unique(months).tolist():
            columns = np.flatnonzero(months == month)
            rows = lines[np.isfinite(medians.value[np.ix_(lines, columns)]).any(axis=1)]
            if rows.size:
                runs = [medians.runs[i].run_id for i in columns]
                series = [medians.series[i].series_id for i in rows]
                figures = [array[np.ix_(rows, columns)] for array in arrays]
                mark = digest(*runs, *series, *(block.tobytes().hex() for block in figures))
                yield (
                    f"values/{key_name(benchmark)}/{month}.js",
                    mark,
                    partial(_values, runs, series, figures),
                )


def _values(runs: list[str], series: list[str], figures: Sequence[np.ndarray]) -> Data:
    """Return the runs, and the values, lows, highs and n of each series by its id."""
    by_id: Data = {}
    for name, *sizes, n in zip(series, *(block.tolist() for block in figures), strict=True):
        shown = [list(map(rounded, values)) for values in sizes]
        by_id[name] = [*shown, n]
    return {"runs": runs, "series": by_id}


def rounded(value: float) -> float | None:
    """Return a value with six significant digits, or None where it is not finite."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def key_name(text: str) -> str:
    """Return a text as a name of a key: itself where it can be one."""
    return text if is_key(text) and "/" not in text else digest(text)


def verdicts(store: Store, suite: str, before: str, after: str) -> Data:
    """Return the verdict of each series that was compared, by series id.

    `paired` has the ids in A of those that have another id in B, and `missing` the number and first
    names of those not compared.
    Raises SelectionError, StoreError.
    """
    a = Selection(before, suite, (before,))
    b = Selection(after, suite, (after,))
    comparison = compare_selections((store, a), (store, b))
    compared = {row.info.series_id: row for row in comparison.series}
    missing = {
        SIDES.get(reason, reason): (len(names), names[:MISSING])
        for reason, names in comparison.left_out.items()
        if names and reason != "damaged"  # The page names damaged files in a warning.
    }
    return {
        "parameters": comparison.parameters,
        "missing": missing,
        "series": {name: _cells(row.verdict) for name, row in compared.items()},
        "paired": {name: row.series_a for name, row in compared.items() if row.series_a != name},
    }


def _cells(verdict: Verdict) -> Cells:
    """Return kind, text, effect, noise, the figures compared, and whether they are too noisy."""
    return [
        verdict.kind,
        verdict.text,
        verdict.size,
        percent(verdict.noise, verdict.unit, sign=False),
        rounded(verdict.before),
        rounded(verdict.value),
        verdict.noisy,
    ]

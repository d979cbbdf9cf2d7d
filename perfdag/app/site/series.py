"""What the site shows of the series of a suite: levels, changes, acceptance, values."""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from perfdag.analysis.alerts import Rules
from perfdag.analysis.history import Acknowledgement, Series, Step
from perfdag.analysis.medians import RunMedians, SeriesInfo, settings_of
from perfdag.digest import digest
from perfdag.results.labels import flatten
from perfdag.results.samples import day_of, month_of
from perfdag.stats.robust import Array
from perfdag.store.base import is_key
from perfdag.units import quantity, short

CELLS = 30_000
"""Values of one script file, about 1 MB."""
SERIES = 1_000
"""Descriptions of series in one script file, about 1 MB."""

Data = dict[str, Any]
Clusters = Sequence[tuple[RunMedians, Sequence[Series]]]
"""The runs of each cluster, and the series with their answers."""


@dataclass(frozen=True)
class Block:
    """A script file of series or values. `mark` changes with the content."""

    path: str
    mark: str
    rows: list[int]
    columns: list[int]


def series_data(clusters: Clusters, rules: Rules) -> dict[str, list[Data]]:
    """Return the series of all clusters by benchmark, in the order of the history."""
    by_benchmark: dict[str, list[Data]] = {}
    for here, series in clusters:
        for line in series:
            data = _series(line, here, rules.accepted) | {"cluster": here.runs[0].cluster}
            by_benchmark.setdefault(line.info.benchmark, []).append(data)
    for lines in by_benchmark.values():
        _keep_varied(lines)
    return by_benchmark


def _series(line: Series, medians: RunMedians, accepted: Sequence[Acknowledgement]) -> Data:
    info, newest = line.info, line.newest
    factor, unit = scale(info.unit, line.levels.levels[-1].reference)
    day = day_of(medians.runs[-1].run_id)
    acks = [ack for ack in accepted if ack.holds(line.name, info.series_id, day)]
    return {
        "id": info.series_id,
        "name": line.name,
        "metric": info.name,
        "factor": factor,
        "unit": unit,
        "better": info.better,
        "headline": info.headline,
        "word": line.answer.word,
        "answer": line.answer.text,
        "noise": rounded(line.answer.noise),
        "newest": None if math.isnan(newest) else newest,
        "levels": [
            [medians.runs[level.start].run_id, rounded(level.reference), rounded(level.noise)]
            for level in line.levels.levels
        ],
        "changes": [_change(step, info.unit) for step in line.steps],
        "acks": [{"run": ack.run, "reason": ack.reason, "until": ack.until} for ack in acks],
        "settings": _settings(info),
    }


def _change(step: Step, unit: str) -> Data:
    return {
        "run": step.run,
        "before": step.run_before,
        "word": step.word,
        "size": step.size,
        "step": step.values(unit),
        "environment": step.environment,
    }


def _settings(info: SeriesInfo) -> dict[str, str]:
    """Return what tells a series from others: entry, settings of its point, coordinates."""
    coordinates = dict(flatten(orjson.loads(info.coords or "{}")))
    return {"entry": info.entry, "metric": info.metric} | settings_of(info) | coordinates


def _keep_varied(lines: list[Data]) -> None:
    """Keep the settings that differ between the series of a benchmark."""
    names = {name for line in lines for name in line["settings"]}
    varied = {name for name in names if len({line["settings"].get(name) for line in lines}) > 1}
    for line in lines:
        line["settings"] = {k: v for k, v in line["settings"].items() if k in varied}


def scale(unit: str, value: float) -> tuple[float, str]:
    """Return (factor, name) of the unit in which `short` shows a value."""
    name = short(value, unit).partition(" ")[2]
    try:
        factor, base = quantity(f"1{name}")
    except ValueError:
        return 1.0, name
    return (factor if base == unit else 1.0), name


def value_blocks(medians: RunMedians) -> Iterator[Block]:
    """Yield the blocks of values: some series of a benchmark in one month."""
    months: dict[str, list[int]] = {}
    for i, run in enumerate(medians.runs):
        months.setdefault(month_of(run.run_id), []).append(i)
    benchmarks: dict[str, list[int]] = {}
    for i, info in enumerate(medians.series):
        if not info.canary:
            benchmarks.setdefault(info.benchmark, []).append(i)
    for benchmark, lines in benchmarks.items():
        for month, columns in months.items():
            finite = np.isfinite(medians.value[np.ix_(lines, columns)]).any(axis=1)
            rows = np.array(lines)[finite].tolist()
            step = max(1, CELLS // len(columns))
            for number, start in enumerate(range(0, len(rows), step)):
                part = rows[start : start + step]
                path = f"values/{key_name(benchmark)}/{month}/{number}.js"
                yield Block(path, _mark(medians, part, columns), part, columns)


def _mark(medians: RunMedians, rows: list[int], columns: list[int]) -> str:
    names = [medians.series[i].series_id for i in rows] + [medians.runs[i].run_id for i in columns]
    content = hashlib.blake2b("\n".join(names).encode(), digest_size=8)
    for array in (medians.value, medians.low, medians.high, medians.n):
        content.update(np.ascontiguousarray(array[np.ix_(rows, columns)]).tobytes())
    return content.hexdigest()


def values(medians: RunMedians, block: Block) -> Data:
    """Return the values of a block: runs, and value, low, high and n of each series."""
    cells = np.ix_(block.rows, block.columns)
    arrays = [_rounded(array[cells]) for array in (medians.value, medians.low, medians.high)]
    counts = medians.n[cells].tolist()
    return {
        "runs": [medians.runs[i].run_id for i in block.columns],
        "series": {
            medians.series[row].series_id: [*(array[i] for array in arrays), counts[i]]
            for i, row in enumerate(block.rows)
        },
    }


def _rounded(array: Array) -> list[list[float | None]]:
    return [[rounded(value) for value in row] for row in array.tolist()]


def rounded(value: float) -> float | None:
    """Return a value with six significant digits, or None for NaN."""
    return None if math.isnan(value) else float(f"{value:.6g}")


def key_name(text: str) -> str:
    """Return a text as a name of a key: itself where it can be one."""
    return text if is_key(text) and "/" not in text else digest(text)

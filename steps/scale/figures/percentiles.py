"""Summaries of rows: percentiles that count what never came, and throughput."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perfdag.stats.percentiles import needed
from perfdag.steps.scale.figures.rows import Row


@dataclass(frozen=True)
class Summary:
    """One stage of a run, in seconds.

    Percentiles are nearest-rank over ok and censored rows. They are None with too few samples, or
    if the rank falls among censored rows.
    """

    stage: str
    since: str
    ok: int
    censored: int
    failed: int
    unobserved: int
    p50: float | None
    p95: float | None
    p99: float | None
    mean: float | None
    least: float | None
    most: float | None
    resolution_s: float | None
    negative: int


def rank(values: Sequence[float], p: float, least: int | None = None) -> float | None:
    """Return the nearest-rank percentile of sorted values; None for fewer than `least` values.

    By default, `least` is the number that the percentile needs.
    """
    n = len(values)
    if n < max(1, needed(p) if least is None else least):
        return None
    value = values[max(0, math.ceil(p * n) - 1)]
    return None if math.isinf(value) else value


def summaries(rows: Iterable[Row]) -> list[Summary]:
    """Return a summary per stage, in the order of appearance."""
    grouped: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        grouped.setdefault((row.stage, row.since), []).append(row)
    return [_summary(stage, since, group) for (stage, since), group in grouped.items()]


def _summary(stage: str, since: str, rows: Sequence[Row]) -> Summary:
    count: dict[str, int] = defaultdict(int)
    for row in rows:
        count[row.status] += 1
    values = sorted(row.seconds for row in rows if row.status == "ok" and row.seconds is not None)
    ranked = [*values, *([math.inf] * count["censored"])]
    resolutions = [row.resolution_s for row in rows if row.resolution_s is not None]
    return Summary(
        stage,
        since,
        count["ok"],
        count["censored"],
        count["failed"],
        count["unobserved"],
        rank(ranked, 0.50),
        rank(ranked, 0.95),
        rank(ranked, 0.99),
        sum(values) / len(values) if values else None,
        values[0] if values else None,
        values[-1] if values else None,
        max(resolutions) if resolutions else None,
        sum(value < 0 for value in values),
    )


def throughput(reached: Sequence[float], window: float = 5.0) -> tuple[float | None, float | None]:
    """Return objects per second: the mean, and the best `window` seconds; None below 2 objects."""
    times = sorted(reached)
    if len(times) < 2 or times[-1] <= times[0]:
        return None, None
    mean = (len(times) - 1) / (times[-1] - times[0])
    if times[-1] - times[0] < window:
        return mean, None
    best, start = 0, 0
    for end, at in enumerate(times):
        while at - times[start] >= window - 1e-9:
            start += 1
        best = max(best, end - start + 1)
    return mean, best / window

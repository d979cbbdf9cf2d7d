"""Fold the series of a Prometheus query to figures. Counters may be reset, or begin in a run."""

import math
from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from perfdag.steps.scale.figures.api_metrics import quantile

RATE_WINDOW = 60.0
"""Seconds of the windows in which rates are computed."""
Point = tuple[float, float]
"""Unix seconds and value."""


def points_of(data: dict[str, Any], label: str = "") -> list[list[Point]]:
    """Return the points of all series of an answer, or of those with the label."""
    chosen = [series for series in data["result"] if not label or series["metric"].get(label)]
    return [[(float(at), float(value)) for at, value in series["values"]] for series in chosen]


def fold(series: list[list[Point]], how: str, start: float = -math.inf) -> dict[str, float | None]:
    """Fold the series of a query to figures by suffix. NaN points are skipped.

    Growth and rates are computed per series and summed. New series start from 0 if another one has
    a point at `start`.
    """
    series = [[point for point in points if not math.isnan(point[1])] for points in series]
    if how in ("growth", "rate"):
        series = with_starts(series, start)
    if how == "growth":
        grown = [sum(grown for _, grown in growth(points)) for points in series if len(points) > 1]
        return {"": sum(grown) if grown else None}
    if how == "rate":
        values = rates(series)
    else:
        at: dict[float, float] = defaultdict(float)
        for points in series:
            for moment, value in points:
                at[moment] += value
        values = list(at.values())
    return _avg_min_max(values)


def with_starts(series: list[list[Point]], start: float) -> list[list[Point]]:
    """Add a point of 0 before counters that begin after `start`.

    Without any point at `start`, new counters cannot be recognised and stay unchanged.
    """
    moments = sorted({at for points in series for at, _ in points})
    if not moments or moments[0] > start + 0.01:
        return series
    before = {after: at for at, after in pairwise(moments)}
    return [
        [(before[points[0][0]], 0.0), *points] if points and points[0][0] in before else points
        for points in series
    ]


def share(rest: list[list[Point]], every: list[list[Point]]) -> dict[str, float | None]:
    """Return the share of the growth of `every` series that is not growth of the `rest`."""
    parts = [
        1 - part / whole for part, whole in zip(rates(rest), rates(every), strict=False) if whole
    ]
    return _avg_min_max(parts)


def p99(buckets: Mapping[float, list[Point]]) -> dict[str, float | None]:
    """Return the p99 of the growth of cumulative buckets, in every window with growth."""
    windows = zip(*(rates([points]) for points in buckets.values()), strict=False)
    values = [quantile(dict(zip(buckets, grown, strict=True)), 0.99)[0] for grown in windows]
    return _avg_min_max([value for value in values if value is not None])


def _avg_min_max(values: list[float]) -> dict[str, float | None]:
    if not values:
        return {"_avg": None, "_min": None, "_max": None}
    return {"_avg": sum(values) / len(values), "_min": min(values), "_max": max(values)}


def growth(points: list[Point]) -> list[Point]:
    """Return the growth of a counter at every point after the first.

    A counter that falls was reset.
    """
    return [
        (at, after - before if after >= before else after)
        for (_, before), (at, after) in pairwise(points)
    ]


def rates(series: list[list[Point]]) -> list[float]:
    """Return the growth per second of all series, over windows of RATE_WINDOW or the whole run.

    PromQL's rate over a fixed range would include time before the run.
    """
    moments = sorted({at for points in series for at, _ in points})
    if len(moments) < 2:
        return []
    count = max(1, int((moments[-1] - moments[0]) / RATE_WINDOW))
    length = (moments[-1] - moments[0]) / count
    grown = [0.0] * count
    for points in series:
        for at, value in growth(points):
            grown[min(count - 1, int((at - moments[0]) / length - 1e-9))] += value
    return [value / length for value in grown]

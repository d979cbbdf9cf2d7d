"""Whether the figures of a sample are possible, whatever tool printed them."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from perfdag.benchmark.contract import Failed, Invalid, Measurement, Metric

_ORDERED = re.compile(r"min|mean|max|p\d+(\.\d+)?")
_BIN = 0.1
"""Share of a value that a bin of a tool's histogram may span, as netperf's do."""
_CLOCKS, _WHOLE_SECOND = 0.01, 1.0
"""Share by which clocks may differ, and the step of the API server's times, in s."""


def check_possible(metric: Metric, measurement: Measurement) -> None:
    """Raise Failed for a value that the metric cannot have."""
    most = metric.highest * (1 + 1e-9)  # a share of 1 may be a rounding error above it
    if not metric.lowest <= measurement.value <= most or math.isinf(measurement.value):
        raise Failed(
            f"{metric.name} cannot be {measurement.value:g} {metric.unit}: it is a number from"
            f" {metric.lowest:g} to {metric.highest:g}"
        )


def check_resolution(metric: Metric, measurement: Measurement) -> None:
    """Raise Invalid for a headline of which the tool's clock or print knows too little."""
    if measurement.step * metric.steps > abs(measurement.value):
        raise Invalid(
            f"{metric.name} is {measurement.value:g} {metric.unit}, and the tool's clock or print"
            f" can be off by {measurement.step:g}, more than 1 part in {metric.steps};"
            " measure more or longer"
        )


def check_duration(measurement: Measurement, wall: float) -> None:
    """Raise Invalid for a time that is longer than the whole sample took."""
    if measurement.value > wall * (1 + _CLOCKS) + _WHOLE_SECOND:
        raise Invalid(
            f"{measurement.metric} is {measurement.value:g} s, but the whole sample took"
            f" {wall:g} s by this host's clock"
        )


def check_order(measurements: Sequence[Measurement]) -> None:
    """Raise Failed where a percentile of a figure is above a higher one, or a mean above a max."""
    figures: dict[tuple[Any, ...], dict[str, float]] = {}
    for measurement in measurements:
        if _ORDERED.fullmatch(measurement.stat):
            coords = sorted(measurement.coords.items())
            figure = (measurement.metric, measurement.subject, *coords)
            figures.setdefault(figure, {})[measurement.stat] = measurement.value
    for (metric, *_), values in figures.items():
        for low, high in _neighbours(values):
            if values[low] - _BIN * abs(values[low]) > values[high]:
                raise Failed(
                    f"{metric} cannot have {low} {values[low]:g} and {high} {values[high]:g}:"
                    " they are out of order"
                )


def _neighbours(values: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """Yield pairs of statistics of which the first is at most the second."""
    percentiles = [stat for stat in values if stat.startswith("p")]
    percentiles.sort(key=lambda stat: float(stat[1:]))
    for order in (["min", *percentiles, "max"], ["min", "mean", "max"]):
        yield from pairwise(stat for stat in order if stat in values)

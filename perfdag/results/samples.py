"""Samples as the measuring loop stores them, `runs/<run_id>/parts/<point>-<repetition>.json`.

A retry replaces the file.
"""

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import orjson

from perfdag.benchmark.contract import (
    Benchmark,
    Failed,
    Invalid,
    Measurement,
    Metric,
    metrics_by_name,
)
from perfdag.redaction import redact_json


@dataclass
class SampleRecord:
    """One sample.

    `rows` are its measurements with unit and direction, `texts` the outputs of the tools. Times are
    UTC in ISO 8601.
    """

    point: str
    repetition: int
    status: str
    error: str | None = None
    started_at: str = ""
    finished_at: str = ""
    rows: list[dict[str, Any]] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    commands: list[list[str]] = field(default_factory=list)
    tool: str = ""
    benchmark_version: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    noise: str | None = None
    nodes: list[str] = field(default_factory=list)
    env: dict[str, Any] = field(default_factory=dict)
    env_class: str = ""
    batch: int = 0
    order_index: int = 0
    attempt: int = 1
    where: dict[str, Any] = field(default_factory=dict)

    def dump(self) -> bytes:
        """Return the sample as JSON, without the known secret values.

        Of a name that is not UTF-8, as Linux allows, the other bytes are written in hexadecimal.
        """
        fields = {"schema": 1, **vars(self)}
        try:
            data = orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)
        except TypeError:
            data = orjson.dumps(_utf8(fields), option=orjson.OPT_SORT_KEYS)
        return redact_json(data)


def _utf8(data: Any) -> Any:
    if isinstance(data, str):
        return os.fsencode(data).decode(errors="backslashreplace")
    if isinstance(data, Mapping):
        return {_utf8(key): _utf8(value) for key, value in data.items()}
    return [_utf8(item) for item in data] if isinstance(data, list | tuple) else data


def read_sample(data: bytes) -> SampleRecord:
    """Return a sample from its JSON. Raises ValueError where it is damaged."""
    raw = orjson.loads(data)
    if not isinstance(raw, dict):
        raise ValueError("a sample is a mapping")
    raw.pop("schema", None)
    try:
        return SampleRecord(**raw)
    except TypeError as error:
        raise ValueError(str(error)) from None


def as_rows(
    benchmark: Benchmark[Any],
    measurements: Sequence[Measurement],
    params: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Return the rows of a sample with these params, whose values are possible.

    Raises Failed for an undeclared metric, a value that the metric cannot have, and statistics out
    of order; Invalid for a headline that the tool knows to less than 1 part in `Metric.steps`.
    """
    declared, rows = metrics_by_name(benchmark, params), []
    figures: dict[tuple[Any, ...], dict[str, float]] = {}
    for one in measurements:
        if one.metric not in declared:
            raise Failed(f"no metric {one.metric!r} is declared, only {', '.join(declared)}")
        metric = declared[one.metric]
        most = metric.highest * (1 + 1e-9)  # a share of 1 may be a rounding error above it
        if not metric.lowest <= one.value <= most or math.isinf(one.value):
            raise Failed(
                f"{metric.name} cannot be {one.value:g} {metric.unit}: it is a number from"
                f" {metric.lowest:g} to {metric.highest:g}"
            )
        rows.append(as_row(metric, one))
        if rows[-1]["headline"] and one.step * metric.steps > abs(one.value):
            raise Invalid(
                f"{one.metric} is {one.value:g} {metric.unit}, and the tool's clock or print can be"
                f" off by {one.step:g}, more than 1 part in {metric.steps}; measure more or longer"
            )
        if _ORDERED.fullmatch(one.stat):
            figure = one.metric, one.subject, *sorted(one.coords.items())
            figures.setdefault(figure, {})[one.stat] = one.value
    for (name, *_), values in figures.items():
        parts = sorted((stat for stat in values if stat[0] == "p"), key=lambda p: float(p[1:]))
        for order in (["min", *parts, "max"], ["min", "mean", "max"]):
            for low, high in pairwise(stat for stat in order if stat in values):
                if values[low] - _BIN * abs(values[low]) > values[high]:
                    raise Failed(
                        f"{name} cannot have {low} {values[low]:g} and {high} {values[high]:g}:"
                        " they are out of order"
                    )
    return rows


_ORDERED = re.compile(r"min|mean|max|p\d+(\.\d+)?")
_BIN = 0.1
"""Share of a value that a bin of a tool's histogram may span, as netperf's do."""


def as_row(metric: Metric, measurement: Measurement) -> dict[str, Any]:
    """Return a measurement with what is declared of its metric."""
    columns: dict[str, Any] = {
        "metric": metric.name,
        "stat": measurement.stat,
        "value": float(measurement.value),
        "unit": metric.unit,
        "better": metric.better,
        "headline": metric.headline and measurement.subject is None,
    }
    if measurement.coords:
        columns["coords"] = dict(measurement.coords)
    more = {name: getattr(measurement, name) for name in ("n", "subject", "note")}
    return columns | {name: value for name, value in more.items() if value is not None}


def headline(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the value of the first headline row of a sample, or None."""
    return next((row["value"] for row in rows if row["headline"]), None)


def now() -> str:
    """Return the time in UTC with microseconds."""
    return datetime.now(UTC).isoformat(timespec="microseconds")

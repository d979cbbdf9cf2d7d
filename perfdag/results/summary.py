"""Summary of a run: median, spread and n of each series, and the state of each point."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from perfdag.results.labels import labels_by_point, point_settings, series_name
from perfdag.stats.robust import Spread, median, spread
from perfdag.units import short


@dataclass
class Series:
    """Values of one metric of one point, without warm-up. `band` is their spread.

    `nominal` says how much of the nominally possible the median is, where that is known.
    """

    point: str
    entry: str
    benchmark: str
    metric: str
    stat: str
    coords: dict[str, Any]
    unit: str
    better: str
    headline: bool
    series_id: str
    span: str | None = None
    values: list[float] = field(default_factory=list)
    nominal: str = ""

    @property
    def middle(self) -> float:
        return median(self.values)

    @property
    def band(self) -> Spread:
        return spread(self.values)

    @property
    def name(self) -> str:
        """Metric with its statistic, coordinates and span: `latency p99 direction=read`."""
        return series_name(self.metric, self.stat, self.coords, self.span)

    def text(self) -> tuple[str, str]:
        """Return median and spread for people, with units."""
        band = self.band
        if band.kind == "none":
            return "-", "-"
        return short(
            self.middle, self.unit
        ), f"{short(band.low, self.unit)} to {short(band.high, self.unit)}"


@dataclass
class PointState:
    """One point: samples by status, reasons of failures, disturbances, and series.

    Headline series come first. `pair` and `nodes` (distinct tuples, one per sample) belong to a
    point that is one pair of hosts.
    """

    point: str
    entry: str
    benchmark: str
    params: dict[str, Any]
    shape: dict[str, Any]
    statuses: dict[str, int] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    noise: list[str] = field(default_factory=list)
    series: list[Series] = field(default_factory=list)
    pair: str | None = None
    nodes: list[tuple[str, ...]] = field(default_factory=list)


def summarise(table: pa.Table) -> list[PointState]:
    """Return the points of one run's rows in the order of the table, without the canary."""
    wanted = [
        "point",
        "entry",
        "benchmark",
        "params",
        "shape",
        "phase",
        "repetition",
        "variant",
        "status",
        "error",
        "noise",
    ]
    values = [
        "metric",
        "stat",
        "coords",
        "unit",
        "better",
        "headline",
        "series_id",
        "subject",
        "value",
        "span",
    ]
    columns = {name: table.column(name).to_pylist() for name in (*wanted, *values, "pair", "nodes")}
    points: dict[str, PointState] = {}
    series: dict[str, Series] = {}
    seen: set[tuple[Any, ...]] = set()
    for i, point in enumerate(columns["point"]):
        if columns["benchmark"][i] == "canary" or columns["phase"][i] != "measure":
            continue
        state = points.get(point)
        if state is None:
            params, shape = orjson.loads(columns["params"][i]), orjson.loads(columns["shape"][i])
            state = points[point] = PointState(
                point,
                columns["entry"][i],
                columns["benchmark"][i],
                params,
                shape,
                pair=columns["pair"][i],
            )
        sample = (point, columns["repetition"][i], columns["variant"][i])
        if sample not in seen:
            seen.add(sample)
            _count(state, columns["status"][i], columns["error"][i], columns["noise"][i])
            if (
                state.pair
                and (used := tuple(columns["nodes"][i] or ()))
                and used not in state.nodes
            ):
                state.nodes.append(used)
        if (
            columns["value"][i] is None
            or columns["subject"][i] is not None
            or columns["status"][i] != "ok"
        ):
            continue
        identity = columns["series_id"][i]
        if identity not in series:
            series[identity] = Series(
                point,
                state.entry,
                state.benchmark,
                columns["metric"][i],
                columns["stat"][i],
                orjson.loads(columns["coords"][i]),
                columns["unit"][i],
                columns["better"][i],
                bool(columns["headline"][i]),
                identity,
                columns["span"][i],
            )
            state.series.append(series[identity])
        series[identity].values.append(columns["value"][i])
    for state in points.values():
        state.series.sort(key=lambda item: not item.headline)
    return list(points.values())


def _count(state: PointState, status: str, error: str | None, noise: str | None) -> None:
    state.statuses[status] = state.statuses.get(status, 0) + 1
    if error and error not in state.reasons:
        state.reasons.append(error)
    if noise and noise not in state.noise:
        state.noise.append(noise)


def statuses_of(rows: pa.Table) -> dict[str, int]:
    """Return the samples of a run by status, without warm-up and canaries."""
    canary = pc.equal(rows["benchmark"], "canary")
    measured = rows.filter(pc.and_not(pc.equal(rows["phase"], "measure"), canary))
    table = measured.select(["point", "repetition", "status"])
    return Counter(table.group_by(table.column_names).aggregate([])["status"].to_pylist())


def statuses_text(statuses: Mapping[str, int]) -> str:
    """Return samples by status, the good ones first: `9 ok, 1 failed`."""
    ordered = sorted(statuses.items(), key=lambda item: item[0] != "ok")
    return ", ".join(f"{count} {status}" for status, count in ordered)


def point_labels(states: Iterable[PointState]) -> dict[str, str]:
    """Return point id -> what distinguishes it within its entry: `streams=4 network.host=true`."""
    return labels_by_point(
        (state.entry, state.point, point_settings(state.params, state.shape, state.pair))
        for state in states
    )

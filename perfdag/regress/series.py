"""What a suite measures and when: the identity of a series, and one run of the suite."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

import orjson

from perfdag.results.labels import labels_by_point, point_settings, series_name


@dataclass(frozen=True)
class SeriesInfo:
    """The identity of a series. `params`, `shape` and `coords` are canonical JSON.

    `better` is higher, lower or none, `pair` empty or `0-3`, `span` that of the rows or empty.
    """

    series_id: str
    entry: str
    benchmark: str
    point: str
    params: str
    shape: str
    pair: str
    coords: str
    metric: str
    stat: str
    unit: str
    better: str
    benchmark_version: str
    span: str
    headline: bool

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """What is measured, regardless of the suite's name and the benchmark's version."""
        return (self.point, self.coords, self.metric, self.stat, self.span)

    @property
    def name(self) -> str:
        """Metric with its statistic, coordinates and span: `latency p99 direction=read`."""
        return series_name(self.metric, self.stat, orjson.loads(self.coords or "{}"), self.span)

    @property
    def canary(self) -> bool:
        """Whether it measures the machine and not the suite."""
        return self.benchmark == "canary"


@dataclass(frozen=True)
class RunInfo:
    """One run: start (ISO 8601, UTC), cluster, `env` as flat text, and the state of each point.

    `points` maps a point to (ok, not ok, an error, entry).
    """

    run_id: str
    started_at: str
    trigger: str
    cluster: str
    env: dict[str, str]
    points: dict[str, tuple[int, int, str, str]]

    @property
    def when(self) -> datetime:
        """The time the run started."""
        return datetime.fromisoformat(self.started_at)


def settings_of(info: SeriesInfo) -> dict[str, str]:
    """Return the settings of the point of a series as flat text."""
    params, shape = orjson.loads(info.params or "{}"), orjson.loads(info.shape or "{}")
    return point_settings(params, shape, info.pair)


def series_labels(series: Iterable[SeriesInfo]) -> dict[str, str]:
    """Return point id -> what distinguishes it within its entry (`streams=4 network.host=true`)."""
    points = {info.point: info for info in series}
    return labels_by_point((info.entry, info.point, settings_of(info)) for info in points.values())

"""A part: one sample as the lead stored it, `runs/<run_id>/parts/<point>-<repetition>.json`. A retry replaces it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson

from perfdag.benchmark import Benchmark, Measurement
from perfdag.stats.robust import median, spread
from perfdag.store import Store


@dataclass
class SampleRecord:
    """One sample. `rows` are measurements with unit and direction filled in; `texts` what the tools said; times are UTC ISO text."""

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
        """The JSON of the part."""
        return orjson.dumps({"schema": 1, **vars(self)}, option=orjson.OPT_SORT_KEYS)


def read_sample(data: bytes) -> SampleRecord:
    """A part from its JSON. Raises ValueError where it is damaged."""
    raw = orjson.loads(data)
    if not isinstance(raw, dict):
        raise ValueError("a part is a mapping")
    raw.pop("schema", None)
    try:
        return SampleRecord(**raw)
    except TypeError as error:
        raise ValueError(str(error)) from None


def as_row(benchmark: Benchmark[Any], measured: Measurement) -> dict[str, Any]:
    """A measurement with what the benchmark declares of its metric. Raises KeyError for an undeclared metric, ValueError for NaN."""
    if measured.value != measured.value:
        raise ValueError(f"{measured.metric} is not a number")
    metric = benchmark.metric(measured.metric)
    columns: dict[str, Any] = {
        "metric": metric.name,
        "stat": measured.stat,
        "value": float(measured.value),
        "unit": metric.unit,
        "better": metric.better,
        "headline": metric.headline and measured.subject is None,
    }
    if measured.coords:
        columns["coords"] = dict(measured.coords)
    if measured.n is not None:
        columns["n"] = measured.n
    if measured.subject is not None:
        columns["subject"] = measured.subject
    return columns


def headline(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Value of the first headline row of a sample; None where it has none."""
    return next((as_row["value"] for as_row in rows if as_row["headline"]), None)


def relative_precision(values: Sequence[float]) -> float | None:
    """Half-width of the 95 % order-statistic interval of the median over the median; None where n allows no interval (below 6)."""
    band, middle = spread(list(values)), median(list(values))
    return abs((band.high - band.low) / 2 / middle) if band.kind == "interval" and middle else None


def now() -> str:
    """UTC with microseconds."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def run_folder(run_id: str) -> str:
    """Folder of a run in the store."""
    return f"runs/{run_id}"


def sample_key(run_id: str, name: str) -> str:
    """Key of a part; `name` as Plan.key gives it."""
    return f"runs/{run_id}/parts/{name}.json"


def stored_samples(store: Store, run_id: str) -> set[str]:
    """Names of the parts of a run that are stored."""
    return {key.rpartition("/")[2].removesuffix(".json") for key in store.list(f"runs/{run_id}/parts")}


def delete_damaged_samples(store: Store, run_id: str) -> list[str]:
    """Remove the parts of a run that cannot be read, so that going on with it measures them again; returns their names.

    Every part is read, which takes about as long as collecting them. Raises StoreError.
    """
    damaged = []
    for key, data in store.get_many(store.list(f"runs/{run_id}/parts")):
        try:
            read_sample(data)
        except ValueError:
            damaged.append(key)
    for key in damaged:
        store.delete(key)
    return [key.rpartition("/")[2].removesuffix(".json") for key in damaged]

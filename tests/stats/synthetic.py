"""Runs made of numbers: a store with rows as the real ones have them, for tests and for timing."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import ArrayLike

from perfdag.identity import canonical, digest
from perfdag.results.schema import SAMPLES, SCHEMA_VERSION
from perfdag.stats.levels import Levels, add_levels
from perfdag.stats.scale import MIN_EFFECT, Nights, noises
from perfdag.store.base import Store

START = datetime(2026, 1, 5, 4, 41, tzinfo=UTC)


def run_id(night: int, suite: str = "net") -> str:
    """Id of the run of a night."""
    moment = START + timedelta(days=night)
    return f"{moment:%Y%m%dT%H%M%SZ}-{digest(suite, str(night))[:8]}"


def rows(
    night: int,
    values: Mapping[str, Sequence[float] | np.ndarray],
    *,
    suite: str = "net",
    entry: str = "iperf",
    metric: str = "throughput",
    unit: str = "bit/s",
    better: str = "higher",
    headline: bool = True,
    stat: str = "value",
    env: Mapping[str, Any] | None = None,
    nodes: Sequence[str] = ("n1",),
    **more: Any,
) -> list[dict[str, Any]]:
    """Rows of one metric in one run: `values` are the repetitions by point (a name such as
    `streams=4`); NaN: it failed.
    """
    moment = START + timedelta(days=night)
    night_rows = []
    for point, repetitions in values.items():
        params = dict(part.split("=") for part in point.split(",") if "=" in part)
        identity = digest(entry, point)
        for repetition, value in enumerate(repetitions, 1):
            ok = bool(np.isfinite(value))
            series = digest(suite, identity, "1", "{}", metric if ok else "", stat if ok else "")
            row: dict[str, Any] = {
                "schema_version": SCHEMA_VERSION,
                "suite": suite,
                "entry": entry,
                "benchmark": entry,
                "benchmark_version": "1",
                "point": identity,
                "params": canonical(params),
                "shape": "{}",
                "coords": "{}",
                "metric": metric if ok else None,
                "stat": stat if ok else None,
                "series_id": series,
                "env_class": "1 x test CPU",
                "run_id": run_id(night, suite),
                "trigger": "cron",
                "repetition": repetition,
                "phase": "measure",
                "sample_id": digest(series, str(night), str(repetition)),
                "value": float(value) if ok else None,
                "unit": unit if ok else None,
                "better": better if ok else None,
                "headline": headline if ok else None,
                "status": "ok" if ok else "failed",
                "error": None if ok else "it would not start",
                "started_at": moment + timedelta(seconds=repetition),
                "finished_at": moment + timedelta(seconds=repetition + 1),
                "cluster": "blue",
                "nodes": list(nodes),
                "env": canonical({"kernel": "6.1.112", "cpu_model": "test CPU", **(env or {})}),
                "perfdag_version": "0.1.0",
                "tool": "iperf3 3.12",
            }
            night_rows.append(row | more)
    return night_rows


FILES: dict[bytes, bytes] = {}
"""The Parquet file of rows that a test has written before: many write the same nights."""


def put(store: Store, night_rows: Sequence[dict[str, Any]]) -> str:
    """Write the rows of one run where `collect` would; returns the key."""
    suite, run = night_rows[0]["suite"], night_rows[0]["run_id"]
    key = f"results/{suite}/{run[:4]}-{run[4:6]}/{run}.parquet"
    identity = orjson.dumps(list(night_rows))
    if identity not in FILES:
        sink = pa.BufferOutputStream()
        table = pa.Table.from_pylist(list(night_rows), schema=SAMPLES)
        pq.write_table(table, sink, compression="zstd", store_schema=False)
        FILES[identity] = sink.getvalue().to_pybytes()
    store.put(key, FILES[identity])
    return key


def nights(
    store: Store,
    count: int,
    level: Callable[[int, str], float],
    *,
    points: Sequence[str] = ("streams=1", "streams=4", "streams=8"),
    noise: float = 0.01,
    repetitions: int = 3,
    seed: int = 0,
    env: Callable[[int], Mapping[str, Any]] = lambda night: {},
    canary: Callable[[int], float] = lambda night: 1e4,
    first: int = 0,
    **more: Any,
) -> None:
    """Write `count` nights of a suite; `level(night, point)` is the true value, noise is
    relative, between and within runs.
    """
    for night in range(first, first + count):
        rng = np.random.default_rng((seed, night))
        values = {}
        for point in points:
            between = np.exp(rng.normal(0, noise))
            values[point] = (
                level(night, point) * between * np.exp(rng.normal(0, noise / 2, repetitions))
            )
        night_rows = rows(night, values, env=env(night), **more)
        night_rows += rows(
            night,
            {"canary": canary(night) * np.exp(rng.normal(0, 0.005, 4))},
            suite=night_rows[0]["suite"],
            entry="canary",
            metric="cpu",
            unit="1/s",
            headline=False,
            env=env(night),
        )
        put(store, night_rows)


def slower(store: Store, suite: str, runs: int, samples: int) -> tuple[str, str]:
    """Write runs of which the newest is slower by half and the one before has an outlier.

    Return the ids of these two.
    """
    about: dict[str, Any] = {"metric": "wall_time", "unit": "s", "better": "lower"}
    for night in range(runs):
        values = np.linspace(0.99, 1.01, samples) * (1.5 if night == runs - 1 else 1.0)
        values[-1] *= 1.9 if night == runs - 2 else 1.0
        put(store, rows(night, {"size=1": values}, suite=suite, entry="task", **about))
    return run_id(runs - 2, suite), run_id(runs - 1, suite)


def step(night: int, point: str) -> float:
    """A level for `nights`: the points have the same, and streams=8 loses 15 % at night 34."""
    return 1e10 * (0.85 if night >= 34 and point == "streams=8" else 1.0)


def levels_of(values: ArrayLike | Nights, **settings: Any) -> Levels:
    """The levels of nights, or of one value a night; NaN, where nothing was measured, is none."""
    nights = values if isinstance(values, Nights) else Nights.of(values)
    series = Levels(nights=nights, **settings)
    add_levels(series)
    return series


def noise_of(residuals: ArrayLike, prior: float = MIN_EFFECT) -> float:
    """The standard deviation of one measurement, see `noises`; without any, the prior."""
    row = np.asarray(residuals, dtype=np.float64).reshape(1, -1)
    return float(noises(row, np.array([row.size]), prior)[0]) if row.size else prior

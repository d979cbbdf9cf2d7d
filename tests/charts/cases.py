"""Rows for the test of charts: recorded outputs, and values like those of runs.

Each benchmark has tables of one point, many points, points that failed, and long names.
"""

import importlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from perfdag.benchmark.registry import get
from perfdag.results.samples import as_rows
from tests.charts import rows
from tests.charts.rows import value
from tests.recorded.recordings import DAMAGED

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
sample_charts: Any = importlib.import_module("sample_charts")

Values = list[dict[str, Any]]
Base = list[tuple[dict[str, Any], Values]]
"""Parameters and values of points."""
MANY = 100
FEW = {"scale": 12, "vmi-burst": 12}
"""Points of benchmarks whose points have hundreds of objects."""
LONG = "a-name-of-forty-characters-in-all-it-has"
SWEPT = {
    "command": "threads",
    "fio": "iodepth",
    "imb": "ranks",
    "iperf": "streams",
    "openfoam": "procs",
    "resnet50": "batch",
    "scale": "count",
    "vmi-burst": "count",
}
"""A parameter to sweep, of benchmarks that have charts of each kind."""
ERROR = "exit 1: unable to connect to server: Connection refused, after 30 s and three attempts"


def recorded(benchmark: str) -> Base:
    """The points of a benchmark that were recorded."""
    points = []
    for case in DAMAGED.values():
        recording = case.load()
        if recording.benchmark.name == benchmark:
            params = recording.params.model_dump(mode="json", exclude_none=True)
            measured = recording.parse(recording.output.texts, recording.params)
            points.append((params, as_rows(recording.benchmark, measured)))
    return points


def sampled(benchmark: str) -> Base:
    """The points of a benchmark with the figures of the documentation."""
    points, values = sample_charts.SAMPLES[benchmark]
    own = get(benchmark)
    return [(params, as_rows(own, list(values(params, 1.0)))) for params in points]


BASES: dict[str, Base] = {
    "command": [({"threads": 1}, [value("wall_time", 0.1, headline=True)])],
    **{name: recorded(name) or sampled(name) for name in SWEPT if name != "command"},
}


def scaled(values: Values, factor: float) -> Values:
    return [
        {**item, "value": item["value"] * (factor if item["unit"] != "1" else 1)} for item in values
    ]


def measured(benchmark: str, points: Sequence[tuple[dict[str, Any], Values]], **more: Any) -> Any:
    for number, (params, values) in enumerate(points):
        for repetition in (1, 2, 3):
            factor = 1 + 0.02 * repetition + 0.1 * (number % 7)
            yield rows.sample(benchmark, params, repetition, scaled(values, factor), **more)


def failed(benchmark: str, points: Sequence[tuple[dict[str, Any], Values]]) -> Any:
    for params, _ in points:
        own = {**params, "broken": True}
        yield rows.sample(benchmark, own, 1, [], status="failed", error=ERROR)


def tables(benchmark: str) -> Iterator[tuple[str, pa.Table]]:
    """Yield the tables of a benchmark by name."""
    base, swept = BASES[benchmark], SWEPT[benchmark]
    yield "one", rows.table(*measured(benchmark, base[:1]))
    yield "recorded", rows.table(*measured(benchmark, base))
    many = [
        ({**params, swept: 2 ** (i % 10), "mode": f"m{i // 10:02}"}, values)
        for i in range(FEW.get(benchmark, MANY))
        for params, values in (base[i // 10 % len(base)],)
    ]
    yield "many", rows.table(*measured(benchmark, many))
    some = [({**base[0][0], swept: 2**i}, base[0][1]) for i in range(6)]
    broken = failed(benchmark, [({**base[0][0], swept: 2**i}, []) for i in range(6, 12)])
    yield "failed", rows.table(*measured(benchmark, some), *broken)
    yield "all failed", rows.table(*failed(benchmark, base))
    long = [
        ({**params, "label": LONG[:-1] + str(k), swept: 2**i}, values)
        for params, values in base[:1]
        for k in range(3)
        for i in range(3)
    ]
    yield "long", rows.table(*measured(benchmark, long, entry=LONG))
    two = [({**base[0][0], "label": LONG[:-1] + str(k)}, base[0][1]) for k in range(2)]
    yield "categories", rows.table(*measured(benchmark, two, entry=LONG))

"""The installed benchmarks, which register in the entry-point group `perfdag.benchmarks`."""

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from perfdag.benchmark.contract import Benchmark


@cache
def names() -> tuple[str, ...]:
    """Return the names of all installed benchmarks, sorted."""
    return tuple(sorted(benchmark_entry_points()))


@cache
def benchmark_entry_points() -> dict[str, EntryPoint]:
    """Return the entry points of all installed benchmarks, by name."""
    return {point.name: point for point in entry_points(group="perfdag.benchmarks")}


@cache
def get(name: str) -> Benchmark[Any]:
    """Return the benchmark of that name. Raises KeyError if none is installed."""
    benchmark: type[Benchmark[Any]] = benchmark_entry_points()[name].load()
    return benchmark()

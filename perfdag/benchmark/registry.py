"""The installed benchmarks, which register in the entry-point group `perfdag.benchmarks`.

A benchmark is checked where it is loaded. A broken one breaks no other: whoever lists benchmarks
lists the `working` ones, and a suite that names a broken one is refused with its `fault`.
"""

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from perfdag.benchmark.contract import Benchmark
from perfdag.benchmark.declaration import mistake


class BrokenBenchmark(KeyError):
    """An installed benchmark that cannot be used. The message names its package."""

    def __str__(self) -> str:
        return str(self.args[0])


@cache
def names() -> tuple[str, ...]:
    """Return the names of all installed benchmarks, sorted, without loading them."""
    return tuple(sorted(benchmark_entry_points()))


@cache
def benchmark_entry_points() -> dict[str, EntryPoint]:
    """Return the entry points of all installed benchmarks, by name."""
    return {point.name: point for point in entry_points(group="perfdag.benchmarks")}


@cache
def get(name: str) -> Benchmark[Any]:
    """Return the benchmark of that name.

    Raises KeyError if none is installed, BrokenBenchmark if it breaks the contract.
    """
    point = benchmark_entry_points()[name]
    try:
        benchmark = point.load()
        text = mistake(name, benchmark)
    except Exception as error:
        text = f"cannot be imported: {type(error).__name__}: {error}"
    if text:
        raise BrokenBenchmark(f"benchmark {name} of package {package(name)} {text}")
    loaded: Benchmark[Any] = benchmark()
    return loaded


def package(name: str) -> str:
    """Return the name and version of the package that has the benchmark `name`."""
    distribution = getattr(benchmark_entry_points()[name], "dist", None)
    return f"{distribution.name} {distribution.version}" if distribution else "perfdag"


def fault(name: str) -> str | None:
    """Return why the installed benchmark `name` cannot be used, or None."""
    try:
        get(name)
    except BrokenBenchmark as error:
        return str(error)
    return None


def usable(name: str) -> bool:
    """Return whether a benchmark of that name is installed and can be used."""
    return name in names() and fault(name) is None


def working() -> tuple[str, ...]:
    """Return the names of the benchmarks that can be used, sorted."""
    return tuple(name for name in names() if fault(name) is None)


def faults() -> list[str]:
    """Return a sentence for each installed benchmark that cannot be used."""
    return [text for name in names() if (text := fault(name))]

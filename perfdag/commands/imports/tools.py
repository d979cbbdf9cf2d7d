"""The results of other tools that measure programs, as the figures of a history.

A reader takes the path of one JSON file and what it holds, and yields each figure in the columns of
`perfdag import history`. All values are times or sizes, so lower is better.
"""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from perfdag.commands.options import CommandError
from perfdag.revision import CHANGES

Figure = dict[str, str]


@dataclass(frozen=True)
class Tool:
    """A tool: how its results are read, how they are made, and what a history does not keep."""

    read: Callable[[Path, Any], Iterator[Figure]]
    made_by: str
    not_kept: str


def read_figures(tool: Tool, file: Path) -> list[Figure]:
    """Return the figures of a file. Raises CommandError."""
    try:
        figures = [*tool.read(file, json.loads(file.read_bytes()))]
    except OSError as error:
        raise CommandError(f"{error.filename}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        figures = []
    if not figures:
        raise CommandError(f"{file}: no results; they are made by {tool.made_by}")
    return [{"better": "lower", **figure} for figure in figures]


def hyperfine(file: Path, data: Any) -> Iterator[Figure]:
    """Yield the wall times of each command, at the time when the file was written."""
    written = datetime.fromtimestamp(file.stat().st_mtime, UTC).isoformat()
    for result in data["results"]:
        for seconds, exit_code in zip(result["times"], result["exit_codes"], strict=True):
            value = str(seconds) if exit_code == 0 else f"exit code {exit_code}"
            yield {"time": written, "series": result["command"], "value": value, "unit": "s"}


def pytest_benchmark(_file: Path, data: Any) -> Iterator[Figure]:
    """Yield the median of each test, whose rounds may be hundreds of thousands."""
    commit = data.get("commit_info") or {}
    machine = data["machine_info"]
    of_run = {
        "time": data["datetime"],
        "revision": (commit.get("id") or "") + (CHANGES if commit.get("dirty") else ""),
        "fact.host": machine["node"],
        "fact.kernel": machine["release"],
        "fact.cpu_model": machine["cpu"].get("brand_raw", ""),
        "fact.python": machine["python_version"],
    }
    for test in data["benchmarks"]:
        median = str(test["stats"]["median"])
        yield {**of_run, "series": test["fullname"], "value": median, "unit": "s"}


def google_benchmark(_file: Path, data: Any) -> Iterator[Figure]:
    """Yield the real time of each repetition."""
    context = data["context"]
    of_run = {"time": context["date"], "fact.host": context["host_name"]}
    for result in data["benchmarks"]:
        if result["run_type"] != "iteration":
            continue
        failed = result.get("error_occurred")
        value = result.get("error_message", "error") if failed else str(result["real_time"])
        series = result.get("run_name", result["name"])
        yield {**of_run, "series": series, "value": value, "unit": result.get("time_unit", "ns")}


ASV_UNITS = {"seconds": "s", "bytes": "B"}


def asv(file: Path, data: Any) -> Iterator[Figure]:
    """Yield the result of each benchmark and parameter, at the time of its commit.

    Units are those of `benchmarks.json`, which is in the folder above that of the machine.
    """
    benchmarks = _benchmarks_of_asv(file.parent.parent / "benchmarks.json")
    machine = data["params"]
    of_run = {
        "time": str(data["date"]),
        "revision": data["commit_hash"],
        "fact.host": machine["machine"],
        "fact.kernel": machine.get("os", ""),
        "fact.cpu_model": machine.get("cpu", ""),
        "fact.environment": data["env_name"],
    }
    for name, stored in data["results"].items():
        columns = dict(zip(data["result_columns"], stored, strict=False))
        unit = benchmarks[name]["unit"]
        names = benchmarks[name]["param_names"]
        combinations = [*itertools.product(*columns.get("params") or [])]
        results = columns["result"] or [None] * len(combinations)
        for values, result in zip(combinations, results, strict=True):
            parameters = [f"{of}={value}" for of, value in zip(names, values, strict=True)]
            value = "failed" if result is None else str(result)
            series = " ".join([name, *parameters])
            yield {**of_run, "series": series, "value": value, "unit": ASV_UNITS.get(unit, unit)}


@cache
def _benchmarks_of_asv(file: Path) -> Any:
    """Return what asv knows of its benchmarks, which serves the files of all commits."""
    return json.loads(file.read_bytes())


TOOLS = {
    "hyperfine": Tool(
        hyperfine,
        "hyperfine --export-json FILE",
        "user and system time, memory; a file has no time, so that of its last change is taken",
    ),
    "pytest-benchmark": Tool(
        pytest_benchmark,
        "pytest --benchmark-json FILE, or --benchmark-autosave",
        "all of a test but its median: rounds, mean, extremes, groups and extra_info",
    ),
    "asv": Tool(
        asv,
        "asv run, in .asv/results/MACHINE/",
        "samples and quartiles; the time is that of the commit",
    ),
    "google-benchmark": Tool(
        google_benchmark,
        "--benchmark_format=json",
        "CPU time, rates and counters; aggregates, which are computed anew",
    ),
}
"""The tools by the name that `perfdag import` takes."""


def check_one_environment(files: Iterable[Path]) -> None:
    """Raise CommandError where results of asv come from two machines or environments."""
    kinds = {(file.parent, file.stem.partition("-")[2]) for file in files}
    if len(kinds) > 1:
        first, second = sorted(kinds)[:2]
        raise CommandError(
            f"results of two environments, {'-'.join(map(str, first))} and "
            f"{'-'.join(map(str, second))}; import each with a --suite of its own"
        )

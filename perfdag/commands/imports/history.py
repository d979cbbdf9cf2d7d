"""Runs from a history of earlier figures: a CSV file, or the results of another tool.

A reader of a tool takes the path of one JSON file and what it holds, and yields each figure in the
columns of `perfdag import history`. All values are times or sizes, so lower is better.
"""

import argparse
import contextlib
import csv
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from perfdag import __version__
from perfdag.commands.options import EXIT_FAILED, EXIT_OK, CommandError
from perfdag.identity import canonical, digest
from perfdag.redaction import logger
from perfdag.results.run_store import result_key, runs_with_rows
from perfdag.revision import CHANGES
from perfdag.store.base import Store, store_option
from perfdag.store.s3 import open_store
from perfdag.suite.load import suite_name
from perfdag.units import NEVER_ALERTS, impossible, plural, to_base, usual_direction

Values = dict[str, Any]
COLUMNS = ("time", "series", "value", "unit", "better", "revision")
FACT = "fact."
"""The beginning of a column with a fact about the machine, such as `fact.kernel`."""
EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
"""The first time that a figure may have; before it, a unit or a clock was wrong."""
SHOWN = 20
"""Lines on stderr about a file."""


class History:
    """The rows of a source, and a line for what is unusual in it and what was done.

    The source is a CSV file, or the name of a tool whose files were read.
    """

    def __init__(self, path: Path, suite: str) -> None:
        self.path, self.suite = path, suite
        self.rows: list[Values] = []
        self.notes: list[str] = []
        self.undated = 0
        """Lines without a time, which are left out."""
        self._first: dict[str, tuple[str, str]] = {}

    def read(self) -> None:
        """Read the CSV file. Raises CommandError."""
        try:
            with self.path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
                reader = csv.DictReader(file)
                reader.fieldnames = [(name or "").strip().lower() for name in next(reader.reader)]
                self._check_columns(reader.fieldnames)
                for fields in reader:
                    texts = {
                        name: text.strip() for name, text in fields.items() if isinstance(text, str)
                    }
                    self.add(f"line {reader.line_num}", texts)
        except OSError as error:
            raise CommandError(f"{self.path}: {error.strerror}") from None
        except (csv.Error, StopIteration) as error:
            raise CommandError(f"{self.path}: {str(error) or 'it is empty'}") from None

    def _check_columns(self, names: Sequence[str]) -> None:
        """Note the columns that are not read. Raises CommandError where one is missing."""
        if missing := [name for name in COLUMNS[:3] if name not in names]:
            expected = f"no column {', '.join(missing)}; the columns are {', '.join(COLUMNS)}"
            if len(names) == 1 and (separator := re.search(r"[;\t|]", names[0])):
                expected = f"columns are separated by commas, not by {separator[0]!r}"
            raise CommandError(f"{self.path}: {expected}, and the file has {', '.join(names)}")
        unread = [name for name in names if name not in COLUMNS and not name.startswith(FACT)]
        if unread:
            named = ", ".join(name or "(no name)" for name in unread)
            fact = f"a fact about the machine into {FACT}{unread[0] or 'NAME'}"
            self.notes.append(f"not read: column {named}; a commit belongs into `revision`, {fact}")

    def add(self, place: str, texts: Mapping[str, str]) -> None:
        """Add a figure in the columns of a history; `place` says where in the source it is."""
        when, name, text, unit, better, revision = (texts.get(column, "") for column in COLUMNS)
        time = time_of(when)
        if time is None:
            self.undated += 1
            self.notes.append(f"{place}: {when!r} is no time from 2000 to tomorrow; left out")
            return
        series = " ".join("".join(c if c.isprintable() else " " for c in name).split())
        if not series:
            series = self.suite
            self.notes.append(f"{place}: no series; kept as series {series}")
        series, unit, factor, better = self._in_base_unit(place, series, unit, better.lower())
        try:
            value = float(text) * factor
        except ValueError:
            value = math.nan
        problem = impossible(value, unit, better)
        if not math.isfinite(value):
            problem = f"value {text!r} is no number"
        error = f"{place}: {problem}" if problem else None
        if error:
            self.notes.append(f"{error}; kept as an invalid sample of {series}")
        metric = None if error else "value"
        facts = {
            column.removeprefix(FACT): fact
            for column, fact in texts.items()
            if column.startswith(FACT) and fact
        }
        self.rows.append(
            {
                **{"entry": series, "point": digest("import", series), "benchmark": "import"},
                **{"series_id": digest(self.suite, series), "suite": self.suite},
                **{"params": "{}", "shape": "{}", "coords": "{}", "nodes": []},
                **{"env": canonical(facts), "revision": revision or None},
                **{"metric": metric, "stat": metric, "headline": not error},
                **{"value": None if error else value},
                **{"unit": unit, "better": better, "phase": "measure", "trigger": "import"},
                **{"status": "invalid" if error else "ok", "error": error},
                **{"started_at": time, "finished_at": time, "perfdag_version": __version__},
                **{"raw_uri": f"{self.path.name} {place}"},
            }
        )

    def _in_base_unit(
        self, place: str, series: str, unit: str, better: str
    ) -> tuple[str, str, float, str]:
        """Return series, base unit, the factor to it, and the direction, as of the first line.

        Values of another dimension are another series.
        """
        direction = better if better in ("higher", "lower") else "none"
        if not better:
            direction = usual_direction(base_unit(unit or "1")[0])
        first_unit, direction = self._first.setdefault(series, (unit or "1", direction))
        base, factor = base_unit(unit or first_unit)
        if base != base_unit(first_unit)[0]:
            name = f"{series} ({base})"
            self.notes.append(f"{place}: {series} in {unit}, first in {first_unit}; kept as {name}")
            return self._in_base_unit(place, name, unit, better)
        if better not in ("", direction):
            self.notes.append(f"{place}: {series} is better {better!r}; taken as {direction}")
        return series, base, factor, direction

    def note_directions(self) -> None:
        """Note the series of which no change is worse."""
        names = [name for name, (_, better) in self._first.items() if better == "none"]
        if names:
            how = "write `higher` or `lower` into the column `better`"
            self.notes.insert(0, f"{', '.join(names)}: {NEVER_ALERTS}; {how}")

    def runs(self) -> list[list[Values]]:
        """Return the rows of each run, oldest first."""
        self.rows.sort(key=lambda row: row["started_at"])
        groups = itertools.groupby(self.rows, key=lambda row: row["started_at"])
        return [[*rows] for _, rows in groups]

    def file_id(self, number: int = 0) -> str:
        """Return the digits by which the runs of the file are known; `number` counts namesakes."""
        namesake = [str(number)] if number else []
        return digest(self.suite, self.path.name, *namesake)[:8]

    def identify(self, rows: list[Values], number: int = 0) -> None:
        """Give the rows of a run its id, and their repetitions."""
        run_id = f"{rows[0]['started_at']:%Y%m%dT%H%M%SZ}-{self.file_id(number)}"
        count: Counter[str] = Counter()
        for row in rows:
            count[row["entry"]] += 1
            repetition = count[row["entry"]]
            sample = digest(row["series_id"], run_id, str(repetition))
            row |= {"run_id": run_id, "repetition": repetition, "sample_id": sample}


def base_unit(unit: str) -> tuple[str, float]:
    """Return the base unit of a unit and the factor to it. One of the user's own is its own."""
    try:
        return to_base(unit)
    except ValueError:
        return unit, 1.0


def time_of(text: str) -> datetime | None:
    """Return a time from 2000 to tomorrow, in UTC and whole seconds, or None if the text is none.

    Digits are a date (`20260102`, `202601021530`, `20260102153000`), or s, ms, us or ns since 1970.
    At most one of them lies in these years, so that nothing is guessed.
    """
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    return next((time for time in _readings(text) if EARLIEST <= time <= tomorrow), None)


def _readings(text: str) -> Iterator[datetime]:
    """Yield what a text may mean as a time, in UTC and whole seconds."""
    if re.fullmatch(r"\d+(\.\d+)?", text):
        for parts in (1, 10**3, 10**6, 10**9):
            with contextlib.suppress(ValueError, OverflowError, OSError):
                yield datetime.fromtimestamp(float(text) // parts, UTC)
    if re.fullmatch(r"\d{12}|\d{14}", text):
        text = f"{text[:8]}T{text[8:]}"
    with contextlib.suppress(ValueError, OverflowError):
        time = datetime.fromisoformat(text).replace(microsecond=0)
        yield time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)


def refuse_mixture(history: History, stored: Iterable[str]) -> None:
    """Raise CommandError if the file's name only resembles that of a suite with other runs.

    `stored` are the runs of the suite: names of several files may become one.
    """
    if history.path.stem == history.suite:
        return
    if foreign := [run for run in stored if not run.endswith(history.file_id())]:
        text = f"suite {history.suite} has runs of another file, such as {foreign[-1]}"
        raise CommandError(f"{history.path}: {text}; name the suite with --suite")


def identify_all(
    history: History, store: Store, stored: Iterable[str], runs: list[list[Values]]
) -> None:
    """Give each run an id at which the store has no other figures. Raises CommandError, StoreError.

    Another file of this name without a series in common has runs of its own beside it.
    """
    from perfdag.results.schema import read_rows

    for rows in runs:
        for number in itertools.count():
            history.identify(rows, number)
            run_id = rows[0]["run_id"]
            if run_id not in stored:
                break
            earlier = _values(read_rows(store.get(result_key(history.suite, run_id))).to_pylist())
            values = _values(rows)
            changed = [key for key in earlier if earlier[key] != values.get(key)]
            if not changed:
                break
            if {series for series, _ in earlier} & {series for series, _ in values}:
                text = f"run {run_id} in the store has other values of {changed[0][0]}"
                advice = "rename the file, or name another suite: --suite NAME"
                raise CommandError(f"{history.path}: {text}; {advice}")


def _values(rows: Iterable[Values]) -> dict[tuple[str, int], tuple[float | None, str]]:
    """Return value and unit by series and repetition."""
    return {(row["entry"], row["repetition"]): (row["value"], row["unit"]) for row in rows}


def import_history(args: argparse.Namespace) -> int:
    """Store the runs of a CSV file. Return 1 if lines were left out."""
    path = Path(args.file)
    history = History(path, suite_of(args, suite_name(path.stem)))
    history.read()
    return store_history(history, args)


def suite_of(args: argparse.Namespace, default: str) -> str:
    """Return the name of the suite to store into. Raises CommandError."""
    suite: str = args.suite or default
    if not re.fullmatch("[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?", suite):
        raise CommandError("--suite: at most 40 lower-case letters, digits and -, such as boot")
    return suite


def store_history(history: History, args: argparse.Namespace) -> int:
    """Store the runs of a history, and list what is unusual in it. Return 1 if one has no time."""
    import pyarrow as pa  # `import` of a suite needs none

    from perfdag.results.collect import write_rows
    from perfdag.results.schema import SAMPLES, SCHEMA_VERSION

    suite = history.suite
    store = open_store(args.store)
    history.note_directions()
    runs = history.runs()
    stored = runs_with_rows(store, suite)
    if args.suite is None:
        refuse_mixture(history, stored)
    identify_all(history, store, stored, runs)
    for rows in runs:
        versioned = [row | {"schema_version": SCHEMA_VERSION} for row in rows]
        table = pa.Table.from_pylist(versioned, schema=SAMPLES)
        write_rows(store, suite, rows[0]["run_id"], table)
    notes = history.notes[:SHOWN]
    if len(history.notes) > SHOWN:
        notes.append(f"and {len(history.notes) - SHOWN} more lines")
    for text in notes:
        logger.info(f"{history.path}: {text}")
    if not runs:
        raise CommandError(f"{history.path}: no line has a time, so nothing was stored")
    text = f"{plural(len(runs), 'run')}, {plural(len(history.rows), 'value')}, suite {suite}"
    command = f"perfdag history {suite} {store_option(store.root)}"
    print(f"{text}, store {store.root}; {command} shows them")
    return EXIT_FAILED if history.undated else EXIT_OK


Figure = dict[str, str]


@dataclass(frozen=True)
class OtherTool:
    """A tool: how its results are read, how they are made, and what a history does not keep."""

    read: Callable[[Path, Any], Iterator[Figure]]
    made_by: str
    not_kept: str


def read_figures(tool: OtherTool, file: Path) -> list[Figure]:
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
    "hyperfine": OtherTool(
        hyperfine,
        "hyperfine --export-json FILE",
        "user and system time, memory; a file has no time, so that of its last change is taken",
    ),
    "pytest-benchmark": OtherTool(
        pytest_benchmark,
        "pytest --benchmark-json FILE, or --benchmark-autosave",
        "all of a test but its median: rounds, mean, extremes, groups and extra_info",
    ),
    "asv": OtherTool(
        asv,
        "asv run, in .asv/results/MACHINE/",
        "samples and quartiles; the time is that of the commit",
    ),
    "google-benchmark": OtherTool(
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

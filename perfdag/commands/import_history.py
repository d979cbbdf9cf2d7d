"""`perfdag import history`: runs from a CSV file of earlier figures."""

import argparse
import csv
import logging
import math
import re
from collections import Counter
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from perfdag import __version__
from perfdag.commands.options import (
    EXIT_FAILED,
    EXIT_OK,
    STORE,
    CommandError,
    Verbs,
    add_verb,
    option,
)
from perfdag.digest import digest
from perfdag.units import plural, to_base

logger = logging.getLogger(__name__)


COLUMNS = ("time", "series", "value", "unit", "better")
SHOWN = 20
"""Lines on stderr about one kind of trouble."""
ISO = "%Y-%m-%dT%H:%M:%SZ"
EPOCH = re.compile(r"\d{9,}(\.\d+)?")
EPILOG = """examples:
  perfdag import history boot.csv
  perfdag import history boot.csv --suite nightly --store s3://bench/results

The columns are time, series, value, unit and better. A time is ISO 8601 (UTC if it names no zone)
or seconds since 1970, cut to whole seconds. Values of equal times are one run, and several of one
series are its repetitions. A unit such as ms or MiB/s becomes its base unit. better is higher,
lower or none. The same file gives the same runs again. Exit code 1: a line has no time.
"""


def add(formats: Verbs) -> None:
    """Register the format."""
    add_verb(
        formats,
        "history",
        run,
        "Store earlier figures as runs, so that `history`, `check`, `compare` and `site` know them."
        " What is unusual in the file is listed on stderr.",
        EPILOG,
        option("file", metavar="FILE", help="CSV file with a line of column names"),
        STORE,
        option("--suite", metavar="NAME", help="suite of the runs (default: name of FILE)"),
        help="store the runs of a CSV file",
    )


class Reader:
    """Makes a row of each line, and notes by kind what is unusual and what was done."""

    def __init__(self, path: Path, suite: str) -> None:
        self.path, self.suite = path, suite
        self.rows: list[dict[str, Any]] = []
        self.notes: dict[str, list[str]] = {}
        self._first: dict[str, tuple[str, str, str]] = {}

    def note(self, kind: str, text: str) -> None:
        """Note something unusual."""
        self.notes.setdefault(kind, []).append(text)

    def read(self) -> None:
        """Read the file. Raises CommandError."""
        try:
            with self.path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
                reader = csv.DictReader(file)
                reader.fieldnames = [(name or "").strip().lower() for name in next(reader.reader)]
                if missing := [name for name in COLUMNS[:3] if name not in reader.fieldnames]:
                    columns = f"the columns are {', '.join(COLUMNS)}"
                    raise CommandError(f"{self.path}: no column {', '.join(missing)}; {columns}")
                for fields in reader:
                    texts = [(fields.get(name) or "").strip() for name in COLUMNS]
                    self._add(reader.line_num, *texts)
        except (OSError, csv.Error, StopIteration) as error:
            raise CommandError(f"{self.path}: {str(error) or 'it is empty'}") from None

    def _add(self, line: int, when: str, name: str, text: str, unit: str, better: str) -> None:
        time = moment(when)
        if time is None:
            self.note("no time", f"line {line}: {when!r} is no time; left out")
            return
        series = " ".join("".join(c if c.isprintable() else " " for c in name).split())
        if not series:
            series = self.suite
            self.note("no series", f"line {line}: no series; kept as series {series}")
        series, unit, factor, better = self._known(line, series, unit, better.lower())
        value, error = number(text, factor), None
        if value is None:
            error = f"line {line}: value {text!r} is no number"
            self.note("no number", f"{error}; kept as an invalid sample of {series}")
        metric = None if error else "value"
        self.rows.append(
            {
                **{"entry": series, "point": digest("import", series), "benchmark": "import"},
                **{"series_id": digest(self.suite, series), "suite": self.suite},
                **{"params": "{}", "shape": "{}", "coords": "{}", "env": "{}", "nodes": []},
                **{"metric": metric, "stat": metric, "value": value, "headline": not error},
                **{"unit": unit, "better": better, "phase": "measure", "trigger": "import"},
                **{"status": "invalid" if error else "ok", "error": error},
                **{"started_at": time, "finished_at": time, "perfdag_version": __version__},
                **{"raw_uri": f"{self.path.name}:{line}"},
            }
        )

    def _known(self, line: int, series: str, unit: str, better: str) -> tuple[str, str, float, str]:
        """Return series, base unit, the factor to it, and the direction, as of the first line.

        Values of another dimension are another series.
        """
        word = better if better in ("higher", "lower") else "none"
        first, base, kept = self._first.get(series, (unit, "", better and word))
        unit = unit or first or "1"
        try:
            own, factor = to_base(unit)
        except ValueError:  # a unit of the user's own
            own, factor = unit, 1.0
        if base and own != base:
            other = f"{series} ({own})"
            self.note("unit", f"line {line}: {series} in {unit}, first in {first}; kept as {other}")
            return self._known(line, other, unit, better)
        if base and unit != first:
            self.note("unit", f"line {line}: {series} in {unit}, first in {first}; converted")
        kept = kept or word
        if better not in ("", kept):
            self.note("better", f"line {line}: {series} is better {better!r}; taken as {kept}")
        self._first[series] = first or unit, own, kept
        return series, own, factor, kept

    def runs(self) -> list[list[dict[str, Any]]]:
        """Return the rows of each run, oldest first; note repetitions."""
        from perfdag.results.schema import SCHEMA_VERSION

        self.rows.sort(key=lambda row: row["started_at"])
        runs = []
        for time, group in groupby(self.rows, key=lambda row: row["started_at"]):
            run_id = f"{time:%Y%m%dT%H%M%SZ}-{digest(self.suite, self.path.name)[:8]}"
            count: Counter[str] = Counter()
            runs.append([*group])
            for row in runs[-1]:
                series = row["entry"]
                count[series] += 1
                if count[series] > 1:
                    at = f"line {row['raw_uri'].rpartition(':')[2]}: {series} at {time:{ISO}}"
                    self.note("equal", f"{at} once more; kept as repetition {count[series]}")
                sample = digest(row["series_id"], run_id, str(count[series]))
                row |= {"run_id": run_id, "repetition": count[series], "sample_id": sample}
                row["schema_version"] = SCHEMA_VERSION
        return runs


def moment(text: str) -> datetime | None:
    """Return a time in UTC in whole seconds, or None if the text is none from 1970 on."""
    try:
        if EPOCH.fullmatch(text):
            time = datetime.fromtimestamp(float(text) / (1000 if float(text) > 1e11 else 1), UTC)
        else:
            time = datetime.fromisoformat(text)
            time = time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return time.replace(microsecond=0) if time.year >= 1970 else None


def number(text: str, factor: float) -> float | None:
    """Return a finite number times a factor, or None."""
    try:
        value = float(text) * factor
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def run(args: argparse.Namespace) -> int:
    """Store the runs of a file, and list what is unusual in it. Return 1 if lines were left out."""
    import pyarrow as pa

    from perfdag.results.collect import write_rows
    from perfdag.results.schema import SAMPLES
    from perfdag.store.open import open_store

    path = Path(args.file)
    suite = re.sub(r"[^a-z0-9]+", "-", path.stem.lower()).strip("-")[:40].rstrip("-")
    suite, store = args.suite or suite, open_store(args.store)
    if not re.fullmatch("[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?", suite):
        raise CommandError("--suite: at most 40 lower-case letters, digits and -, such as boot")
    reader = Reader(path, suite)
    reader.read()
    runs = reader.runs()
    for rows in runs:
        write_rows(store, suite, rows[0]["run_id"], pa.Table.from_pylist(rows, schema=SAMPLES))
    for texts in reader.notes.values():
        more = [f"and {len(texts) - SHOWN} more such lines"] * (len(texts) > SHOWN)
        for text in [*texts[:SHOWN], *more]:
            logger.info(f"{path}: {text}")
    if not runs:
        raise CommandError(f"{path}: no line has a time, so nothing was stored")
    stored = f"{plural(len(runs), 'run')}, {plural(len(reader.rows), 'value')}, suite {suite}"
    print(f"{stored}, store {store.root}; perfdag history {suite} shows them")
    return EXIT_FAILED if "no time" in reader.notes else EXIT_OK

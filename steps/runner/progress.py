"""Report the progress of a lead, and what it measured: to its log, and to Argo."""

import os
import re
import sys
import time
from pathlib import Path
from typing import Any

from perfdag.kube.patch import SUMMARY
from perfdag.plan.plan import TimeLeft
from perfdag.results.samples import SampleRecord
from perfdag.stats.robust import median, spread
from perfdag.steps.loop.measure import PRECISE
from perfdag.suite.points import Point
from perfdag.units import plural, read_short_seconds, short, short_seconds, with_spread


class ProgressReporter:
    """Report progress: lines on stdout, N/M in Argo's progress file, and SUMMARY.

    `time_left` is that of the run from the first sample of this lead on. `points` is how many
    points the samples are of.
    """

    def __init__(self, total: int, time_left: TimeLeft | None = None, points: int = 0) -> None:
        self.total, self.done, self._points = total, 0, points
        self._values: dict[str, tuple[Point, dict[str, Any], list[float]]] = {}
        self._time, self._started = time_left, time.monotonic()
        self._file = os.environ.get("ARGO_PROGRESS_FILE")
        self._report()

    def started(self, point: Point, repetition: int) -> None:
        """Record that a sample begins."""
        self._started = time.monotonic()

    def finished(self, point: Point, record: SampleRecord) -> None:
        """Record and print that a sample is stored."""
        self.done += 1
        name = f"{point.entry} {point.label} repetition {record.repetition}"
        error = f": {record.error}" if record.error else self._figure(point, record)
        left = ""
        if self._time:
            self._time.finish(point, record.repetition, time.monotonic() - self._started)
            left = f" (about {short_seconds(self._time.seconds())} left)"
        print(f"{self.done}/{self.total} {record.status} {name}{error}{left}", flush=True)  # noqa: T201
        self._report()

    def _figure(self, point: Point, record: SampleRecord) -> str:
        """Note the headline of a sample; return it for the log."""
        row = next((row for row in record.rows if row["headline"]), None)
        if row is None:
            return ""
        if record.repetition > 0:
            self._values.setdefault(point.id, (point, row, []))[2].append(row["value"])
        return f" {short(row['value'], row['unit'])}"

    def summary(self) -> str:
        """Return the best point with its spread, and how many points have a value."""
        best = max(
            self._values.values(),
            key=lambda each: median(each[2]) * (1 if each[1]["better"] == "higher" else -1),
            default=None,
        )
        counts = f"{len(self._values)} of {plural(self._points, 'point')}"
        if best is None:
            return counts
        point, row, values = best
        band, text = spread(values), short(values[0], row["unit"])
        if len(values) > 1:
            text = with_spread(median(values), band.low, band.high, row["unit"])
        return f"{point.label} {text}, {counts}".strip()

    def skipped(self, point: Point, repetition: int, why: str) -> None:
        """Count a sample that `until` does not need. The total excludes samples stored before."""
        if why == PRECISE:
            if self._time:
                self._time.drop(point, repetition)
            self.done += 1
            self._report()

    def _report(self) -> None:
        if self._file:
            try:
                Path(self._file).write_text(f"{self.done}/{self.total}\n")
                Path(SUMMARY).write_text(self.summary())
            except OSError as error:
                print(f"progress is not reported to Argo: {error}", file=sys.stderr)  # noqa: T201
                self._file = None


def seconds_left(line: str | None) -> float | None:
    """Return the seconds left that a line of a lead tells, or None."""
    match = re.search(r"\(about ([^()]+) left\)$", line or "")
    return read_short_seconds(match[1]) if match else None

"""Report the progress of a lead: to its log, and to Argo."""

import os
import re
import sys
import time
from pathlib import Path

from perfdag.plan.time_left import TimeLeft
from perfdag.results.samples import SampleRecord
from perfdag.steps.measure import PRECISE
from perfdag.suite.point import Point
from perfdag.units import read_short_seconds, short_seconds


class ProgressReporter:
    """Report progress: lines on stdout, and N/M in Argo's progress file.

    `time_left` is that of the run from the first sample of this lead on.
    """

    def __init__(self, total: int, time_left: TimeLeft | None = None) -> None:
        self.total, self.done = total, 0
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
        error = f": {record.error}" if record.error else ""
        left = ""
        if self._time:
            self._time.finish(point, record.repetition, time.monotonic() - self._started)
            left = f" (about {short_seconds(self._time.seconds())} left)"
        print(f"{self.done}/{self.total} {record.status} {name}{error}{left}", flush=True)  # noqa: T201
        self._report()

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
            except OSError as error:
                print(f"progress is not reported to Argo: {error}", file=sys.stderr)  # noqa: T201
                self._file = None


def seconds_left(line: str | None) -> float | None:
    """Return the seconds left that a line of a lead tells, or None."""
    match = re.search(r"\(about ([^()]+) left\)$", line or "")
    return read_short_seconds(match[1]) if match else None

"""Progress of a run: one live line on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from perfdag.plan.plan import SAMPLE_OVERHEAD, Plan
from perfdag.results.samples import SampleRecord, headline
from perfdag.suite.point import Point
from perfdag.units import short, short_seconds

LONG_SAMPLE = 30.0
"""Expected seconds from which a log announces a sample: until it ends there is no other sign."""


class Progress:
    """The ProgressListener of a run on this machine.

    It writes a live line to stderr where that is a terminal. Elsewhere `report` gets a line when a
    sample ends, and when a long one begins. The time left is the expected time, corrected by the
    time that the samples took so far.
    """

    def __init__(self, plan: Plan, report: Callable[[str], None]) -> None:
        self.total = len(plan.order)
        self.done = 0
        self._report = report
        self._expected_left = sum(
            _expected_seconds(plan.points[index], repetition) for index, repetition in plan.order
        )
        self._expected_done = self._measured = 0.0
        self._start = 0.0
        self._live = (
            Status("starting", console=Console(stderr=True)) if sys.stderr.isatty() else None
        )

    def __enter__(self) -> "Progress":
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live:
            self._live.stop()

    def left(self) -> float:
        """Return the expected seconds to the end."""
        factor = self._measured / self._expected_done if self._expected_done > 1 else 1.0
        return self._expected_left * factor

    def started(self, point: Point, repetition: int) -> None:
        self._start = time.monotonic()
        name = point.sample(repetition)
        if self._live:
            known = self._expected_left > 0.1
            left = f"about {short_seconds(self.left())} left" if known else "until it is precise"
            self._live.update(escape(f"{self.done}/{self.total}  {name}  {left}"))
        elif point.seconds >= LONG_SAMPLE:
            seconds = short_seconds(point.seconds)
            self._report(f"[{self.done + 1}/{self.total}] {name} begins, about {seconds}")

    def ended(self, point: Point, part: SampleRecord) -> None:
        self._measured += time.monotonic() - self._start
        self._expected_done += point.seconds + SAMPLE_OVERHEAD
        self._expected_left -= _expected_seconds(point, part.repetition)
        self.done += 1
        value = headline(part.rows)
        unit = next((row["unit"] for row in part.rows if row["headline"]), "")
        text = f" {short(value, unit)}" if value is not None else ""
        reason = f": {part.error}" if part.error else ""
        name = point.sample(part.repetition)
        line = f"[{self.done}/{self.total}] {name} {part.status}{text}{reason}"
        if not self._live:
            self._report(line)
        elif part.status not in ("ok", "skipped"):
            self._live.console.print(line, markup=False, highlight=False)

    def skipped(self, point: Point, repetition: int, why: str) -> None:
        self._expected_left -= _expected_seconds(point, repetition)
        self.done += 1


def _expected_seconds(point: Point, repetition: int) -> float:
    """Return the expected seconds of a sample; 0 for a repetition that `until` may add."""
    return point.seconds + SAMPLE_OVERHEAD if repetition <= point.repetitions else 0.0

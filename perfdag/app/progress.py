"""Progress of a run: one live line on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from perfdag.plan.plan import Plan
from perfdag.plan.time_left import TimeLeft
from perfdag.results.samples import SampleRecord, headline
from perfdag.suite.point import Point
from perfdag.units import short, short_seconds

LONG_SAMPLE = 30.0
"""Expected seconds from which a log announces a sample: until it ends there is no other sign."""


class Progress:
    """The ProgressListener of a run on this machine.

    It writes a live line to stderr where that is a terminal. Elsewhere `report` gets a line when a
    sample ends, and when a long one begins.
    """

    def __init__(self, plan: Plan, report: Callable[[str], None]) -> None:
        self.total = len(plan.order)
        self.done = 0
        self._report = report
        self._time = TimeLeft(plan, range(len(plan.order)))
        self._running: tuple[Point, int] | None = None
        self._start = 0.0
        self._live = Status(self, console=Console(stderr=True)) if sys.stderr.isatty() else None

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
        if self._running is None:
            return self._time.seconds()
        return self._time.seconds(*self._running, time.monotonic() - self._start)

    def __rich__(self) -> str:
        """Return the live line, which the terminal asks for again and again."""
        if self._running is None:
            return "starting"
        left = self.left()
        text = f"about {short_seconds(left)} left" if left > 0.1 else "until it is precise"
        point, repetition = self._running
        return escape(f"{self.done}/{self.total}  {point.sample(repetition)}  {text}")

    def started(self, point: Point, repetition: int) -> None:
        self._start, self._running = time.monotonic(), (point, repetition)
        seconds = self._time.of_sample(point)
        if not self._live and seconds >= LONG_SAMPLE:
            name = f"[{self.done + 1}/{self.total}] {point.sample(repetition)}"
            self._report(f"{name} begins, about {short_seconds(seconds)}")

    def ended(self, point: Point, part: SampleRecord) -> None:
        self._time.finish(point, part.repetition, time.monotonic() - self._start)
        self._running = None
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
        self._time.drop(point, repetition)
        self.done += 1

"""Progress of a run: a bar and the results on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from perfdag.plan.plan import Plan, TimeLeft
from perfdag.results.samples import SampleRecord, headline
from perfdag.stats.robust import spread
from perfdag.suite.point import Point
from perfdag.units import short, short_seconds, with_spread

LONG_SAMPLE = 30.0
"""Expected seconds from which a log announces a sample: until it ends there is no other sign."""

if TYPE_CHECKING:
    from perfdag.app.terminal.live_line import LiveLine


class Progress:
    """The ProgressListener of a run on this machine.

    A line tells how a sample ended, with the spread of its point so far. Where stderr is a
    terminal, a bar stands below the lines. Elsewhere `report` gets the lines, and one when a long
    sample begins. With the plan of an `other` variant only failures have a line: one value of a
    variant says little.
    """

    def __init__(
        self, plan: Plan, report: Callable[[str], None], other: Plan | None = None
    ) -> None:
        self.total = len(plan.order)
        self.done = 0
        self.variant = ""
        self._only_failures = other is not None
        adaptive = any(point.until for point in plan.points)
        self._end = "until it is precise" if adaptive else "ends soon"
        self._report = report
        self._time = TimeLeft(plan, range(len(plan.order)))
        if other:
            self.total += len(other.order)
            self._time.add(other, range(len(other.order)))
        self._running: tuple[Point, int] | None = None
        self._start = 0.0
        self._values: dict[str, list[float]] = {}
        self._live = self._live_line() if sys.stderr.isatty() else None

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

    def _live_line(self) -> "LiveLine":
        from perfdag.app.terminal.live_line import LiveLine

        return LiveLine(self._cells)

    def left(self) -> float:
        """Return the expected seconds to the end."""
        if self._running is None:
            return self._time.seconds()
        return self._time.seconds(*self._running, time.monotonic() - self._start)

    def _cells(self) -> tuple[int, int, str, str]:
        """Return what the live line shows."""
        left = self.left()
        text = f"about {short_seconds(left)} left" if left > 0.1 else self._end
        name = self._name(*self._running) if self._running else "starting" * (not self.done)
        return self.done, self.total, text, name

    def _name(self, point: Point, repetition: int) -> str:
        return f"{self.variant} {point.sample(repetition)}".lstrip()

    def started(self, point: Point, repetition: int) -> None:
        self._start, self._running = time.monotonic(), (point, repetition)
        seconds = self._time.of_sample(point)
        if not self._live and seconds >= LONG_SAMPLE:
            name = f"[{self.done + 1}/{self.total}] {self._name(point, repetition)}"
            self._report(f"{name} begins, about {short_seconds(seconds)}")

    def finished(self, point: Point, part: SampleRecord) -> None:
        self._time.finish(point, part.repetition, time.monotonic() - self._start)
        self._running = None
        self.done += 1
        if self._only_failures and part.status == "ok":
            return
        value = headline(part.rows)
        unit = next((row["unit"] for row in part.rows if row["headline"]), "")
        text = f" {self._with_spread(point, part, value, unit)}" if value is not None else ""
        reason = f": {part.error}" if part.error else ""
        name = self._name(point, part.repetition)
        line = f"[{self.done}/{self.total}] {name} {part.status}{text}{reason}"
        if self._live:
            self._live.print(line, failed=part.status not in ("ok", "skipped"))
        else:
            self._report(line)

    def _with_spread(self, point: Point, part: SampleRecord, value: float, unit: str) -> str:
        """Return a value with the spread of its point so far, without warm-up."""
        values = self._values.setdefault(point.id, [])
        if part.repetition > 0:
            values.append(value)
        if len(values) < 2:
            return short(value, unit)
        band = spread(values)
        return with_spread(value, band.low, band.high, unit)

    def skipped(self, point: Point, repetition: int, why: str) -> None:
        self._time.drop(point, repetition)
        self.done += 1

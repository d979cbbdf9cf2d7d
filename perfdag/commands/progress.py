"""The progress of a run: a bar and the results on a terminal, plain lines elsewhere."""

import contextlib
import logging
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from perfdag.plan.plan import Plan, TimeLeft
from perfdag.results.samples import SampleRecord, headline
from perfdag.stats.robust import spread
from perfdag.suite.points import Point
from perfdag.units import short, short_seconds, with_spread

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from rich.table import Table

BAR = 20
"""Characters of the bar."""
LONG_SAMPLE = 30.0
"""Expected seconds from which a log announces a sample: until it ends there is no other sign."""


class Progress:
    """The ProgressListener of a run on this machine.

    It logs how each sample ended, with the spread of its point so far. Where stderr is a terminal,
    a bar stands below the lines; elsewhere a line announces a long sample. With the plan of an
    `other` variant only failures have a line: one value of a variant says little.
    """

    def __init__(self, plan: Plan, other: Plan | None = None) -> None:
        self.total = len(plan.order)
        self.done = 0
        self.variant = ""
        self._only_failures = other is not None
        adaptive = any(point.until for point in plan.points)
        self._end = "until it is precise" if adaptive else "ends soon"
        self._time = TimeLeft(plan, range(len(plan.order)))
        if other:
            self.total += len(other.order)
            self._time.add(other, range(len(other.order)))
        self._running: tuple[Point, int] | None = None
        self._start = 0.0
        self._values: dict[str, list[float]] = {}
        self._live: contextlib.AbstractContextManager[object] = contextlib.nullcontext()

    def __enter__(self) -> "Progress":
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            console = Console(stderr=True)
            self._live = Live(console=console, get_renderable=self._line, transient=True)
        self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def left(self) -> float:
        """Return the expected seconds to the end."""
        if self._running is None:
            return self._time.seconds()
        return self._time.seconds(*self._running, time.monotonic() - self._start)

    def _line(self) -> "Table":
        """Return the bar, the time left and the running sample; a terminal asks again and again."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        left = self.left()
        end = f"about {short_seconds(left)} left" if left > 0.1 else self._end
        name = self._name(*self._running) if self._running else "starting" * (not self.done)
        line = Table.grid(padding=(0, 2, 0, 0), expand=True)
        for _ in range(3):
            line.add_column(no_wrap=True)
        line.add_column(no_wrap=True, overflow="ellipsis", ratio=1)  # the one that gets narrow
        bar = ProgressBar(total=self.total, completed=self.done, width=BAR)
        line.add_row(bar, f"{self.done}/{self.total}", end, Text(name))
        return line

    def _name(self, point: Point, repetition: int) -> str:
        return f"{self.variant} {point.sample(repetition)}".lstrip()

    def started(self, point: Point, repetition: int) -> None:
        self._start, self._running = time.monotonic(), (point, repetition)
        seconds = self._time.of_sample(point)
        if seconds >= LONG_SAMPLE and not sys.stderr.isatty():
            name = f"[{self.done + 1}/{self.total}] {self._name(point, repetition)}"
            logger.info(f"{name} begins, about {short_seconds(seconds)}")

    def finished(self, point: Point, part: SampleRecord) -> None:
        self._time.finish(point, part.repetition, time.monotonic() - self._start)
        self._running = None
        self.done += 1
        if self._only_failures and part.status == "ok":
            return
        value = headline(part.rows)
        kinds = [(row["unit"], row["metric"]) for row in part.rows if row["headline"]]
        text = f" {self._with_spread(point, part, value, *kinds[:1])}" if value is not None else ""
        reason = f": {part.error}" if part.error else ""
        name = self._name(point, part.repetition)
        level = logging.INFO if part.status in ("ok", "skipped") else logging.ERROR
        line = f"[{self.done}/{self.total}] {name} {part.status}{text}{reason}"
        logger.log(level, line)

    def _with_spread(
        self, point: Point, part: SampleRecord, value: float, kind: tuple[str, str] = ("", "")
    ) -> str:
        """Return a value with the spread of its point so far, without warm-up."""
        values = self._values.setdefault(point.id, [])
        if part.repetition > 0:
            values.append(value)
        if len(values) < 2:
            return short(value, *kind)
        band = spread(values)
        return with_spread(value, band.low, band.high, *kind)

    def skipped(self, point: Point, repetition: int, why: str) -> None:
        self._time.drop(point, repetition)
        self.done += 1

"""The progress of a run: a table of its points and a bar on a terminal, plain lines elsewhere."""

import contextlib
import logging
import sys
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING

from perfdag.commands.terminal import spark
from perfdag.plan.plan import Plan, TimeLeft
from perfdag.results.samples import SampleRecord, headline
from perfdag.stats.robust import median, spread
from perfdag.suite.points import Point
from perfdag.units import short, short_seconds, with_spread

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from rich.console import RenderableType

LONG_SAMPLE = 30.0
"""Expected seconds from which a log announces a sample: until it ends there is no other sign."""
PER_SECOND = 2
"""How often a second a terminal is written: drawing must not disturb what is measured."""
BESIDE = 6
"""Lines of a terminal that the table of points leaves free."""


@dataclass
class _Row:
    """A point on the terminal: its headline values without warm-up, and what was not ok."""

    name: str
    samples: int
    unit: str = ""
    metric: str = ""
    values: list[float] = field(default_factory=list)
    done: int = 0
    lost: int = 0
    newest: int = 0

    def add(self, part: SampleRecord, number: int) -> None:
        """Note a sample, the `number`th of the run."""
        self.newest, self.done = number, self.done + (part.repetition > 0)
        self.lost += part.status != "ok"
        value = headline(part.rows)
        if value is not None and part.repetition > 0 and part.status == "ok":
            own = next(row for row in part.rows if row["headline"])
            self.unit, self.metric = own["unit"], own["metric"]
            self.values.append(value)

    @property
    def value(self) -> str:
        """The median of the point so far, with its spread from two values on."""
        if len(self.values) < 2:
            return short(self.values[0], self.unit, self.metric) if self.values else "-"
        band = spread(self.values)
        return with_spread(median(self.values), band.low, band.high, self.unit, self.metric)


class Progress:
    """The ProgressListener of a run on this machine.

    Where stderr is a terminal, a table has a line a point with its median and spread so far, a bar
    stands below it, and only failures scroll. Elsewhere each sample has a line, and a long one is
    announced. With the plan of an `other` variant only failures have a line and no point has one:
    one value of a variant says little.
    """

    def __init__(self, plan: Plan, other: Plan | None = None) -> None:
        self.total = 0
        self.done = 0
        self.variant = ""
        self._of_two = other is not None
        adaptive = any(point.until for point in plan.points)
        self._end = "until it is precise" if adaptive else "ends soon"
        self._time = TimeLeft()
        for each in filter(None, (plan, other)):
            self.total += len(each.order)
            self._time.add(each, range(len(each.order)))
        self._running: tuple[Point, int] | None = None
        self._start = 0.0
        self._rows = {
            point.id: _Row(f"{point.entry} {point.label}".strip(), point.repetitions)
            for point in plan.points
        }
        self._table = ""
        self._room = 0
        self._live: contextlib.AbstractContextManager[object] = contextlib.nullcontext()

    def __enter__(self) -> "Progress":
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            console = Console(stderr=True)
            self._room = max(1, console.height - BESIDE)
            self._live = Live(
                console=console,
                get_renderable=self._screen,
                transient=True,
                refresh_per_second=PER_SECOND,
            )
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

    def _screen(self) -> "RenderableType":
        """Return the table, the bar, the time left and the running sample."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        left = self.left()
        end = f"about {short_seconds(left)} left" if left > 0.1 else self._end
        name = self._name(*self._running) if self._running else "starting" * (not self.done)
        line = Table.grid(padding=(0, 2, 0, 0), expand=True)
        line.add_column(ratio=1)
        for _ in range(2):
            line.add_column(no_wrap=True)
        line.add_column(no_wrap=True, overflow="ellipsis", ratio=1)  # the one that gets narrow
        bar = ProgressBar(self.total, self.done, complete_style="cyan", finished_style="green")
        line.add_row(bar, f"{self.done}/{self.total}", end, Text(name))
        if not self._table:
            return line
        return Group(Text(self._table, no_wrap=True, overflow="ellipsis"), line)

    def _draw(self) -> None:
        """Write the table anew: the points that were measured last, in the order of the plan."""
        seen = [row for row in self._rows.values() if row.newest]
        newest = sorted(row.newest for row in seen)[-self._room :]
        shown = [row for row in seen if row.newest >= newest[0]]
        wide = max(len(row.name) for row in shown), max(len(row.value) for row in shown)
        self._table = "\n".join(
            f"{row.name:{wide[0]}}  {row.done:>3}/{row.samples}  {row.value:{wide[1]}}  "
            f"{spark(row.values)}{f'  {row.lost} not ok' if row.lost else ''}"
            for row in shown
        )

    def _name(self, point: Point, repetition: int) -> str:
        return f"{self.variant} {point.sample(repetition)}".lstrip()

    def started(self, point: Point, repetition: int) -> None:
        self._start, self._running = time.monotonic(), (point, repetition)
        seconds = self._time.of_sample(point)
        if seconds >= LONG_SAMPLE and not sys.stderr.isatty():
            name = f"[{self.done + 1}/{self.total}] {self._name(point, repetition)}"
            logger.info(f"{name} begins, about {short_seconds(seconds)}")

    def finished(self, point: Point, part: SampleRecord) -> None:
        self._time.done(point, part.repetition, time.monotonic() - self._start)
        self._running = None
        self.done += 1
        if not self._of_two:
            row = self._rows[point.id]
            row.add(part, self.done)
            if self._room:
                self._draw()
        if part.status == "ok" and (self._of_two or self._room):
            return
        text = f" {row.value}" if not self._of_two and row.values and part.status == "ok" else ""
        reason = f": {part.error}" if part.error else ""
        name = self._name(point, part.repetition)
        level = logging.INFO if part.status in ("ok", "skipped") else logging.ERROR
        logger.log(level, f"[{self.done}/{self.total}] {name} {part.status}{text}{reason}")

    def skipped(self, point: Point, repetition: int, why: str) -> None:
        self._time.done(point, repetition)
        self.done += 1

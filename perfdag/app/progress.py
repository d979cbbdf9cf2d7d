"""Progress of a run: one live line on a terminal; elsewhere a plain line when a sample ends, and when a long one begins."""

import sys
import time
from types import TracebackType
from typing import Any

from perfdag.plan.plan import SAMPLE_OVERHEAD, Plan
from perfdag.results.samples import SampleRecord, headline
from perfdag.suite.point import Point
from perfdag.units import short, short_seconds

LONG = 30.0
"""Expected seconds from which on a log says that a sample has begun: until it ends there is nothing else to see."""


class Progress:
    """A ProgressListener (perfdag.steps.measure) that talks to stderr. The time left is from expected times, corrected by what was seen."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.total = len(plan.order)
        self.done = self.failed = 0
        self._expected_left = sum(
            _certain(plan.points[index], repetition) for index, repetition in plan.order
        )
        self._expected_done = self._spent = 0.0
        self._began = 0.0
        self._live: Any = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.status import Status

            self._live = Status("starting", console=Console(stderr=True))

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
        """Expected seconds to the end."""
        factor = self._spent / self._expected_done if self._expected_done > 1 else 1.0
        return self._expected_left * factor

    def started(self, point: Point, repetition: int) -> None:
        self._began = time.monotonic()
        if self._live:
            from rich.markup import escape

            left = (
                f"about {short_seconds(self.left())} left"
                if self._expected_left > 0.1
                else "repeating until it is precise"
            )
            text = f"{self.done}/{self.total}  {point.sample(repetition)}  {left}"
            self._live.update(escape(text))
        elif point.seconds >= LONG:
            print(
                f"[{self.done + 1}/{self.total}] {point.sample(repetition)} begins, about {short_seconds(point.seconds)}",
                file=sys.stderr,
                flush=True,
            )

    def ended(self, point: Point, part: SampleRecord) -> None:
        self._spent += time.monotonic() - self._began
        self._expected_done += point.seconds + SAMPLE_OVERHEAD
        self._expected_left -= _certain(point, part.repetition)
        self.done += 1
        self.failed += part.status not in ("ok", "skipped")
        value = headline(part.rows)
        unit = next((row["unit"] for row in part.rows if row["headline"]), "")
        said = f" {short(value, unit)}" if value is not None else ""
        reason = f": {part.error}" if part.error else ""
        line = f"[{self.done}/{self.total}] {point.sample(part.repetition)} {part.status}{said}{reason}"
        if self._live:
            if part.status not in ("ok", "skipped"):
                self._live.console.print(line, markup=False, highlight=False)
        else:
            print(line, file=sys.stderr, flush=True)

    def passed(self, point: Point, repetition: int, why: str) -> None:
        self._expected_left -= _certain(point, repetition)
        self.done += 1


def _certain(point: Point, repetition: int) -> float:
    """Expected seconds of a sample, 0 of one that `until` may add."""
    return point.seconds + SAMPLE_OVERHEAD if repetition <= point.repetitions else 0.0

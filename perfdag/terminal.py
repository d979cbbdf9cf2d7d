"""What a terminal shows: tables, lines in colours, and the live table of a run.

    print(text_table(("series", "change"), [("read IOPS", "-8 %")], styles=[HIGHLIGHTS["worse"]]))

In a pipe nothing is folded and nothing has a colour.
"""

import contextlib
import os
import re
import shutil
import sys
import time
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from textwrap import wrap
from typing import Any, Literal

from rich.console import Console, Group, RenderableType
from rich.text import Text

from perfdag.benchmark.registry import display_unit
from perfdag.identity import canonical
from perfdag.plan import Plan, TimeLeft, idle_gpus, place_hosts
from perfdag.redaction import logger
from perfdag.results.samples import SampleRecord
from perfdag.shape import Shape
from perfdag.stats.robust import spread
from perfdag.suite.points import Point
from perfdag.units import plural, short_seconds, spark, with_spread

BAD = "bold red"
HIGHLIGHTS = {
    **dict.fromkeys(("worse", "slow", "failed", "absent", "invalid", "missing"), BAD),
    **{"better": "bold cyan", "unclear": "yellow", "warn": "yellow"},
}
"""Styles of the words that matter, in the hues of report.css."""
WHOLE_WORDS: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
FAILURE = re.compile(r"(verdict .*: )?(gate )?(failed|absent|damaged|worse|threshold)\b", re.I)
"""Beginning of a line that tells of a failure."""
MIN_LAST = 9
"""Characters of the last column without which the first stands above its row."""
PIPE = 10_000
"""Characters of a line in a pipe, where nothing is folded."""


def terminal_width() -> int:
    """Return the characters of a line of standard output: those of COLUMNS or of the terminal."""
    folds = sys.stdout.isatty() or os.environ.get("COLUMNS")
    return shutil.get_terminal_size().columns if folds else PIPE


def styled(lines: Iterable[str | tuple[str, str]]) -> str:
    """Return lines, or pairs of a line and its style, as text for standard output.

    A style is `bold`, `dim`, one of HIGHLIGHTS, or both (`bold worse`). On a terminal that word
    alone has a colour, as has the one of a line that begins with a failure, and a line that would
    be too long is broken between words. What follows hangs below its text, which a name such as
    `since` precedes in 8 characters.
    """
    console = Console()
    width = terminal_width() if sys.stdout.isatty() else PIPE
    with console.capture() as capture:
        for item in lines:
            text, style = (item, "") if isinstance(item, str) else item
            word = style.removeprefix("bold ")
            for line in text.splitlines() or [""]:
                indent = len(line) - len(line.lstrip())
                below = " " * (
                    len(line) - len(line[7:].lstrip())
                    if line[7:8] == " " and not indent
                    else indent + 2
                )
                folded = "\n".join(wrap(line, width, subsequent_indent=below, **WHOLE_WORDS))
                shown = Text(
                    folded, style=style if word in ("bold", "dim") else style.removesuffix(word)
                )
                failure = FAILURE.match(folded) if isinstance(item, str) else None
                if failure:
                    shown.stylize(BAD, *failure.span(3))
                elif word in HIGHLIGHTS:
                    shown.highlight_regex(rf"(?i)\b{word}\b", HIGHLIGHTS[word])
                console.print(shown, soft_wrap=True)
    return capture.get().removesuffix("\n")


def text_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Container[int] = (),
    styles: Iterable[str] = repeat(""),
    title: str = "",
) -> str:
    """Return a table as text, with colours if standard output is a terminal.

    `right` holds the numbers of the columns that are aligned right. If a line would be too long,
    the first cell stands above its row, and the last one below it.
    """
    cells = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    room = terminal_width()
    last = len(widths) - 1
    length = sum(widths) + 2 * last
    # 1 where the first cell stands above its row, as even a short last cell has no room.
    first = int(length > room and length - widths[-1] + MIN_LAST > room)
    lines = [(title, "bold")] if title else []
    heading = ("dim" if title else "bold", headings)
    for style, row in (heading, *zip(styles, cells, strict=False)):
        beside = [
            row[i].rjust(widths[i]) if i in right else row[i].ljust(widths[i])
            for i in range(first, last)
        ]
        text = "  " * first + "  ".join(beside)
        if row is not headings and first:
            lines += [(part, style) for part in wrap(row[0], room, **WHOLE_WORDS)]
        if row is headings or len(text) + 2 + len(row[-1]) <= room:
            lines.append((f"{text}  {row[-1]}".rstrip(), style))
        else:
            below = wrap(row[-1], room - 4, **WHOLE_WORDS)
            lines += [(text.rstrip(), style), *((f"    {part}", style) for part in below)]
    return styled(lines)


@dataclass(frozen=True)
class Finding:
    """One check: its state, what was checked, and what to do.

    `warn`: results may be noisy. `missing`: points will be skipped or fail.
    """

    state: Literal["ok", "warn", "missing"]
    what: str
    do: str = ""

    def text(self) -> str:
        """Return the finding as text."""
        return f"{self.state:<8} {self.what}" + (f"\n         -> {self.do}" if self.do else "")


LONG_SAMPLE = 30.0
"""Expected seconds from which a log announces a sample: until it ends there is no other sign."""
PER_SECOND = 2
"""How often a second a terminal is written: drawing must not disturb what is measured."""
BESIDE = 6
"""Lines of a terminal that the table of points leaves free."""


@dataclass
class _Row:
    """A point in the live table: its headline values without warm-up, and what was not ok."""

    name: str
    benchmark: str
    samples: int
    value: str = "-"
    """The median so far, with its spread from two values on."""
    values: list[float] = field(default_factory=list)
    done: int = 0
    bad: int = 0
    newest: int = 0

    def add(self, part: SampleRecord, number: int) -> None:
        """Note a sample, the `number`th of the run."""
        self.newest = number
        self.done += part.repetition > 0
        self.bad += part.status != "ok"
        headline = next((row for row in part.rows if row["headline"]), None)
        if headline is not None and part.repetition > 0 and part.status == "ok":
            self.values.append(headline["value"])
            band = spread(self.values)
            unit = display_unit(self.benchmark, headline["metric"], headline["unit"])
            self.value = with_spread(band.middle, band.low, band.high, unit)


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
        """What stands before the name of a sample, such as `A `."""
        self._of_two = other is not None
        self._end = (
            "until it is precise" if any(point.until for point in plan.points) else "ends soon"
        )
        self._time = TimeLeft()
        for variant in filter(None, (plan, other)):
            self.total += len(variant.order)
            self._time.add(variant, range(len(variant.order)))
        self._running: tuple[Point, int] | None = None
        self._start = 0.0
        self._rows = {
            point.id: _Row(point.full_title, point.benchmark, point.repetitions)
            for point in plan.points
        }
        self._room = 0

    @contextlib.contextmanager
    def shown(self) -> Iterator["Progress"]:
        """Show the table while samples are measured, where stderr is a terminal."""
        if not sys.stderr.isatty():
            yield self
            return
        from rich.live import Live

        console = Console(stderr=True)
        self._room = max(1, console.height - BESIDE)
        with Live(
            console=console,
            get_renderable=self._screen,
            transient=True,
            refresh_per_second=PER_SECOND,
        ):
            yield self

    def _screen(self) -> RenderableType:
        """Return the table, the bar, the time left and the running sample."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        running = self._running
        remaining = self._time.seconds(
            running[0] if running else None, (time.monotonic() - self._start)
        )
        end = f"about {short_seconds(remaining)} left" if remaining > 0.1 else self._end
        name = running[0].sample(running[1]) if running else "starting" * (not self.done)
        line = Table.grid(padding=(0, 2, 0, 0), expand=True)
        line.add_column(ratio=1)
        for _ in range(2):
            line.add_column(no_wrap=True)
        line.add_column(no_wrap=True, overflow="ellipsis", ratio=1)  # the one that gets narrow
        bar = ProgressBar(self.total, self.done, complete_style="cyan", finished_style="green")
        line.add_row(bar, f"{self.done}/{self.total}", end, Text(self.variant + name))
        seen = [row for row in self._rows.values() if row.newest]
        if not seen:
            return line
        # The points that were measured last, in the order of the plan.
        oldest = sorted(row.newest for row in seen)[-self._room :][0]
        shown = [row for row in seen if row.newest >= oldest]
        wide = max(len(row.name) for row in shown), max(len(row.value) for row in shown)
        table = "\n".join(
            f"{row.name:{wide[0]}}  {row.done:>3}/{row.samples}  {row.value:{wide[1]}}  "
            f"{spark(row.values)}{f'  {row.bad} not ok' if row.bad else ''}"
            for row in shown
        )
        return Group(Text(table, no_wrap=True, overflow="ellipsis"), line)

    def started(self, point: Point, repetition: int) -> None:
        self._start = time.monotonic()
        self._running = (point, repetition)
        seconds = self._time.of_sample(point)
        if seconds >= LONG_SAMPLE and not sys.stderr.isatty():
            name = f"[{self.done + 1}/{self.total}] {self.variant}{point.sample(repetition)}"
            logger.info(f"{name} begins, about {short_seconds(seconds)}")

    def finished(self, point: Point, part: SampleRecord) -> None:
        self._time.done(point, part.repetition, time.monotonic() - self._start)
        self._running = None
        self.done += 1
        value = ""
        if not self._of_two:
            row = self._rows[point.id]
            row.add(part, self.done)
            value = f" {row.value}" if row.values and part.status == "ok" else ""
        if part.status == "ok" and (self._of_two or self._room):
            return
        reason = f": {part.error}" if part.error else ""
        name = f"{self.variant}{point.sample(part.repetition)}"
        write = logger.info if part.status in ("ok", "skipped") else logger.error
        write(f"[{self.done}/{self.total}] {name} {part.status}{value}{reason}")

    def skipped(self, point: Point, repetition: int, reason: str) -> None:
        self._time.done(point, repetition)
        self.done += 1


MAX_POINTS = 40
"""Points that the table shows; JSON has all of them."""


def plan_text(plan: Plan) -> str:
    """Return the first points of a plan as a table, then its size, shapes, pairs and time."""
    headings = ("point", "repetitions", "a sample")
    rows = [
        (
            point.full_title,
            f"{point.repetitions}" + (f" to {point.until.max_repetitions}" if point.until else ""),
            short_seconds(point.seconds),
        )
        for point in plan.points[:MAX_POINTS]
    ]
    lines = [text_table(headings, rows, right=(1, 2))]
    if len(plan.points) > MAX_POINTS:
        lines.append(f"... and {len(plan.points) - MAX_POINTS:,} more (--json shows all)")
    hosts = max((shape.hosts.count for shape in plan.shapes), default=1)
    merged = f" ({plural(plan.merged, 'equal one')} merged)" if plan.merged else ""
    lines.append(
        f"\n{plural(len(plan.points), 'point')}{merged}, {plural(len(plan.order), 'sample')}, "
        f"{plural(len(plan.shapes), 'shape')}, {plural(len(plan.batches), 'batch')} on a cluster, "
        f"at most {plural(hosts, 'host')} at once"
    )
    shapes = zip(plan.shapes, place_hosts(plan).shapes, strict=True)
    lines += [f"shape: {_shape(*both)}" for both in shapes]
    lines += [f"warning: {text}" for text in idle_gpus(plan)]
    lines.append(
        f"expected {short_seconds(plan.seconds())}; each round is shuffled, from seed {plan.seed}"
    )
    return "\n".join(lines)


def _shape(shape: Shape, on_cluster: Shape) -> str:
    """Return a shape as text, with the default placement where the suite sets none."""
    data = shape.data()
    texts = (value if isinstance(value, str) else canonical(value) for value in data.values())
    text = ", ".join(f"{key} {text}" for key, text in zip(data, texts, strict=True)) or "plain"
    if shape == on_cluster:
        return text
    return f"{text}; placement on a cluster: {on_cluster.hosts.placement}"

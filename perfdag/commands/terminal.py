"""What a terminal shows: tables, lines in colours, and findings of checks."""

import os
import re
import shutil
import sys
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from textwrap import wrap
from typing import Any, Literal

from rich.console import Console
from rich.text import Text

BAD = "bold red"
HIGHLIGHTS = {"worse": BAD, "better": "bold cyan", "unclear": "yellow", "failed": BAD}
"""Style of a row by its verdict, in the hues of report.css."""
WHOLE_WORDS: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
FAILURE = re.compile(r"(verdict .*: )?(gate )?(failed|absent|damaged)\b", re.I)
"""Beginning of a line that tells of a failure."""
MIN_LAST = 9
"""Characters of the last column without which the first stands above its row."""
PIPE = 10_000
"""Characters of a line in a pipe, where nothing is folded."""
BARS = "▁▂▃▄▅▆▇█"


def terminal_width() -> int:
    """Return the characters of a line of standard output: those of COLUMNS or of the terminal."""
    folds = sys.stdout.isatty() or os.environ.get("COLUMNS")
    return shutil.get_terminal_size().columns if folds else PIPE


def spark(values: Sequence[float], most: int = 12) -> str:
    """Return the newest values as bars of letters, the lowest and the highest at the ends."""
    own = [value for value in values if value == value][-most:]
    if len(own) < 2:
        return ""
    low, range = min(own), max(own) - min(own)
    return "".join(BARS[round(7 * (value - low) / range)] if range else BARS[3] for value in own)


def fitted(line: str) -> str:
    """Return text whose lines are broken between words where a terminal would break it anywhere."""
    if not sys.stdout.isatty():
        return line
    return "\n".join(
        "\n".join(wrap(part, terminal_width(), subsequent_indent="  ", **WHOLE_WORDS))
        for part in line.splitlines() or [""]
    )


def styled(lines: Iterable[tuple[str, str]]) -> str:
    """Return (line, style) pairs as text, with colours if standard output is a terminal."""
    console = Console()
    with console.capture() as capture:
        for line, style in lines:
            console.print(Text(line, style=style), soft_wrap=True)
    return capture.get().removesuffix("\n")


def highlighted(lines: Iterable[str]) -> str:
    """Return lines, broken between words for a terminal, where failures are coloured."""
    return styled(
        (fitted(line), HIGHLIGHTS["failed"] if FAILURE.match(line) else "") for line in lines
    )


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
    the first cell stands above its row, and the last ones below it.
    """
    cells = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    above = sum(widths[:-1]) + 2 * (len(widths) - 1) + MIN_LAST > terminal_width()
    above = above and sum(widths) + 2 * (len(widths) - 1) > terminal_width()
    layout = _Layout(headings, widths, right, 1 if above else 0)
    lines = [(title, "bold"), (layout.head(), "dim")] if title else [(layout.head(), "bold")]
    for row, style in zip(cells, styles, strict=False):
        lines += [(line, style) for line in layout.lines(row)]
    return styled(lines)


class _Layout:
    """The columns that stand side by side: from `first` on, as many as fit before the last."""

    def __init__(
        self, headings: Sequence[str], widths: Sequence[int], right: Container[int], first: int
    ) -> None:
        self._headings, self._widths, self._right = headings, widths, right
        self._first, self._room = first, terminal_width() - 2 * first
        self._end = first
        while self._end < len(widths) - 1 and self._used(self._end + 1) <= self._room:
            self._end += 1

    def _used(self, end: int) -> int:
        return sum(size + 2 for size in self._widths[self._first : end]) - 2

    def _side_by_side(self, cells: Sequence[str]) -> str:
        padded = [
            cells[i].rjust(self._widths[i]) if i in self._right else cells[i].ljust(self._widths[i])
            for i in range(self._first, self._end)
        ]
        return "  " * self._first + "  ".join(padded)

    def _last_fits(self, cell: str) -> bool:
        complete = self._end == len(self._widths) - 1
        return complete and self._used(self._end) + 2 + len(cell) <= self._room

    def head(self) -> str:
        """Return the headings of the columns that stand side by side."""
        last = self._headings[-1]
        text = self._side_by_side(self._headings)
        return f"{text}  {last}".rstrip() if self._last_fits(last) else text.rstrip()

    def lines(self, cells: Sequence[str]) -> list[str]:
        """Return the lines of a row."""
        above = wrap(cells[0], terminal_width(), **WHOLE_WORDS) if self._first else []
        row = self._side_by_side(cells)
        if self._last_fits(cells[-1]):
            return [*above, f"{row}  {cells[-1]}".rstrip()]
        left = [
            f"{self._headings[i]} {cells[i]}"
            for i in range(self._end, len(cells) - 1)
            if cells[i] not in ("", "-")
        ]
        below = wrap(", ".join([*left, cells[-1]]), terminal_width() - 4, **WHOLE_WORDS)
        return [*above, row.rstrip(), *(f"    {line}" for line in below)]


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

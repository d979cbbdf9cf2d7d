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
    room, last = terminal_width(), len(widths) - 1
    whole = sum(widths) + 2 * last
    first = 1 if whole > room and whole - widths[-1] + MIN_LAST > room else 0
    end = first  # of the columns that stand side by side
    while (
        end < last and 2 * first + sum(width + 2 for width in widths[first : end + 1]) <= room + 2
    ):
        end += 1
    lines = [(title, "bold")] if title else []
    heading = ("dim" if title else "bold", headings)
    for style, row in (heading, *zip(styles, cells, strict=False)):
        beside = [
            row[i].rjust(widths[i]) if i in right else row[i].ljust(widths[i])
            for i in range(first, end)
        ]
        text = "  " * first + "  ".join(beside)
        fits = end == last and len(text) + 2 + len(row[-1]) <= room
        parts = [f"{text}  {row[-1]}".rstrip() if fits else text.rstrip()]
        if row is not headings and first:
            parts = [*wrap(row[0], room, **WHOLE_WORDS), *parts]
        if row is not headings and not fits:
            left = [f"{headings[i]} {row[i]}" for i in range(end, last) if row[i] not in ("", "-")]
            below = wrap(", ".join([*left, row[-1]]), room - 4, **WHOLE_WORDS)
            parts += [f"    {line}" for line in below]
        lines += [(part, style) for part in parts]
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

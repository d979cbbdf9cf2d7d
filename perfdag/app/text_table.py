"""Tables for a terminal, as text."""

import shutil
import sys
from collections.abc import Container, Iterable, Sequence
from itertools import repeat
from textwrap import wrap
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

HIGHLIGHTS = {"worse": "bold dark_orange", "better": "bold blue", "failed": "bold red"}
"""Style of a row by its verdict."""
WHOLE_WORDS: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
WIDTH = 80
"""Characters of a line of results where standard output is no terminal."""


def terminal_width() -> int:
    """Return the characters of a line of standard output."""
    return shutil.get_terminal_size((WIDTH, 24)).columns if sys.stdout.isatty() else WIDTH


def fitted(line: str) -> str:
    """Return a line, broken between words where a terminal would break it anywhere."""
    if not sys.stdout.isatty():
        return line
    return "\n".join(wrap(line, terminal_width(), subsequent_indent="  ", **WHOLE_WORDS))


def styled(lines: Iterable[tuple[str, str]]) -> str:
    """Return (line, style) pairs as text, with colours if standard output is a terminal."""
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    with console.capture() as capture:
        for line, style in lines:
            console.print(Text(line, style=style), soft_wrap=True)
    return capture.get().removesuffix("\n")


def text_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Container[int] = (),
    styles: Iterable[str] = repeat(""),
    width: int = 160,
) -> str:
    """Return a table as text, with colours if standard output is a terminal.

    `right` holds the numbers of the columns that are aligned right. The table is as wide as the
    terminal, or `width` characters without one.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="right" if i in right else "left", overflow="fold")
    for row, style in zip(rows, styles, strict=False):
        table.add_row(*map(Text, row), style=style)
    console = Console(width=None if sys.stdout.isatty() else width)
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())

"""Tables for a terminal, as text."""

import sys
from collections.abc import Container, Iterable, Sequence
from itertools import repeat

from rich.console import Console
from rich.table import Table
from rich.text import Text

HIGHLIGHTS = {"worse": "bold dark_orange", "better": "bold blue"}
"""Style of a row by its verdict."""


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

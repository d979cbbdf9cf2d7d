"""The live line of a run on a terminal: a bar, and what is measured now."""

from collections.abc import Callable

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from perfdag.app.terminal.text_table import HIGHLIGHTS

BAR = 20
"""Characters of the bar."""


class LiveLine:
    """A line on stderr below all others. `cells` returns samples done, all samples, time, name."""

    def __init__(self, cells: Callable[[], tuple[int, int, str, str]]) -> None:
        self._cells = cells
        console = Console(stderr=True)
        self._live = Live(console=console, get_renderable=self._line, transient=True)
        self.start, self.stop = self._live.start, self._live.stop

    def print(self, line: str, *, failed: bool) -> None:
        """Print a line above the live one."""
        self._live.console.print(Text(line, style=HIGHLIGHTS["failed"] if failed else ""))

    def _line(self) -> Table:
        """Return the line, which the terminal asks for again and again."""
        line = Table.grid(padding=(0, 2, 0, 0), expand=True)
        for _ in range(3):
            line.add_column(no_wrap=True)
        line.add_column(no_wrap=True, overflow="ellipsis", ratio=1)  # the one that gets narrow
        done, total, left, name = self._cells()
        bar = ProgressBar(total=total, completed=done, width=BAR)
        line.add_row(bar, f"{done}/{total}", left, Text(name))
        return line

"""Tell in the log of a pod for how long it waits for the store, and read that again."""

import re
from collections.abc import Iterable

_WAITS, _ANSWERS = "waiting for the store: no answer for ", "the store answers again"


def print_wait(seconds: float) -> None:
    """Print for how long the store has not answered; after 0 s it answers again."""
    print(f"{_WAITS}{seconds:.0f} s" if seconds else _ANSWERS, flush=True)  # noqa: T201


def is_wait_line(line: str) -> bool:
    """Return whether a line of a log is about the wait for the store."""
    return line.startswith((_WAITS, _ANSWERS))


def seconds_away(lines: Iterable[str]) -> float:
    """Return for how many seconds the store has not answered, by the lines of a log; 0: it does."""
    newest = ""
    for line in filter(is_wait_line, lines):
        newest = line
    match = re.fullmatch(rf"{_WAITS}(\d+) s", newest)
    return float(match[1]) if match else 0.0

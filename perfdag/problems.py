"""What can be wrong: the errors that perfdag raises, and the problems of a suite."""

from dataclasses import dataclass

from perfdag.signals import EXIT_INPUT


class PerfdagError(Exception):
    """What a caller of perfdag can mend. The message says what is wrong, where and what to do."""

    exit_code = EXIT_INPUT
    """The exit code of a verb that it ends."""


@dataclass(frozen=True)
class Problem:
    """Why something cannot be measured, printed as `file:line: path: text`.

    `code` is a short word that stays when the text changes, `path` the key with dots. A benchmark
    returns code and text, and the suite adds the place. Line 0 stands for no line.
    """

    code: str
    text: str
    path: str = ""
    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        path = _short(self.path, 200)
        place = f"{self.file}:{self.line}" if self.line else self.file
        place = ": ".join(filter(None, (place, path)))
        return f"{place}: {_short(self.text, 1000)}" if place else self.text


FORMS: dict[str, str] = {}
"""What a text must be, by the pattern that it must match."""


def pattern_for(form: str, pattern: str) -> str:
    """Return a pattern. Of a text that does not match, the error says that it is not `form`."""
    FORMS[pattern] = form
    return pattern


def _short(text: str, length: int) -> str:
    """Return a text of about that length in one line: its middle is left out."""
    if len(text) > length:
        text = f"{text[: length // 2]} ... {text[-length // 2 :]}"
    return text.replace("\r", "\\r").replace("\n", "\\n")

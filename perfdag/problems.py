"""What can be wrong: the errors that perfdag raises, and the problems of a suite."""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from perfdag.signals import EXIT_INPUT


class PerfdagError(Exception):
    """What a caller of perfdag can mend. The message says what is wrong, where and what to do."""

    exit_code = EXIT_INPUT
    """The exit code of a verb that it ends."""

    def __init__(self, message: str, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.exit_code = self.exit_code if exit_code is None else exit_code


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


@dataclass(frozen=True)
class Form:
    """What a text of a suite must be, in words, and the pattern that it must match.

    It is a part of a type: of a text that does not match, the error says that it is not `words`.

        Image = Annotated[str, Form("an image", "^[a-z/:]+$")]
    """

    words: str
    pattern: str

    @cached_property
    def regex(self) -> re.Pattern[str]:
        """The pattern, whose end is no newline, as JSON Schema reads it."""
        return re.compile(re.sub(r"\$$", r"\\Z", self.pattern))

    def check(self, text: str) -> str:
        """Return the text, as a validator does. Raises PydanticCustomError."""
        if self.regex.search(text):
            return text
        from pydantic_core import PydanticCustomError

        raise PydanticCustomError(
            "wrong-form", "{text} is not {words}", {"text": repr(text), "words": self.words}
        )

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> Any:
        # editors show the second, where a text does not match the first
        return {**handler(schema), "pattern": self.pattern, "patternErrorMessage": self.words}


def _short(text: str, length: int) -> str:
    """Return a text of about that length in one line: its middle is left out."""
    if len(text) > length:
        text = f"{text[: length // 2]} ... {text[-length // 2 :]}"
    return text.replace("\r", "\\r").replace("\n", "\\n")

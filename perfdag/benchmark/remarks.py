"""What a tool says beside its figures: a line of its output that spoils the sample, or explains it.

Tools may lose a worker or measure with a wrong clock, say so in one line, and end with exit code 0.
A benchmark lists such lines in `remarks`, and the measuring loop looks for them in each sample.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

Effect = Literal["failed", "invalid", "note"]
LONGEST = 300
"""Characters of a line that are kept."""


@dataclass(frozen=True)
class Remark:
    """A kind of line in a tool's output, and what it means for the sample.

    `pattern` is searched in each line. A `failed` sample lacks a part of what it should measure, an
    `invalid` one measured it wrongly, and a `note` stands beside good figures.
    """

    pattern: str
    effect: Effect


def find_remarks(
    remarks: Iterable[Remark], texts: Mapping[str, str]
) -> Iterator[tuple[Effect, str]]:
    """Yield the effect and the line of each remark in the texts of a sample."""
    for remark in remarks:
        pattern = re.compile(remark.pattern, re.M)
        for text in texts.values():
            for match in pattern.finditer(text):
                start = text.rfind("\n", 0, match.start()) + 1
                line = text[start:].partition("\n")[0]
                yield remark.effect, line.strip()[:LONGEST]


def state_of_stderr(texts: Mapping[str, str]) -> str:
    """Return whether tools wrote to stderr, which roles of texts are named after."""
    wrote = any(text.strip() for role, text in texts.items() if "stderr" in role)
    return "not empty" if wrote else "empty"

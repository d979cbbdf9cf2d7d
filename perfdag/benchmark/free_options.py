"""Options that a suite may add to a tool's command, beside those that perfdag sets and checks.

A free option must not say what a parameter says, because the plan, the ids of series and the checks
of a sample read the parameter. It must not change what is measured or printed either.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pydantic_core import PydanticCustomError


@dataclass(frozen=True)
class FreeOptions:
    """The options of a tool that a suite may not add.

    `parameters` has the spellings of an option (`-P --parallel`) and the parameter that sets it,
    `changes` has them and what the option would change.
    """

    tool: str
    parameters: Mapping[str, str]
    changes: Mapping[str, str]

    def check(self, arguments: Sequence[str]) -> Sequence[str]:
        """Return the arguments, as a validator of a field does. Raises PydanticCustomError."""
        for argument in arguments:
            if reason := self._reason(argument):
                raise PydanticCustomError(
                    "not-free", "{argument}: {reason}", {"argument": argument, "reason": reason}
                )
        return arguments

    def _reason(self, argument: str) -> str | None:
        """Return why an argument may not be added, or None."""
        for spellings, parameter in self.parameters.items():
            if _spells(argument, spellings.split()):
                return f"use the parameter {parameter}, which perfdag plans and checks"
        for spellings, change in self.changes.items():
            if _spells(argument, spellings.split()):
                return f"it would change {change} of {self.tool}; leave it out"
        return None


def _spells(argument: str, spellings: Iterable[str]) -> bool:
    """Return whether an argument is one of these options, as getopt_long reads it.

    The value of a short option may follow without a space (`-P4`), and a long option may be cut as
    long as it is clear (`--rev`).
    """
    name = argument.partition("=")[0]
    if name.startswith("--"):
        return len(name) > 2 and any(spelling.startswith(name) for spelling in spellings)
    return name.startswith("-") and any(name[:2] == spelling for spelling in spellings)

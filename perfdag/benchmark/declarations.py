"""A measurement, and what a benchmark declares of its tool: relations, free options, remarks.

A tool that prints two figures of one thing may print two that cannot both be right: a receiver got
more than was sent, or a rate is not its count by its time. A benchmark declares what always holds,
and `contradiction` looks for it where a sample becomes rows:

    def identities(self, params):
        yield Equal(("iops", params.bs), ("bandwidth",))
        yield AtMost(("iops", "latency"), (params.iodepth,))

A free option of a suite must not say what a parameter says, because the plan, the ids of series and
the checks of a sample read the parameter. It must not change what is measured or printed either.

Tools may lose a worker or measure with a wrong clock, say so in one line, and end with exit code 0.
A benchmark lists such lines in `remarks`, and the measuring loop looks for them in each sample.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pydantic_core import PydanticCustomError

Factor = str | float
"""The name of a metric or of a coordinate, or a number."""
Product = tuple[Factor, ...]
ROUNDING = 0.02
"""Share by which two figures of one thing may differ, as tools print three digits or more."""


@dataclass(frozen=True)
class Measurement:
    """One value of one metric.

    `coords` are coordinates that the tool reports (message_bytes, direction). `n` counts the
    observations behind the value. `subject` names the part of the sample that it belongs to.
    `note` says what a number cannot, such as the figure that decided a verdict. `step` is by how
    much the tool's clock or its print can be off, in the unit of the value.
    """

    metric: str
    value: float
    stat: str = "value"
    coords: Mapping[str, Any] = field(default_factory=dict)
    n: int | None = None
    subject: str | None = None
    note: str | None = None
    step: float = 0.0


@dataclass
class Group:
    """The figures of one subject at one set of coordinates, by metric. A mean is a figure too."""

    subject: str | None
    coords: Mapping[str, Any]
    values: dict[str, float] = field(default_factory=dict)

    def product(self, factors: Product) -> float | None:
        """Return the product of factors, or None where one of them was not measured."""
        result = 1.0
        for factor in factors:
            value = self._value(factor)
            if value is None:
                return None
            result *= value
        return result

    def _value(self, factor: Factor) -> float | None:
        if not isinstance(factor, str):
            return factor
        value = self.values.get(factor, self.coords.get(factor))
        return value if isinstance(value, int | float) else None


class Identity(Protocol):
    """A relation that always holds."""

    def broken_by(self, figures: Sequence[Measurement], groups: Sequence[Group]) -> str | None:
        """Return what contradicts it, or None."""


@dataclass(frozen=True)
class Equal:
    """Two products are the same up to a share, or up to a step, such as rate x time = count.

    `step` is by how much the print of the tool can be off, in the unit of the products.
    """

    left: Product
    right: Product
    tolerance: float = ROUNDING
    step: float = 0.0

    def broken_by(self, figures: Sequence[Measurement], groups: Sequence[Group]) -> str | None:
        for left, right in _pairs(groups, self.left, self.right):
            if not math.isclose(left, right, rel_tol=self.tolerance, abs_tol=self.step):
                return f"{_text(self.left)} is {left:g}, and {_text(self.right)} is {right:g}"
        return None


@dataclass(frozen=True)
class AtMost:
    """A product does not exceed another by more than a share, such as received <= sent."""

    left: Product
    right: Product
    tolerance: float = ROUNDING

    def broken_by(self, figures: Sequence[Measurement], groups: Sequence[Group]) -> str | None:
        for left, right in _pairs(groups, self.left, self.right):
            if left > right * (1 + self.tolerance):
                return f"{_text(self.left)} is {left:g}, above {_text(self.right)}, {right:g}"
        return None


@dataclass(frozen=True)
class Between:
    """A total lies between the lowest and the highest of its parts, up to a share."""

    total: str
    parts: str
    tolerance: float = ROUNDING

    def broken_by(self, figures: Sequence[Measurement], groups: Sequence[Group]) -> str | None:
        parts = [figure.value for figure in figures if figure.metric == self.parts]
        if not parts:
            return None
        low = min(parts) * (1 - self.tolerance)
        high = max(parts) * (1 + self.tolerance)
        for figure in figures:
            if figure.metric == self.total and not low <= figure.value <= high:
                return (
                    f"{self.total} is {figure.value:g},"
                    f" and {self.parts} goes from {min(parts):g} to {max(parts):g}"
                )
        return None


def contradiction(identities: Iterable[Identity], figures: Sequence[Measurement]) -> str | None:
    """Return the first contradiction among the figures of a sample, or None."""
    groups = _groups(figures)
    for identity in identities:
        if problem := identity.broken_by(figures, groups):
            return problem
    return None


def _groups(figures: Sequence[Measurement]) -> list[Group]:
    groups: dict[tuple[Any, ...], Group] = {}
    for figure in figures:
        if figure.stat in ("value", "mean"):
            key = (figure.subject, *sorted(figure.coords.items()))
            group = groups.setdefault(key, Group(figure.subject, figure.coords))
            group.values[figure.metric] = figure.value
    return list(groups.values())


def _pairs(groups: Sequence[Group], left: Product, right: Product) -> Iterator[tuple[float, float]]:
    """Yield both products of each group that has all their factors.

    Where parts of a sample have them (hosts, streams), those of the whole are left out: the whole
    of four hosts has four times as many I/Os in flight.
    """
    complete = [
        (group, one_side, other_side)
        for group in groups
        if (one_side := group.product(left)) is not None
        and (other_side := group.product(right)) is not None
    ]
    has_parts = any(group.subject is not None for group, _, _ in complete)
    for group, one_side, other_side in complete:
        if not has_parts or group.subject is not None:
            yield one_side, other_side


def _text(factors: Product) -> str:
    names = (factor if isinstance(factor, str) else f"{factor:g}" for factor in factors)
    return " x ".join(names)


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

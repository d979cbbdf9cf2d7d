"""Conditions of `exclude`: which combinations of an entry's axes are left out.

Values and bounds are compared by meaning, read through the type of the parameter or shape key:
`4KiB` equals 4096, and 1GiB is more than 64MiB. A condition that cannot be compared, or that
excludes nothing, is a mistake, since it would hide a typing error. What `--set` fixes is no axis,
so a condition on it excludes nothing, and that is no mistake.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from perfdag.benchmark.contract import Benchmark
from perfdag.shape import Shape
from perfdag.suite.document import Document, Where, choices, explain
from perfdag.suite.model import Permutations
from perfdag.units import Quantity, parse_quantity

_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
_OPERATORS = (*_ORDERS, "ne")
_Problems = list[tuple[Where, str]]


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A condition: for each axis that it names, whether each value meets it."""

    matches: dict[str, list[bool]]

    def covers(self, position: Mapping[str, int]) -> bool:
        """Return whether the combination meets the condition.

        `position` holds the index of its value on each axis.
        """
        return all(values[position[name]] for name, values in self.matches.items())


def read_exclusions(
    permutations: Permutations, benchmark: Benchmark[Any], fixed: frozenset[str], *, partial: bool
) -> tuple[list[Exclusion], _Problems]:
    """Return the usable conditions, and the mistakes in all by their path in the entry.

    `fixed` names the axes that `--set` fixes. `partial`: an axis may have been refused and be
    absent here, so a condition on an unknown axis is no mistake.
    """
    exclusions: list[Exclusion] = []
    problems: _Problems = []
    axes = {**permutations.product, **permutations.zip}
    for index, condition in enumerate(permutations.exclude):
        path: Where = ("permutations", "exclude", index)
        if partial and not condition.keys() <= axes.keys():
            continue
        if not condition:
            problems.append((path, "an empty condition would leave out every point"))
            continue
        mistakes: _Problems = []
        matches = {
            name: _matches((*path, name), axes, benchmark, name, wanted, mistakes)
            for name, wanted in condition.items()
        }
        readable = {name: values for name, values in matches.items() if values is not None}
        if not mistakes and len(readable) == len(matches) and not fixed & condition.keys():
            exclusions.append(Exclusion(readable))
            mistakes = _excludes_nothing(
                path, readable, axes, [name for name in permutations.zip if name not in fixed]
            )
        problems += mistakes
    return exclusions, problems


def _excludes_nothing(
    path: Where, matches: dict[str, list[bool]], axes: Mapping[str, list[Any]], zipped: list[str]
) -> _Problems:
    """Return the problem that no combination meets a condition, or nothing."""
    never = [name for name, values in matches.items() if values and not any(values)]
    if never:
        never.sort(key=list(axes).index)
        text = "; ".join(f"{name} is {_listed(axes[name])}" for name in never)
        return [((*path, never[0]), f"leaves nothing out: {text}; mend or remove the condition")]
    rows = [matches[name] for name in zipped if name in matches]
    if (
        len({len(axes[name]) for name in zipped}) == 1
        and rows
        and not any(map(all, zip(*rows, strict=True)))
    ):
        return [
            (
                path,
                "leaves nothing out: `zip` never has these values side by side; "
                "mend or remove the condition",
            )
        ]
    return []


def _matches(
    path: Where,
    axes: Mapping[str, list[Any]],
    benchmark: Benchmark[Any],
    name: str,
    condition: Any,
    problems: _Problems,
) -> list[bool] | None:
    """Return for each value of an axis whether the condition wants it.

    Return None if the condition has a mistake, which is added to `problems`, or if a value cannot
    be read, which its point reports.
    """
    if name not in axes:
        problems.append(
            (
                path,
                f"is not an axis of this entry{choices(name, sorted(axes) or ['none'], 'axes:')}",
            )
        )
        return None
    read = _reader(benchmark, name)
    try:
        test = _test(read, condition)
    except ValueError as error:
        problems.append((path, str(error)))
        return None
    try:
        values = [read(value) for value in axes[name]]
    except ValueError:
        return None
    try:
        return [test(value) for value in values]
    except TypeError:
        problems.append(
            (
                path,
                f"the values of {name} have no order ({_listed(axes[name])}); "
                "name the values, or use ne",
            )
        )
        return None


def _test(read: Callable[[Any], Any], condition: Any) -> Callable[[Any], bool]:
    """Return a test of whether a condition wants a value.

    Raises ValueError for a condition that cannot be read. The test raises TypeError for values
    without an order.
    """
    if isinstance(condition, list):
        options = [read(option) for option in condition]
        return lambda value: value in options
    if not isinstance(condition, dict):
        only = read(condition)
        return lambda value: bool(value == only)
    for comparison in condition:
        if comparison not in _OPERATORS:
            raise ValueError(
                f"unknown comparison {comparison!r}; there are {', '.join(_OPERATORS)}"
            )
    bounds = {comparison: read(bound) for comparison, bound in condition.items()}
    return lambda value: all(
        _compare(comparison, value, bound) for comparison, bound in bounds.items()
    )


def _compare(comparison: str, value: Any, limit: Any) -> bool:
    """Return whether the comparison holds. Null is neither more nor less than any value.

    Raises TypeError for text and other values without an order.
    """
    if comparison == "ne":
        return bool(value != limit)
    if limit is None or isinstance(value, str | bool) or isinstance(limit, str | bool):
        raise TypeError(limit)
    return value is not None and _ORDERS[comparison](value, limit)


def _reader(benchmark: Benchmark[Any], name: str) -> Callable[[Any], Any]:
    """Return a function that reads a value as the type of the parameter or shape key does.

    It raises ValueError with a text for users.
    """
    first, *rest = name.split(".")
    model = benchmark.Params if first in benchmark.Params.model_fields else Shape
    kind: Any = model
    for key in (first, *rest):
        kind = _type_at(kind, key)
    if kind is Quantity:
        return parse_quantity
    adapter: TypeAdapter[Any] = TypeAdapter(Any if kind is None else kind)

    def read(value: Any) -> Any:
        try:
            return adapter.validate_python(value)
        except ValidationError as error:
            raise ValueError(explain(Document("", ""), (), error.errors()[0], model).text) from None

    return read


def _type_at(kind: Any, key: str) -> Any:
    """Return the type under a key of a value of type `kind`, or None if unknown."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        if info := kind.model_fields.get(key):
            return _annotation(info)
        extra = get_type_hints(kind, include_extras=True)["__pydantic_extra__"]
        return _type_at(extra, key) if kind.model_config.get("extra") == "allow" else None
    if get_origin(kind) is dict:
        return get_args(kind)[1]
    return next(
        (inner for part in get_args(kind) if (inner := _type_at(part, key)) is not None), None
    )


def _annotation(info: FieldInfo) -> Any:
    return Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation


def _listed(values: Sequence[Any], limit: int = 8) -> str:
    text = ", ".join(str(value) for value in values[:limit])
    return text + (f" ... ({len(values)} values)" if len(values) > limit else "")

"""Conditions of `exclude`: which combinations of an entry's axes are left out.

Values and bounds are compared as what they mean, read through the type of the parameter or shape key: `4KiB` is 4096, and 1GiB is more
than 64MiB. A condition that cannot be compared, or that leaves nothing out, is a mistake: it would hide a slip of the pen. What `--set`
fixes is no axis, so a condition on it leaves nothing out, and nobody is blamed for that.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from perfdag.benchmark import Benchmark
from perfdag.document import Document, Where, nearest
from perfdag.explain import explain
from perfdag.shape import Quantity, Shape, amount
from perfdag.suite import Permutations

_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
_OPERATORS = (*_ORDERS, "ne")


class Exclusion:
    """The conditions of an entry, each a bit: a value of an axis has the bits of the conditions that it lets hold.

    `partial`: an axis may be wrong and therefore left out here; then nothing is said of a condition on an axis that is not here, and it
    leaves nothing out. `problems`: what is wrong with the conditions, by path in the entry.
    """

    def __init__(
        self,
        permutations: Permutations,
        benchmark: Benchmark[Any],
        fixed: frozenset[str],
        *,
        partial: bool,
    ) -> None:
        self.problems: list[tuple[Where, str]] = []
        self._partial = partial
        self._benchmark = benchmark
        self._axes = {**permutations.product, **permutations.zip}
        self._zipped = [name for name in permutations.zip if name not in fixed]
        self._masks = {name: [0] * len(values) for name, values in self._axes.items()}
        self._live = 0
        for index, condition in enumerate(permutations.exclude):
            self._add(index, condition, fixed)

    def of_values(self, name: str) -> list[int]:
        """The bits of each value of an axis."""
        return self._masks[name]

    def of_rows(self, names: Sequence[str], count: int) -> list[int]:
        """The bits of each of `count` rows in which these axes stand side by side."""
        rows = [self._live] * count
        for name in names:
            rows = [row & mask for row, mask in zip(rows, self._masks[name], strict=True)]
        return rows

    def holds(self, row: int, masks: Sequence[int]) -> bool:
        """Whether some condition holds for a row and one value of each other axis."""
        for mask in masks:
            row &= mask
        return row != 0

    def _add(self, index: int, condition: Mapping[str, Any], fixed: frozenset[str]) -> None:
        path: Where = ("permutations", "exclude", index)
        before = len(self.problems)
        if self._partial and not condition.keys() <= self._axes.keys():
            return
        if not condition:
            self.problems.append((path, "an empty condition would leave out every point"))
        found = {
            name: self._demand((*path, name), name, wanted) for name, wanted in condition.items()
        }
        if len(self.problems) > before:
            return
        bit = 1 << index
        for name, masks in self._masks.items():
            held = (found[name] or [False] * len(masks)) if name in found else [True] * len(masks)
            self._masks[name] = [
                mask | bit if holds else mask for mask, holds in zip(masks, held, strict=True)
            ]
        if fixed & condition.keys():
            return
        self._live |= bit
        if None not in found.values():
            self._of_use(path, bit)

    def _of_use(self, path: Where, bit: int) -> None:
        never = [
            name
            for name, masks in self._masks.items()
            if masks and not any(mask & bit for mask in masks)
        ]
        if never:
            said = "; ".join(f"{name} is {_listed(self._axes[name])}" for name in never)
            self.problems.append(
                ((*path, never[0]), f"leaves nothing out: {said}; mend or remove the condition")
            )
        elif self._zipped and len({len(self._axes[name]) for name in self._zipped}) == 1:
            rows = self.of_rows(self._zipped, len(self._axes[self._zipped[0]]))
            if not any(row & bit for row in rows):
                self.problems.append(
                    (
                        path,
                        "leaves nothing out: `zip` never has these values side by side; mend or remove the condition",
                    )
                )

    def _demand(self, path: Where, name: str, wanted: Any) -> list[bool] | None:
        """For each value of the axis whether it is what the condition wants; None where a value cannot be read, which its point says."""
        if name not in self._axes:
            known = self._axes
            text = f"is not an axis of this entry; axes: {', '.join(sorted(known)) or 'none'}{nearest(name, known)}"
            self.problems.append((path, text))
            return None
        read = _reader(self._benchmark, name)
        try:
            test = _test(read, wanted)
        except ValueError as error:
            self.problems.append((path, str(error)))
            return None
        try:
            values = [read(value) for value in self._axes[name]]
        except ValueError:
            return None
        try:
            return [test(value) for value in values]
        except TypeError:
            text = f"the values of {name} have no order ({_listed(self._axes[name])}); name the values, or use ne"
            self.problems.append((path, text))
            return None


def _test(read: Callable[[Any], Any], wanted: Any) -> Callable[[Any], bool]:
    """Whether a value is what a condition wants. Raises ValueError; the test raises TypeError for what has no order."""
    if isinstance(wanted, list):
        options = [read(each) for each in wanted]
        return lambda value: value in options
    if not isinstance(wanted, dict):
        only = read(wanted)
        return lambda value: bool(value == only)
    for each in wanted:
        if each not in _OPERATORS:
            raise ValueError(f"unknown comparison {each!r}; there are {', '.join(_OPERATORS)}")
    bounds = {each: read(bound) for each, bound in wanted.items()}
    return lambda value: all(_compare(each, value, bound) for each, bound in bounds.items())


def _compare(comparison: str, value: Any, bound: Any) -> bool:
    """Compare what was read; null is neither more nor less than anything. Raises TypeError for text and other things without an order."""
    if comparison == "ne":
        return bool(value != bound)
    for each in (value, bound):
        if isinstance(each, str | bool):
            raise TypeError(each)
    if bound is None:
        raise TypeError(bound)
    return value is not None and _ORDERS[comparison](value, bound)


def _reader(benchmark: Benchmark[Any], name: str) -> Callable[[Any], Any]:
    """Reads a value of a parameter or shape key as its type does; raises ValueError in the words of a suite file."""
    first, *rest = name.split(".")
    model = benchmark.Params if first in benchmark.Params.model_fields else Shape
    wanted: Any = model
    for part in (first, *rest):
        wanted = _inside(wanted, part)
    if wanted is Quantity:
        return amount
    adapter: TypeAdapter[Any] = TypeAdapter(Any if wanted is None else wanted)

    def read(value: Any) -> Any:
        try:
            return adapter.validate_python(value)
        except ValidationError as error:
            raise ValueError(explain(Document("", ""), (), error.errors()[0], model).text) from None

    return read


def _inside(wanted: Any, key: str) -> Any:
    """The type of what stands under a key of a value of type `wanted`; None where types do not say."""
    if isinstance(wanted, type) and issubclass(wanted, BaseModel):
        info = wanted.model_fields.get(key)
        return None if info is None else _typed(info)
    if get_origin(wanted) is dict:
        return get_args(wanted)[1]
    return next(
        (found for part in get_args(wanted) if (found := _inside(part, key)) is not None), None
    )


def _typed(info: FieldInfo) -> Any:
    return Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation


def _listed(values: Sequence[Any], most: int = 8) -> str:
    said = ", ".join(str(value) for value in values[:most])
    return said + (f" ... ({len(values)} values)" if len(values) > most else "")

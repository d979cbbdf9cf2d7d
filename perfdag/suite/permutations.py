"""The combinations of an entry's values: `product` and `explicit`, without those of `exclude`.

A condition of `exclude` compares by meaning. It reads values through the type of the parameter or
shape key: `4KiB` equals 4096. A condition that excludes nothing is a mistake, since it would hide a
typing error.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from pydantic import BaseModel, TypeAdapter, ValidationError

from perfdag.benchmark.contract import Benchmark
from perfdag.shape import SHAPE_KEYS, Problem, Shape
from perfdag.suite.document import Document, Where, choices, explain, nearest, removal_note
from perfdag.suite.model import Source
from perfdag.units import Quantity, parse_quantity

Axes = dict[str, list[Any]]


def combinations(
    source: Source, benchmark: Benchmark[Any], report: Callable[[Problem], None]
) -> Iterator[tuple[Where, dict[str, Any]]]:
    """Yield (path in the entry, values) of each combination, or report mistakes.

    What `--set` fixes is no axis, and has its value in each.
    """
    permutations, axes = source.entry.permutations, _axes(source)
    mistakes = list(_wrong_axes(source, benchmark))
    excluded = _exclusions(source, benchmark, mistakes)
    for mistake in mistakes:
        report(mistake)
    if mistakes:
        return
    if axes or not permutations.explicit:
        origin: Where = ("permutations", "product") if axes else ()
        left = 0
        for indices in itertools.product(*(range(len(axis)) for axis in axes.values())):
            at = dict(zip(axes, indices, strict=True))
            if not any(all(hits[at[name]] for name, hits in each.items()) for each in excluded):
                left += 1
                yield origin, {name: axes[name][i] for name, i in at.items()} | source.sets
        if not left and not permutations.explicit:
            report(source.problem(("permutations", "exclude"), "no-point", "leaves no point"))
    for index, explicit in enumerate(permutations.explicit):
        yield ("permutations", "explicit", index), {**explicit, **source.sets}


def count_combinations(source: Source) -> int:
    """Return the number of combinations of an entry before `exclude`, without making them."""
    explicit = len(source.entry.permutations.explicit)
    return math.prod(map(len, _axes(source).values())) + explicit


def nested(name: str, value: Any) -> dict[str, Any]:
    """Return `{"a": {"b": value}}` for the name `a.b`."""
    for part in reversed(name.split(".")):
        value = {part: value}
    mapping: dict[str, Any] = value
    return mapping


def _axes(source: Source) -> Axes:
    product = source.entry.permutations.product
    return {name: axis for name, axis in product.items() if name not in source.sets}


def _wrong_axes(source: Source, benchmark: Benchmark[Any]) -> Iterator[Problem]:
    """Yield names that cannot be varied, and empty lists."""
    permutations = source.entry.permutations
    empty = "an empty list gives no point; give at least one"
    named: list[tuple[Where, str]] = [(tuple(name.split(".")), name) for name in source.sets]
    for name, values in permutations.product.items():
        named.append((("permutations", "product", name), name))
        if not values:
            yield source.problem(named[-1][0], "empty-list", f"{empty} value or remove it")
    for index, values_of in enumerate(permutations.explicit):
        named += [(("permutations", "explicit", index, name), name) for name in values_of]
    if not permutations.explicit and "explicit" in permutations.model_fields_set:
        path = ("permutations", "explicit")
        yield source.problem(path, "empty-list", f"{empty} or remove it")
    for place, name in named:
        if text := _wrong_name(benchmark, name):
            yield source.problem(place, "unknown-name", text)


def _wrong_name(benchmark: Benchmark[Any], name: str) -> str | None:
    """Return why nothing of that name can be varied, or None if it can."""
    fields = benchmark.Params.model_fields
    first, _, rest = name.partition(".")
    if first in fields:
        return None
    if first not in SHAPE_KEYS:
        return removal_note(first) or (
            f"{benchmark.name} has no parameter {name!r}"
            f"{nearest(name, [*fields, *SHAPE_KEYS]) or ';'} it has {', '.join(fields)}"
        )
    model: Any = Shape.model_fields[first].annotation
    inner = getattr(model, "model_fields", None)
    if not rest or inner is None or rest.split(".")[0] in inner:
        return None
    if model.model_config.get("extra") == "allow":
        return None
    return f"{first} has no key {rest!r}{choices(rest, inner, 'it has')}"


def _exclusions(
    source: Source, benchmark: Benchmark[Any], mistakes: list[Problem]
) -> list[dict[str, list[bool]]]:
    """Return the conditions: for each axis that one names, whether each of its values meets it.

    A condition on what `--set` fixes excludes nothing, and that is no mistake.
    """
    axes, conditions = _axes(source), []
    for index, condition in enumerate(source.entry.permutations.exclude):
        path: Where = ("permutations", "exclude", index)
        if not condition:
            text = "an empty condition would leave out every point"
            mistakes.append(source.problem(path, "no-condition", text))
        hits = {}
        for name, wanted in condition.items():
            try:
                of_name = _hits(source.entry.permutations.product, benchmark, name, wanted)
            except ValueError as error:
                mistakes.append(source.problem((*path, name), "wrong-condition", str(error)))
            else:
                if of_name is not None and name in axes:
                    hits[name] = of_name
        if len(hits) < len(condition):
            continue
        never = [name for name, axis in axes.items() if axis and not any(hits.get(name, (True,)))]
        if never:
            text = "; ".join(f"{name} is {_listed(axes[name])}" for name in never)
            text = f"leaves nothing out: {text}; correct or remove the condition"
            mistakes.append(source.problem((*path, never[0]), "excludes-nothing", text))
        conditions.append(hits)
    return conditions


def _hits(axes: Axes, benchmark: Benchmark[Any], name: str, wanted: Any) -> list[bool] | None:
    """Return for each value of an axis whether a condition wants it, None if one is unreadable.

    An unreadable value is reported with its points. Raises ValueError, which says what is wrong
    with the condition.
    """
    if name not in axes:
        known = choices(name, sorted(axes) or ["none"], "axes:")
        raise ValueError(f"is not an axis of this entry{known}")
    read = _reader(benchmark, name)
    if isinstance(wanted, dict) and wanted.keys() & {"lt", "le", "gt", "ge", "ne"}:
        raise ValueError(f"name the values to leave out, of {_listed(axes[name])}")
    options = [read(option) for option in (wanted if isinstance(wanted, list) else [wanted])]
    try:
        return [read(value) in options for value in axes[name]]
    except ValueError:
        return None


def _reader(benchmark: Benchmark[Any], name: str) -> Callable[[Any], Any]:
    """Return a function that reads a value as the type of the parameter or shape key does.

    It raises ValueError with a text for users.
    """
    parts = name.split(".")
    model = benchmark.Params if parts[0] in benchmark.Params.model_fields else Shape
    kind: Any = model
    for key in parts:
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
            return (
                Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation
            )
        extra = get_type_hints(kind, include_extras=True)["__pydantic_extra__"]
        return _type_at(extra, key) if kind.model_config.get("extra") == "allow" else None
    if get_origin(kind) is dict:
        return get_args(kind)[1]
    inner = (_type_at(part, key) for part in get_args(kind))
    return next((found for found in inner if found is not None), None)


def _listed(values: Sequence[Any], limit: int = 8) -> str:
    text = ", ".join(str(value) for value in values[:limit])
    return text + (f" ... ({len(values)} values)" if len(values) > limit else "")

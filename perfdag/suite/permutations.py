"""The `expand` stage: an entry yields a candidate for each combination of its values.

Combinations come from the axes (`product`, `zip`) without what `exclude` removes, and from
`explicit`.
"""

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

from perfdag.benchmark import registry
from perfdag.benchmark.contract import Benchmark
from perfdag.removed import removal_note
from perfdag.shape import SHAPE_KEYS, Shape, merge
from perfdag.suite.candidate import Candidate, ProblemCounter
from perfdag.suite.document import Where, choices, nearest
from perfdag.suite.exclude import Exclusion, read_exclusions
from perfdag.suite.model import Permutations, Source


def expand(source: Source, problems: ProblemCounter) -> Iterator[Candidate]:
    """Yield a candidate for each combination of an entry. What `--set` fixes is no axis."""
    benchmark = registry.get(source.entry.benchmark)
    fields = benchmark.Params.model_fields
    for name in source.entry.params:
        if name not in fields:
            text = removal_note(name) or (
                f"{benchmark.name} has no such parameter{choices(name, fields, 'it has')}"
            )
            problems.add(source, ("params", name), text)
    defaults = {name: value for name, value in source.defaults.params.items() if name in fields}
    params = {**defaults, **source.entry.params}
    shape_keys = merge(_shape_keys(source.raw_defaults), _shape_keys(source.raw))
    for origin, combination in _combinations(source, benchmark, problems):
        candidate = Candidate(
            source, benchmark, origin, {**combination, **source.sets}, dict(params), shape_keys
        )
        for name, value in candidate.varied.items():
            first, _, rest = name.partition(".")
            if first not in fields:
                candidate.shape_keys = merge(candidate.shape_keys, nested(name, value))
            elif rest:
                candidate.params = merge(candidate.params, nested(name, value))
            else:
                candidate.params[name] = value
        yield candidate


def count_combinations(source: Source) -> int:
    """Return the number of combinations of an entry before `exclude`, without expanding it."""
    permutations, sets = source.entry.permutations, source.sets
    lengths = [len(values) for name, values in permutations.product.items() if name not in sets]
    rows = max(
        (len(values) for name, values in permutations.zip.items() if name not in sets), default=1
    )
    return math.prod(lengths) * rows + len(permutations.explicit)


def _shape_keys(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in raw.items() if key in SHAPE_KEYS}


def nested(name: str, value: Any) -> dict[str, Any]:
    """Return `{"a": {"b": value}}` for the name `a.b`."""
    for part in reversed(name.split(".")):
        value = {part: value}
    mapping: dict[str, Any] = value
    return mapping


def _combinations(
    source: Source, benchmark: Benchmark[Any], problems: ProblemCounter
) -> Iterator[tuple[Where, dict[str, Any]]]:
    """Yield (path in the entry, values) of each combination, or report mistakes."""
    permutations = source.entry.permutations
    exclusions, texts = read_exclusions(
        permutations, benchmark, frozenset(source.sets), partial="permutations" in source.refused
    )
    mistakes = [
        *_wrong_names(permutations, benchmark, source.sets),
        *_wrong_axes(permutations, source.sets),
        *texts,
    ]
    for path, text in mistakes:
        problems.add(source, path, text)
    if mistakes:
        return
    if permutations.product or permutations.zip or not permutations.explicit:
        left = 0
        for combination in _of_axes(permutations, source.sets, exclusions):
            left += 1
            yield combination
        if not left and not permutations.explicit:
            problems.add(source, ("permutations", "exclude"), "leaves no point")
    for index, explicit in enumerate(permutations.explicit):
        yield ("permutations", "explicit", index), explicit


def _of_axes(
    permutations: Permutations, sets: Mapping[str, Any], exclusions: list[Exclusion]
) -> Iterator[tuple[Where, dict[str, Any]]]:
    """Yield the combinations of `product` and `zip` that no exclusion covers."""
    product = {name: values for name, values in permutations.product.items() if name not in sets}
    zipped = {name: values for name, values in permutations.zip.items() if name not in sets}
    origin: Where = (
        ("permutations", "product") if product else ("permutations", "zip") if zipped else ()
    )
    axes = {**product, **zipped}
    rows = range(len(next(iter(zipped.values())))) if zipped else range(1)
    for *indices, row in itertools.product(
        *(range(len(values)) for values in product.values()), rows
    ):
        position = dict(zip(axes, [*indices, *[row] * len(zipped)], strict=True))
        if not any(exclusion.covers(position) for exclusion in exclusions):
            yield origin, {name: axes[name][index] for name, index in position.items()}


def _wrong_axes(permutations: Permutations, sets: Mapping[str, Any]) -> Iterator[tuple[Where, str]]:
    for kind, axes in (("product", permutations.product), ("zip", permutations.zip)):
        for name, values in axes.items():
            if not values:
                yield (
                    ("permutations", kind, name),
                    "an empty list gives no point; give at least one value or remove it",
                )
    if not permutations.explicit and "explicit" in permutations.model_fields_set:
        yield (
            ("permutations", "explicit"),
            "an empty list gives no point; give at least one or remove it",
        )
    for name in set(permutations.product) & set(permutations.zip):
        yield ("permutations", "zip", name), "is in `product` too; keep it in one of them"
    lengths = {name: len(values) for name, values in permutations.zip.items() if name not in sets}
    if len(set(lengths.values())) > 1:
        yield (
            ("permutations", "zip"),
            "lists of different length: "
            f"{', '.join(f'{name} has {n}' for name, n in lengths.items())}",
        )


def _wrong_names(
    permutations: Permutations, benchmark: Benchmark[Any], sets: Mapping[str, Any]
) -> Iterator[tuple[Where, str]]:
    named: list[tuple[Where, str]] = [(tuple(name.split(".")), name) for name in sets]
    named += [(("permutations", "product", name), name) for name in permutations.product]
    named += [(("permutations", "zip", name), name) for name in permutations.zip]
    named += [
        (("permutations", "explicit", index, name), name)
        for index, values in enumerate(permutations.explicit)
        for name in values
    ]
    for path, name in named:
        if (text := _wrong_name(benchmark, name)) is not None:
            yield path, text


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
    if rest and inner is not None and rest.split(".")[0] not in inner:
        if model.model_config.get("extra") == "allow":
            return None
        return f"{first} has no key {rest!r}{choices(rest, inner, 'it has')}"
    return None

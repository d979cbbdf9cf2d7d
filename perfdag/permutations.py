"""The permutations of an entry: axes (`product`, `zip`), added combinations (`explicit`) and what is left out of them (`exclude`)."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from perfdag.benchmark import Benchmark
from perfdag.document import Where, nearest
from perfdag.exclusion import Exclusion
from perfdag.shape import SHAPE_KEYS, Shape
from perfdag.suite import Permutations, Source

Say = Callable[[Where, str], None]


def combinations(
    source: Source, benchmark: Benchmark[Any], say: Say
) -> Iterator[tuple[Where, dict[str, Any]]]:
    """Combinations of an entry, each with the path in the entry it comes from; what `--set` fixes is no longer an axis.

    `say` hears what is wrong with the permutations, by its path in the entry; then there are no combinations.
    """
    permutations = source.entry.permutations
    problems = [
        *_wrong_names(permutations, benchmark, source.sets),
        *_wrong_axes(permutations, source.sets),
    ]
    exclusion = Exclusion(
        permutations, benchmark, frozenset(source.sets), partial="permutations" in source.refused
    )
    problems += exclusion.problems
    for path, text in problems:
        say(path, text)
    return iter(()) if problems else _combine(permutations, source.sets, exclusion, say)


def _combine(
    permutations: Permutations, sets: Mapping[str, Any], exclusion: Exclusion, say: Say
) -> Iterator[tuple[Where, dict[str, Any]]]:
    product = {name: values for name, values in permutations.product.items() if name not in sets}
    zipped = {name: values for name, values in permutations.zip.items() if name not in sets}
    rows = (
        [dict(zip(zipped, values, strict=True)) for values in zip(*zipped.values(), strict=True)]
        if zipped
        else [{}]
    )
    left = 0
    if permutations.product or permutations.zip or not permutations.explicit:
        where: Where = (
            ("permutations", "product") if product else ("permutations", "zip") if zipped else ()
        )
        in_rows = exclusion.of_rows(list(zipped), len(rows))
        in_product = (exclusion.of_values(name) for name in product)
        for values, masks in zip(
            itertools.product(*product.values()), itertools.product(*in_product), strict=True
        ):
            for row, mask in zip(rows, in_rows, strict=True):
                if not exclusion.holds(mask, masks):
                    left += 1
                    yield where, {**dict(zip(product, values, strict=True)), **row}
        if not left and not permutations.explicit:
            say(("permutations", "exclude"), "leaves no point")
    for index, explicit in enumerate(permutations.explicit):
        yield ("permutations", "explicit", index), explicit


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
            f"lists of different length: {', '.join(f'{n} has {c}' for n, c in lengths.items())}",
        )


def _wrong_names(
    permutations: Permutations, benchmark: Benchmark[Any], sets: Mapping[str, Any]
) -> Iterator[tuple[Where, str]]:
    named: list[tuple[Where, str]] = [(tuple(name.split(".")), name) for name in sets]
    named += [(("permutations", "product", name), name) for name in permutations.product]
    named += [(("permutations", "zip", name), name) for name in permutations.zip]
    named += [
        (("permutations", "explicit", at, name), name)
        for at, each in enumerate(permutations.explicit)
        for name in each
    ]
    for path, name in named:
        if (text := _wrong_name(benchmark, name)) is not None:
            yield path, text


def _wrong_name(benchmark: Benchmark[Any], name: str) -> str | None:
    """Why nothing of that name can be varied, or None."""
    fields = benchmark.Params.model_fields
    first, _, rest = name.partition(".")
    if first in fields:
        return None
    if first not in SHAPE_KEYS:
        return f"{benchmark.name} has no parameter {name!r}; it has {', '.join(fields)}{nearest(name, [*fields, *SHAPE_KEYS])}"
    inner = getattr(Shape.model_fields[first].annotation, "model_fields", None)
    if rest and inner is not None and rest.split(".")[0] not in inner:
        return f"{first} has no key {rest!r}; it has {', '.join(inner)}{nearest(rest, inner)}"
    return None

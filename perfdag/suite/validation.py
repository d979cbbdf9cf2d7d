"""Validation: errors of pydantic as problems of a file, in words for its author."""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from perfdag.benchmark import registry
from perfdag.removed import removal_note
from perfdag.shape import (
    FOLDER,
    IMAGE,
    INTERFACE,
    LABEL_KEY,
    LABEL_VALUE,
    OBJECT_NAME,
    PAIR_KINDS,
    PAIRS,
    SHAPE_KEYS,
)
from perfdag.suite.yaml_document import Document, Problem, Where, choices
from perfdag.units import CPU_LIST

M = TypeVar("M", bound=BaseModel)


def validate_partially(
    document: Document,
    prefix: Where,
    raw: Any,
    model: type[M],
    problems: list[Problem],
    fallback: Mapping[str, Any] | None = None,
) -> tuple[M | None, frozenset[str]]:
    """Return the model of the value at `prefix` without its wrong keys, and these keys.

    Add mistakes to `problems`.

    The model is None if nothing remains: the value is no mapping, or a required key without a
    `fallback` is wrong.
    """
    remaining, dropped = raw, set[tuple[str | int, ...]]()
    while True:
        try:
            return model.model_validate(remaining), frozenset(str(path[0]) for path in dropped)
        except ValidationError as invalid:
            errors = invalid.errors()
        # an error of a whole mapping may be only a consequence of what was dropped from it
        certain = [
            error
            for error in errors
            if not any(path[: len(error["loc"])] == error["loc"] for path in dropped)
        ]
        problems += [explain(document, prefix, error, model) for error in certain]
        before = remaining
        for error in errors:
            if error["loc"]:
                remaining = (
                    _without(remaining, error["loc"]) if isinstance(remaining, dict) else remaining
                )
                dropped.add(error["loc"])
        remaining = {**(fallback or {}), **remaining} if isinstance(remaining, dict) else remaining
        if remaining == before:
            return None, frozenset(str(path[0]) for path in dropped)


def _without(mapping: Mapping[str, Any], path: tuple[str | int, ...]) -> dict[str, Any]:
    """Return a mapping without the key at `path`, or its innermost existing parent."""
    key, inner = str(path[0]), mapping.get(str(path[0]))
    if isinstance(inner, dict) and len(path) > 1 and path[1] in inner:
        return {**mapping, key: _without(inner, path[1:])}
    return {name: value for name, value in mapping.items() if name != key}


def error_path(error: Mapping[str, Any]) -> Where:
    """Return the path of a pydantic error without the parts that stand in no file."""
    return tuple(
        part
        for part in error["loc"]
        if not (isinstance(part, str) and part.startswith(("function-", "constrained-", "[key]")))
    )


def explain(
    document: Document, prefix: Where, error: Mapping[str, Any], model: type[BaseModel]
) -> Problem:
    """Return a pydantic error as a problem of the document."""
    where = error_path(error)
    path = prefix + where
    kind, context = error["type"], error.get("ctx", {})
    value = error.get("input")
    if kind == "extra_forbidden":
        known = sorted(_fields_at(model, where[:-1]))
        text = (
            removal_note(str(where[-1]))
            or f"unknown key{_place(document, path) or choices(where[-1], known, 'allowed:')}"
        )
    elif kind == "missing":
        text = "is required"
    elif kind in {"literal_error", "enum"}:
        allowed = str(context["expected"]).replace("'", "").replace(" or ", ", ").split(", ")
        text = removal_note(f"{(path or ('',))[-1]}={value}") or (
            f"unknown value {value!r}{choices(value, allowed, 'allowed:')}"
        )
    elif kind == "value_error":
        text = str(error["msg"]).removeprefix("Value error, ")
    elif kind == "string_pattern_mismatch":
        form = _FORMS.get(context["pattern"], f"of the form {context['pattern']}")
        text = f"{value!r} is not {form}"
    elif kind in _TYPES:
        text = f"must be {_TYPES[kind]}" + (
            f", not {value!r}" if isinstance(value, str | int | float | bool) else ""
        )
    elif kind in _BOUNDS:
        text = f"must be {_BOUNDS[kind][0]} {context[_BOUNDS[kind][1]]}, not {value!r}"
    else:
        text = f"{error['msg'][0].lower()}{error['msg'][1:]}" + (
            f", not {value!r}" if isinstance(value, str | int | float | bool) else ""
        )
    return document.problem(path, text)


def _place(document: Document, path: Where) -> str:
    """Return where an unknown key of an entry belongs that is a parameter, or an empty text."""
    if path[:1] != ("entries",) or len(path) not in (3, 4):
        return ""
    key, benchmark = str(path[-1]), document.data["entries"][path[1]].get("benchmark")
    fields = registry.get(benchmark).Params.model_fields if registry.usable(benchmark) else {}
    if path[2:-1] == ("permutations",) and key.partition(".")[0] in {*fields, *SHAPE_KEYS}:
        return f"; write `product: {{{key}: ...}}`"
    if len(path) == 3 and key in fields:
        return f"; it is a parameter of {benchmark}: write `params: {{{key}: ...}}`"
    return ""


_TYPES = {
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "string_type": "text (in quotes, if it is a number)",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
}
_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}
_FORMS = {
    IMAGE: "an image: at most 512 of a-z, A-Z, 0-9 and . _ / : @ -",
    FOLDER: "an absolute path: at most 1024 of a-z, A-Z, 0-9, space and . _ / : @ + = , ~ -",
    "^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$": "a suite name: 1 to 40 of a-z, 0-9 and -, "
    "beginning and ending with a letter or digit",
    "^[A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?$": "an entry name: 1 to 63 letters, "
    "digits, - and _, a letter or digit at both ends",
    PAIRS: f"one of {PAIR_KINDS}",
    CPU_LIST: "a CPU list such as 0 or 2-3",
    OBJECT_NAME: "the name of an object of Kubernetes: at most 253 of a-z, 0-9, - and ., "
    "a letter or digit at both ends",
    INTERFACE: "the name of a network interface: 1 to 15 letters, digits, "
    "and _ . : - after the first",
    LABEL_KEY: "a label's key: at most 63 letters, digits, - _ ., "
    "which may follow a DNS name and a /",
    LABEL_VALUE: "a label's value: at most 63 letters, digits, - _ ., "
    "a letter or digit at both ends",
}


def _fields_at(model: type[BaseModel], path: Where) -> set[str]:
    """Return the field names of the model at `path` below `model`, or none."""
    current: Any = model
    for part in path:
        if isinstance(part, int):
            continue
        info = getattr(current, "model_fields", {}).get(part)
        models = _models(info.annotation) if info else []
        if not models:
            return set()
        current = models[0]
    return set(current.model_fields)


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in getattr(annotation, "__args__", ()) for model in _models(part)]

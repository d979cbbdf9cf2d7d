"""Errors of pydantic in the words of a suite file: the path, what is wrong, what is allowed, the nearest name."""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from perfdag import cpulist
from perfdag.document import Document, Problem, Where, nearest
from perfdag.shape import INTERFACE, LABEL_KEY, LABEL_VALUE

M = TypeVar("M", bound=BaseModel)


def salvage(
    document: Document,
    prefix: Where,
    raw: Any,
    model: type[M],
    problems: list[Problem],
    instead: Mapping[str, Any] | None = None,
) -> tuple[M | None, frozenset[str]]:
    """The model of what stands at `prefix`, mistakes added to `problems`; of one with mistakes, what is left without the keys that have them.

    Also the names of those keys. None where nothing can be left: it is no mapping, or a required key that `instead` does not give is wrong.
    """
    left, dropped = raw, set[tuple[str | int, ...]]()
    while True:
        try:
            return model.model_validate(left), frozenset(str(where[0]) for where in dropped)
        except ValidationError as error:
            found = error.errors()
        # what is said of a mapping as a whole may be only for what was dropped from it
        sure = [
            each
            for each in found
            if not any(path[: len(each["loc"])] == each["loc"] for path in dropped)
        ]
        problems += [explain(document, prefix, each, model) for each in sure]
        before = left
        for each in found:
            left = _without(left, each["loc"]) if each["loc"] and isinstance(left, dict) else left
            dropped |= {each["loc"]} if each["loc"] else set()
        left = {**(instead or {}), **left} if isinstance(left, dict) else left
        if left == before:
            return None, frozenset(str(where[0]) for where in dropped)


def _without(left: Mapping[str, Any], where: tuple[str | int, ...]) -> dict[str, Any]:
    """A mapping without the key at `where`, or without the innermost that there is on the way."""
    key, inside = str(where[0]), left.get(str(where[0]))
    if isinstance(inside, dict) and len(where) > 1 and where[1] in inside:
        return {**left, key: _without(inside, where[1:])}
    return {name: value for name, value in left.items() if name != key}


def place(error: Mapping[str, Any]) -> Where:
    """Where a pydantic error is, without the steps that stand in no file."""
    return tuple(
        part
        for part in error["loc"]
        if not (isinstance(part, str) and part.startswith(("function-", "constrained-", "[key]")))
    )


def explain(
    document: Document, prefix: Where, error: Mapping[str, Any], model: type[BaseModel]
) -> Problem:
    """A pydantic error as a problem of the document: the path, what is wrong, what is allowed, the nearest name."""
    where = place(error)
    path = prefix + where
    kind, context = error["type"], error.get("ctx", {})
    given = error.get("input")
    if kind == "extra_forbidden":
        known = sorted(_fields_at(model, where[:-1]))
        text = f"unknown key; allowed: {', '.join(known)}{nearest(where[-1], known)}"
    elif kind == "missing":
        text = "is required"
    elif kind in {"literal_error", "enum"}:
        allowed = str(context["expected"]).replace("'", "").replace(" or ", ", ").split(", ")
        text = f"{given!r} is not one of {', '.join(allowed)}{nearest(given, allowed)}"
    elif kind == "value_error":
        text = str(error["msg"]).removeprefix("Value error, ")
    elif kind == "string_pattern_mismatch":
        text = f"{given!r} is not {_FORMS.get(context['pattern'], 'of the form ' + context['pattern'])}"
    elif kind in _TYPES:
        text = f"must be {_TYPES[kind]}" + (
            f", not {given!r}" if isinstance(given, str | int | float | bool) else ""
        )
    elif kind in _BOUNDS:
        text = f"must be {_BOUNDS[kind][0]} {context[_BOUNDS[kind][1]]}, not {given!r}"
    else:
        text = f"{error['msg'][0].lower()}{error['msg'][1:]}" + (
            f", not {given!r}" if isinstance(given, str | int | float | bool) else ""
        )
    return document.problem(path, text)


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
    "^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$": "a suite name: 1 to 40 of a-z, 0-9 and -, beginning and ending with a letter or digit",
    "^[A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?$": "an entry name: 1 to 63 letters, digits, - and _, a letter or digit at both ends",
    "^(all|ring|random [1-9][0-9]*)$": "one of all, ring, `random N`",
    cpulist.PATTERN: "a CPU list such as 0 or 2-3",
    "^/": "an absolute path",
    INTERFACE: "the name of a network interface: 1 to 15 letters, digits, and _ . : - after the first",
    LABEL_KEY: "a label's key: at most 63 letters, digits, - _ ., which may follow a DNS name and a /",
    LABEL_VALUE: "a label's value: at most 63 letters, digits, - _ ., a letter or digit at both ends",
}


def _fields_at(model: type[BaseModel], path: Where) -> set[str]:
    """Names of the fields of the model found by following `path` from `model`; empty where it leads out of models."""
    current: Any = model
    for part in path:
        if isinstance(part, int):
            continue
        info = getattr(current, "model_fields", {}).get(part)
        found = _models(info.annotation) if info else []
        if not found:
            return set()
        current = found[0]
    return set(current.model_fields)


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in getattr(annotation, "__args__", ()) for model in _models(part)]

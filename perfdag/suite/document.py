"""A YAML file with the position of every value, so that an error can name its line.

The syntax is that of PyYAML's safe loader, without tags, merge keys and duplicate keys. `dump`
writes YAML as people write it.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from perfdag.benchmark import registry
from perfdag.problems import PerfdagError, Problem as Problem
from perfdag.shape import SHAPE_KEYS

Model = TypeVar("Model", bound=BaseModel)
Where = tuple[str | int, ...]
_TAGS: dict[type[yaml.Node], set[str]] = {
    yaml.ScalarNode: {"str", "int", "float", "bool", "null", "timestamp"},
    yaml.SequenceNode: {"seq"},
    yaml.MappingNode: {"map"},
}


_HINTS = {
    "cannot start any token": "; indent with spaces, not tabs",
    "unknown escape character": "; put text with a backslash in single quotes, as in '\\d+'",
}
"""What to do about an error of the YAML parser, by a part of its text."""


MOST_VALUES = 10_000
"""Values of a document beside one for each of its characters, which only aliases exceed."""


_OTHER_BASE = re.compile(r"[-+]?0[0-7_]+|.*:.*")
"""Digits that YAML 1.1 reads as octal (010 is 8) or sexagesimal (1:30 is 90)."""


class BadDocument(PerfdagError):
    """The document cannot be used.

    `problems` holds everything that is wrong with it, by file and line.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = sorted(dict.fromkeys(problems), key=lambda p: (p.file, p.line))
        super().__init__("\n".join(map(str, self.problems)))


def dotted(path: Where) -> str:
    """Return `("entries", 0, "params")` as `entries[0].params`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def nearest(text: object, names: Iterable[str]) -> str:
    """Return `; did you mean X?` if one of the names is close, else an empty text."""
    close = difflib.get_close_matches(str(text), list(names), n=1, cutoff=0.55)
    return f"; did you mean {close[0]}?" if close else ""


def choices(text: object, names: Iterable[str], label: str) -> str:
    """Return `; did you mean X? LABEL X, Y, Z`: the nearest name, if one is close, then all."""
    names = list(names)
    return f"{nearest(text, names) or ';'} {label} {', '.join(names)}"


@dataclass
class Document:
    """Plain data, the line (from 1) of each path, and the top-level keys that `--set` gave."""

    file: str
    text: str
    data: Any = None
    lines: dict[Where, int] = field(default_factory=dict)
    set_keys: set[str] = field(default_factory=set)

    def line(self, path: Where) -> int:
        """Return the line of a path, or of its nearest parent that the file holds."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def problem(self, path: Where, code: str, text: str) -> Problem:
        """Return a problem at that path of this file, or of what `--set` put there."""
        if path and path[0] in self.set_keys:
            return Problem(code, text, dotted(path), "--set")
        return Problem(code, text, dotted(path), self.file, self.line(path))


def read_document(file: Path | str) -> Document:
    """Return a YAML file as a document. Raises BadDocument."""
    return parse_document(read_yaml(file), str(file))


def read_yaml(file: Path | str) -> str:
    """Return the text of a YAML file. Raises BadDocument."""
    path = Path(file)
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        close = nearest(file, map(str, path.parent.glob("*.yaml")))
        raise BadDocument([Problem("no-file", f"no such file{close}", file=str(file))]) from None
    except (OSError, UnicodeDecodeError) as error:
        cause = getattr(error, "strerror", "it is not UTF-8 text")
        raise BadDocument(
            [Problem("unreadable", f"cannot be read: {cause}", file=str(file))]
        ) from None


def parse_document(text: str, file: str = "suite.yaml") -> Document:
    """Return YAML text as a document. Raises BadDocument."""
    document = Document(file, text)
    reader = _Reader(document)
    try:
        root = _compose(text)
        document.data = reader.value(root, ()) if root is not None else None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        texts = (getattr(error, name, None) for name in ("context", "problem"))
        cause = " ".join(filter(None, texts)) or str(error).partition("\n")[0]
        hint = next((hint for part, hint in _HINTS.items() if part in cause), "")
        text = f"not YAML: {cause}{hint}"
        line = mark.line + 1 if mark else 1
        raise BadDocument([Problem("not-yaml", text, "", file, line)]) from None
    if reader.problems:
        raise BadDocument(reader.problems)
    return document


@lru_cache(maxsize=4)
def _compose(text: str) -> yaml.Node | None:
    """Return the root of YAML text. A run reads that of its suite, and again that in its plan."""
    return yaml.compose(text, Loader=yaml.CSafeLoader)


@dataclass
class _Reader:
    document: Document
    problems: list[Problem] = field(default_factory=list)
    scalars: yaml.CSafeLoader = field(default_factory=lambda: yaml.CSafeLoader(""))

    def _refuse(self, node: yaml.Node, path: Where, code: str, text: str) -> None:
        line = node.start_mark.line + 1
        self.problems.append(Problem(code, text, dotted(path), self.document.file, line))

    def value(self, node: yaml.Node, path: Where) -> Any:
        self.document.lines[path] = node.start_mark.line + 1
        if len(self.document.lines) > MOST_VALUES + len(self.document.text):
            raise ValueError("its aliases (*name) repeat too much; write the values out")
        if node.tag.removeprefix("tag:yaml.org,2002:") not in _TAGS[type(node)]:
            self._refuse(
                node,
                path,
                "tag",
                f"the tag {node.tag.replace('tag:yaml.org,2002:', '!!')} is not allowed; "
                "write a plain value",
            )
            return None
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        try:
            value = self.scalars.construct_object(node)
        except (yaml.YAMLError, ValueError):
            value = None
            self._refuse(
                node,
                path,
                "unreadable",
                f"cannot read {node.value!r} as {node.tag.rpartition(':')[2]}; "
                "quote it if it is text",
            )
        if isinstance(value, int | float) and _OTHER_BASE.fullmatch(node.value):
            text = f"{node.value} is {value} in YAML; write {value}, or quote it if it is text"
            self._refuse(node, path, "other-base", text)
        if value is None or isinstance(value, str | int | float | bool):
            return value
        return str(node.value)  # a date, which JSON and the suite do not have

    def _mapping(self, node: yaml.MappingNode, path: Where) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            if not isinstance(key_node, yaml.ScalarNode):
                self._refuse(key_node, path, "no-plain-key", "a key must be a plain word")
            elif key == "<<":
                self._refuse(
                    key_node,
                    path,
                    "merge-key",
                    "merge keys (<<) are not supported; use `defaults` or write the values out",
                )
            elif key in mapping:
                self._refuse(
                    key_node, (*path, key), "twice", "given twice in the same mapping; remove one"
                )
            else:
                mapping[key] = self.value(value_node, (*path, key))
                self.document.lines[(*path, key)] = key_node.start_mark.line + 1
        return mapping


def validated(document: Document, data: Any, model: type[Model], at: Where = ()) -> Model:
    """Return the model of the data at `at` of a document. Raises BadDocument."""
    try:
        return model.model_validate(data)
    except ValidationError as errors:
        problems = [explain(document, at, error, model) for error in errors.errors()]
        raise BadDocument(problems) from None


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
    kind = error["type"]
    value = error.get("input")
    if kind == "extra_forbidden":
        allowed = sorted(_fields_at(model, where[:-1]))
        text = f"unknown key{_place(document, path) or choices(where[-1], allowed, 'allowed:')}"
    elif kind in {"literal_error", "enum"}:
        expected = str(error["ctx"]["expected"]).replace("'", "")
        allowed = expected.replace(" or ", ", ").split(", ")
        text = f"unknown value {value!r}{choices(value, allowed, 'allowed:')}"
    elif kind == "value_error" or "-" in kind:  # a code of ours
        text = str(error["msg"]).removeprefix("Value error, ")
    elif kind == "list_type" and isinstance(value, dict):
        text = f"must be a list; put `- ` before `{next(iter(value), '')}`"
    else:
        message = str(error["msg"])
        message = f"{message[0].lower()}{message[1:]}"
        text = _KINDS[kind].format(**error.get("ctx", {})) if kind in _KINDS else message
        if isinstance(value, str | int | float | bool):
            text += f", not {value!r}"
    return document.problem(path, kind.replace("_", "-"), text)


def _place(document: Document, path: Where) -> str:
    """Return where an unknown key of an entry belongs that is a parameter, or an empty text."""
    if path[:1] != ("entries",) or len(path) not in (3, 4):
        return ""
    key = str(path[-1])
    benchmark = str(document.data["entries"][path[1]].get("benchmark"))
    fields = {} if registry.fault(benchmark) else registry.get(benchmark).Params.model_fields
    if path[2:-1] == ("permutations",) and key.partition(".")[0] in {*fields, *SHAPE_KEYS}:
        return f"; write `product: {{{key}: ...}}`"
    if len(path) == 3 and key in fields:
        return f"; it is a parameter of {benchmark}: write `params: {{{key}: ...}}`"
    return ""


_KINDS = {
    "missing": "is required",
    "list_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "string_type": "must be text (in quotes, if it is a number)",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be more than {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be less than {lt}",
    "too_short": "must have {min_length} or more items",
}
"""What is wrong by the kind of pydantic's error; others have pydantic's own text."""


def _fields_at(model: type[BaseModel], path: Where) -> set[str]:
    """Return the keys of the model at `path` below `model`, or none."""
    current: type[BaseModel] = model
    for part in path:
        info = _fields(current).get(str(part))
        # the place in a list and the key of a mapping are no fields
        models = _models(info.annotation) if info else [current]
        if not models:
            return set()
        current = models[0]
    return set(_fields(current))


def _fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the fields of a model by the keys that a document has for them."""
    return {info.alias or name: info for name, info in model.model_fields.items()}


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in getattr(annotation, "__args__", ()) for model in _models(part)]


LINE = 150
"""Most characters of a list or mapping that is written in one line."""


def dump(documents: Iterable[Mapping[str, Any]]) -> str:
    """Return documents as one YAML stream, a list or mapping in one line where it fits.

    Hera's own writer joins lines at `{{`.
    """
    return yaml.dump_all(
        documents, Dumper=_Writer, sort_keys=False, width=10**9, allow_unicode=True
    )


def quoted(text: str) -> str:
    """Return a text as YAML in quotes, which a list or a mapping in one line may hold."""
    style = "'" if text.isprintable() else '"'
    line = yaml.dump([text], Dumper=_Writer, default_style=style, width=10**9, allow_unicode=True)
    return line.strip()[1:-1]  # without the brackets of the list


class _Writer(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_data(self, data: Any) -> yaml.Node:
        node = super().represent_data(data)
        if isinstance(node, yaml.CollectionNode):
            node.flow_style = _length(node) <= LINE
        elif isinstance(node, yaml.ScalarNode) and "\n" in node.value:
            node.style = "|"
        return node


def _length(node: yaml.Node) -> int:
    """Return about how long a node is in one line; much more than any line for a text of lines."""
    if isinstance(node, yaml.ScalarNode):
        return 10**6 if "\n" in node.value else len(node.value) + 2
    parts: Iterable[yaml.Node] = node.value
    if isinstance(node, yaml.MappingNode):
        parts = chain.from_iterable(node.value)
    return 2 + sum(map(_length, parts))

"""A YAML file with the position of every value, so that an error can name its line.

The syntax is that of PyYAML's safe loader, without tags, merge keys and duplicate keys.
"""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

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


@dataclass(frozen=True)
class Problem:
    """One mistake: `file:line: path: text`. Line 0 stands for no line."""

    file: str
    line: int
    path: str
    text: str

    def __str__(self) -> str:
        path = _short(self.path, 200)
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {path + ': ' if path else ''}{_short(self.text, 1000)}"


def _short(text: str, length: int) -> str:
    """Return a text of about that length in one line: its middle is left out."""
    if len(text) > length:
        text = f"{text[: length // 2]} ... {text[-length // 2 :]}"
    return text.replace("\r", "\\r").replace("\n", "\\n")


class BadDocument(Exception):
    """The document cannot be used.

    `problems` holds everything that is wrong with it, by file and line.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        unique = dict.fromkeys(problems)
        self.problems = sorted(unique, key=lambda p: (p.file, p.line))
        super().__init__("\n".join(map(str, self.problems)))


def dotted(path: Where) -> str:
    """Return `("entries", 0, "params")` as `entries[0].params`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def nearest(word: object, choices: Iterable[str]) -> str:
    """Return `; did you mean X?` if a known name is close, else an empty text."""
    close = difflib.get_close_matches(str(word), list(choices), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def choices(word: object, known: Iterable[str], label: str) -> str:
    """Return `; did you mean X? LABEL X, Y, Z`: the nearest name, if one is close, then all."""
    names = list(known)
    return f"{nearest(word, names) or ';'} {label} {', '.join(names)}"


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

    def problem(self, path: Where, text: str) -> Problem:
        """Return a problem at that path of this file, or of what `--set` put there."""
        if path and path[0] in self.set_keys:
            return Problem("--set", 0, dotted(path), text)
        return Problem(self.file, self.line(path), dotted(path), text)


def read_document(file: Path | str) -> Document:
    """Return a YAML file as a document. Raises BadDocument."""
    return parse_document(read_text(file), str(file))


def read_text(file: Path | str) -> str:
    """Return the text of a YAML file. Raises BadDocument."""
    path = Path(file)
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        siblings = (
            [str(sibling) for sibling in path.parent.glob("*.yaml")] if path.parent.is_dir() else []
        )
        raise BadDocument(
            [Problem(str(file), 0, "", f"no such file{nearest(file, siblings)}")]
        ) from None
    except UnicodeDecodeError as error:
        raise BadDocument(
            [Problem(str(file), 0, "", f"not UTF-8 text (byte {error.start})")]
        ) from None
    except OSError as error:
        raise BadDocument(
            [Problem(str(file), 0, "", f"cannot be read: {error.strerror}")]
        ) from None


def parse_document(text: str, file: str = "suite.yaml") -> Document:
    """Return YAML text as a document. Raises BadDocument."""
    document = Document(file, text)
    reader = _Reader(document)
    try:
        root = yaml.compose(text, Loader=yaml.CSafeLoader)
        document.data = reader.value(root, ()) if root is not None else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        cause = " ".join(part for part in (error.context, error.problem) if part)
        hint = next((hint for part, hint in _HINTS.items() if part in cause), "")
        raise BadDocument(
            [Problem(file, mark.line + 1 if mark else 1, "", f"not YAML: {cause}{hint}")]
        ) from None
    except RecursionError:
        raise BadDocument([Problem(file, 1, "", "not YAML: nested too deeply")]) from None
    except (yaml.YAMLError, ValueError) as error:
        cause = str(error).partition("\n")[0]
        raise BadDocument([Problem(file, 1, "", f"not YAML: {cause}")]) from None
    if reader.problems:
        raise BadDocument(reader.problems)
    return document


class _Reader:
    def __init__(self, document: Document) -> None:
        self.document = document
        self.problems: list[Problem] = []
        self._scalars = yaml.CSafeLoader("")

    def _refuse(self, node: yaml.Node, path: Where, text: str) -> None:
        self.problems.append(
            Problem(self.document.file, node.start_mark.line + 1, dotted(path), text)
        )

    def value(self, node: yaml.Node, path: Where) -> Any:
        self.document.lines[path] = node.start_mark.line + 1
        if node.tag.removeprefix("tag:yaml.org,2002:") not in _TAGS[type(node)]:
            self._refuse(
                node,
                path,
                f"the tag {node.tag.replace('tag:yaml.org,2002:', '!!')} is not allowed; "
                "write a plain value",
            )
            return None
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        try:
            value = self._scalars.construct_object(node)
        except (yaml.YAMLError, ValueError):
            value = None
            self._refuse(
                node,
                path,
                f"cannot read {node.value!r} as {node.tag.rpartition(':')[2]}; "
                "quote it if it is text",
            )
        # a date is a YAML type that JSON and the suite do not have
        return (
            value
            if isinstance(value, str | int | float | bool) or value is None
            else str(node.value)
        )

    def _mapping(self, node: yaml.MappingNode, path: Where) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._refuse(key_node, path, "a key must be a plain word")
                continue
            key = str(key_node.value)
            if key == "<<":
                self._refuse(
                    key_node,
                    path,
                    "merge keys (<<) are not supported; use `defaults` or write the values out",
                )
                continue
            if key in mapping:
                self._refuse(key_node, (*path, key), "given twice in the same mapping; remove one")
                continue
            mapping[key] = self.value(value_node, (*path, key))
            self.document.lines[(*path, key)] = key_node.start_mark.line + 1
        return mapping

"""Text that becomes part of a pod: what it may have, and what would be replaced in it."""

import re
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, StringConstraints

IMAGE = r"^[A-Za-z0-9][A-Za-z0-9._/:@-]{0,511}$"
OBJECT_NAME = r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$"
FOLDER = r"^/[A-Za-z0-9._/:@+=,~ -]{0,1023}$"
_LABEL = r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)"
LABEL_KEY, LABEL_VALUE = rf"^([a-z0-9]([a-z0-9.-]{{0,251}}[a-z0-9])?/)?{_LABEL}$", rf"^{_LABEL}?$"
Name = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._/-]{0,251}[A-Za-z0-9])?$")
]
ObjectName = Annotated[str, StringConstraints(pattern=OBJECT_NAME)]
LabelKey = Annotated[str, StringConstraints(pattern=LABEL_KEY)]
LabelValue = Annotated[str, StringConstraints(pattern=LABEL_VALUE)]
_REPLACED = re.compile(r"\{\{|\$\(|@[A-Z]+@")
"""What Argo, the kubelet or the template of a batch replaces."""


class Strict(BaseModel):
    """A part of a shape: no unknown keys, and no change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def replaced_texts(shape: dict[str, Any]) -> list[tuple[str, str]]:
    """Return (dotted key, problem) of each text of a shape that would not reach the pod as it is.

    All texts are read, those of keys and lists too.
    """
    return [
        (
            key,
            f"{text[:200]!r} has {{{{, $( or a placeholder such as @BATCH@, "
            "which would be replaced in a pod; write the value out",
        )
        for key, text in _texts(shape, "")
        if _REPLACED.search(text)
    ]


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield path, key
            yield from _texts(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner, path)

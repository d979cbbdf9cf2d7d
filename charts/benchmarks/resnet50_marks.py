"""Marks of figures that are not comparable or were not checked, for titles."""

from collections.abc import Mapping
from typing import Any

_WORDS = {
    "fast": "smoke test: not comparable",
    "loadgen": "LoadGen says INVALID",
    "weights": "weights not verified",
}


def with_marks(title: str, coords: Mapping[str, Any]) -> str:
    """Return the title with the marks of these coordinates in brackets."""
    marks = "; ".join(words for name, words in _WORDS.items() if name in coords)
    return f"{title} ({marks})" if marks else title

"""Canonical JSON and digests, which ids consist of."""

import hashlib
from collections.abc import Mapping
from typing import Any

import orjson


def canonical(value: Any) -> str:
    """Return canonical JSON: sorted keys, no spaces, and whole floats as integers."""
    text = orjson.dumps(value, default=_mapping, option=orjson.OPT_SORT_KEYS)
    if b".0" in text:  # orjson writes every whole float of less than 2**53 so; few values have one
        text = orjson.dumps(_whole(value), option=orjson.OPT_SORT_KEYS)
    return text.decode()


def _mapping(value: Any) -> dict[Any, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def _whole(value: Any) -> Any:
    kind = type(value)
    # Most values are of these types, for which isinstance would be slow.
    if kind is str or kind is int or kind is bool or value is None:
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    if kind is dict or isinstance(value, Mapping):
        return {key: _whole(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_whole(item) for item in value]
    return value


def digest(*parts: str) -> str:
    """Return 16 hexadecimal digits: BLAKE2b (RFC 7693) of the parts and separators."""
    return hashlib.blake2b("\x1f".join(parts).encode(), digest_size=8).hexdigest()

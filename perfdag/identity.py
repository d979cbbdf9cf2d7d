"""What ids are made of: canonical JSON, its hash, and mappings laid over one another or grouped.

    digest("iperf", canonical({"streams": 8}))  # 16 hexadecimal digits

Equal values give equal ids on every machine and in every release, so that a history goes on.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import orjson

Item = TypeVar("Item")
Key = TypeVar("Key")


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Return the items of each key, both in their order."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def canonical(value: Any) -> str:
    """Return canonical JSON: sorted keys, no spaces, and whole floats as integers."""
    # A value that is no mapping, such as a set, has no items and is refused.
    text = orjson.dumps(value, default=lambda item: dict(item.items()), option=orjson.OPT_SORT_KEYS)
    if b".0" in text:  # orjson writes every whole float of less than 2**53 so; few values have one
        text = orjson.dumps(_whole(value), option=orjson.OPT_SORT_KEYS)
    return text.decode()


def _whole(value: Any) -> Any:
    # Most values are of these types, for which isinstance would be slow.
    if type(value) in (str, int, bool) or value is None:
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    if isinstance(value, Mapping):
        return {key: _whole(item) for key, item in value.items()}
    return [_whole(item) for item in value] if isinstance(value, list | tuple) else value


def digest(*parts: str) -> str:
    """Return 16 hexadecimal digits: BLAKE2b (RFC 7693) of the parts and separators."""
    return hashlib.blake2b("\x1f".join(parts).encode(), digest_size=8).hexdigest()


def merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Return `below` with the values of `above`.

    Mappings are merged key by key; any other value, lists included, replaces.
    """
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = (
            merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
        )
    return merged

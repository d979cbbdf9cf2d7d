"""What ids are made of: canonical JSON and digests."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson


def canonical(value: Any) -> str:
    """Canonical JSON: keys sorted, no spaces, a float that is a whole number written as an int (so `10` and `10.0` are one)."""
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
    if (
        kind is str or kind is int or kind is bool or value is None
    ):  # most are, and need no look at their bases
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    if kind is dict or isinstance(value, Mapping):
        return {key: _whole(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_whole(each) for each in value]
    return value


def digest(*parts: str) -> str:
    """16 hexadecimal digits: BLAKE2b (RFC 7693) over the parts, separated so that no two lists collide by joining."""
    return hashlib.blake2b("\x1f".join(parts).encode(), digest_size=8).hexdigest()


def digests(head: Sequence[str], tails: Iterable[str]) -> list[str]:
    """`digest(*head, tail)` of each tail; the head, which many rows share, is hashed once."""
    begun = hashlib.blake2b("".join(f"{part}\x1f" for part in head).encode(), digest_size=8)
    made = []
    for tail in tails:
        each = begun.copy()
        each.update(tail.encode())
        made.append(each.hexdigest())
    return made

"""Secret values, and their removal from what perfdag stores and prints.

Values are known from variables of this process with secret names. A value that a command encodes or
cuts is not recognised.
"""

import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

logger = logging.getLogger("perfdag")
"""What perfdag says of its progress, without secret values."""
MARK = "[redacted]"
SHORTEST = 6
"""Characters below which a value is not searched in texts: it would match too much."""
_NAME = re.compile(
    r"(TOKEN|KEY|PASSWORD|PASSWD|PASSPHRASE|SECRET|CREDENTIAL|WEBHOOK)S?\d*(?![A-Z0-9])"
    r"|(?<![A-Z0-9])(PASS|PAT|AUTH|DSN|DATABASE_URL)\d*(?![A-Z0-9])"
    r"|(?<=_)PWD(?![A-Z0-9])",  # PWD itself is a folder
    re.I,
)
_HARMLESS = ("_ID", "_FILE", "_PATH", "_DIR", "_SOCK")
_values: dict[str, None] = {}


def is_secret(name: str) -> bool:
    """Return whether a variable of that name holds a secret."""
    return _NAME.search(name) is not None and not name.upper().endswith(_HARMLESS)


def register(values: Iterable[str]) -> None:
    """Remove these values too from what this process stores and prints."""
    _values.update(dict.fromkeys(values))


def redact(text: str) -> str:
    """Return a text without the known secret values."""
    for value in _known():
        text = text.replace(value, MARK)
    return text


def map_texts(data: Any, change: Callable[[str], str]) -> Any:
    """Return plain data with `change` applied to all its texts, keys included."""
    if isinstance(data, str):
        return change(data)
    if isinstance(data, Mapping):
        return {map_texts(key, change): map_texts(data[key], change) for key in data}
    return [map_texts(item, change) for item in data] if isinstance(data, list | tuple) else data


def redact_json(data: bytes) -> bytes:
    """Return a JSON text, its keys sorted, without the known secret values.

    Only texts change: a number with the same digits stays.
    """
    import orjson  # `--help` needs none

    if not any(orjson.dumps(value)[1:-1] in data for value in _known()):
        return data
    return orjson.dumps(map_texts(orjson.loads(data), redact), option=orjson.OPT_SORT_KEYS)


def _known() -> list[str]:
    """Return the secret values, the longest first, since one may hold another."""
    variables = (value for name, value in os.environ.items() if is_secret(name))
    values = {value for value in map(str.strip, (*variables, *_values)) if len(value) >= SHORTEST}
    return sorted(values, key=lambda value: (-len(value), value))


def secret_names(data: Any, name: str = "") -> Iterator[str]:
    """Yield the secret names in nested mappings that have a text. `name` is the key of `data`.

    A name `env.TOKEN` is the name TOKEN in the mapping `env`.
    """
    if isinstance(data, str) and data and is_secret(name):
        yield name
    elif isinstance(data, dict):
        for key, value in data.items():
            yield from secret_names(value, str(key).rpartition(".")[2])
    elif isinstance(data, list):
        for item in data:
            yield from secret_names(item, name)


def print_now(line: str) -> None:
    """Print a line and flush it, for whoever follows a pipe or the log of a pod."""
    print(redact(line), flush=True)

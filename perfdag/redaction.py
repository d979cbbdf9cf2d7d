"""Secret values, and their removal from what perfdag stores and prints.

Values are known from variables with secret names: of this process, and of the suite. A value that a
command encodes or cuts is not recognised.
"""

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

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


def redact_strings(data: Any) -> Any:
    """Return plain data whose texts, keys included, hold no known secret value."""
    if isinstance(data, str):
        return redact(data)
    if isinstance(data, dict):
        return {redact_strings(key): redact_strings(value) for key, value in data.items()}
    return [redact_strings(item) for item in data] if isinstance(data, list) else data


def redact_json(data: bytes) -> bytes:
    """Return a JSON text, its keys sorted, without the known secret values.

    Only texts change: a number with the same digits stays.
    """
    if not any(orjson.dumps(value)[1:-1] in data for value in _known()):
        return data
    return orjson.dumps(redact_strings(orjson.loads(data)), option=orjson.OPT_SORT_KEYS)


def _known() -> list[str]:
    """Return the secret values, the longest first, since one may hold another."""
    own = (value for name, value in os.environ.items() if is_secret(name))
    values = {value for value in map(str.strip, (*own, *_values)) if len(value) >= SHORTEST}
    return sorted(values, key=lambda value: (-len(value), value))


def extract(data: Any, secrets: dict[str, str], name: str = "") -> Any:
    """Return plain data with placeholders for texts below secret names in nested mappings.

    `secrets` gets the value of each placeholder. `name` is the key of `data` there.
    """
    if isinstance(data, str) and data and is_secret(name):
        return _placeholder(data, secrets, name)
    if isinstance(data, dict):
        return {key: extract(value, secrets, str(key)) for key, value in data.items()}
    return [extract(item, secrets, name) for item in data] if isinstance(data, list) else data


def extract_params(params: Mapping[str, Any], secrets: dict[str, str]) -> dict[str, Any]:
    """Return parameters of a benchmark with placeholders. Their own names are no secret names.

    A name `env.TOKEN` is the name TOKEN in the mapping `env`.
    """
    return {
        name: extract(value, secrets, name.rpartition(".")[2] if "." in name else "")
        for name, value in params.items()
    }


def restore(data: Any, secrets: Mapping[str, str]) -> Any:
    """Return plain data with the values of its placeholders."""
    if isinstance(data, str):
        return secrets.get(data, data)
    if isinstance(data, dict):
        return {key: restore(value, secrets) for key, value in data.items()}
    return [restore(item, secrets) for item in data] if isinstance(data, list) else data


def _placeholder(value: str, secrets: dict[str, str], name: str) -> str:
    number = 1
    while True:
        placeholder = f"[redacted {name}{f' {number}' if number > 1 else ''}]"
        if secrets.setdefault(placeholder, value) == value:
            return placeholder
        number += 1

"""The contract of a store of runs and results, which is a folder or `s3://bucket/prefix`.

Data is durable when `put` returns, and a reader never sees a partial file.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Protocol

KEY_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.=-]{0,199}"
"""One name of a key. It cannot be `..`, and no hidden file."""
_KEY = re.compile(rf"{KEY_NAME}(/{KEY_NAME})*", re.ASCII)


class StoreError(Exception):
    """The store cannot be used. The message says what to do."""


class AddressError(StoreError, ValueError):
    """No store can have this address, or not one that can be used here."""


class NotStoredError(StoreError):
    """The store has no such key."""


class BadKeyError(NotStoredError):
    """The text is no key, so no store has it."""


class DamagedError(StoreError):
    """The store has the key, but its content cannot be used."""


def is_key(text: str) -> bool:
    """Return whether a text is a key: names of KEY_NAME with `/` between them."""
    return _KEY.fullmatch(text) is not None


def check_key(root: str, key: str) -> str:
    """Return a key or prefix of the store `root`. Raises BadKeyError if it is none."""
    if not is_key(key):
        raise BadKeyError(
            f"store {root}: {key[:200]!r} is no key; a key is one or more names with / between, "
            "each of letters, digits and _ . = -, and not beginning with . = or -"
        )
    return key


class Store(Protocol):
    """Bytes by key. Every method raises BadKeyError for a text that is no key (`is_key`).

    The prefix of `list` may be empty. Objects whose names are no keys are not listed.
    """

    root: str

    def put(self, key: str, data: bytes) -> None:
        """Store data durably and replace earlier data. Raises StoreError."""

    def get(self, key: str) -> bytes:
        """Return the data of a key. Raises NotStoredError, StoreError."""

    def get_many(self, keys: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        """Yield (key, data) in the order of `keys`. Raises NotStoredError, StoreError."""

    def folders(self, prefix: str) -> list[str]:
        """Return the sorted names right below a prefix that have keys below them.

        Raises StoreError.
        """

    def list(self, prefix: str) -> list[str]:
        """Return the sorted keys below a prefix, which is like a folder. Raises StoreError."""

    def delete(self, prefix: str) -> None:
        """Remove a key, or all keys below a prefix, if they exist. Raises StoreError."""

    def url(self, key: str) -> str:
        """Return the path or URL of a key for people."""


DEFAULT_ROOT = "./perfdag-results"
BUCKET = r"s3://[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?(/" + KEY_NAME + ")*/?"
CLAIM = r"claim://[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_FORMS = {
    "s3://": (
        BUCKET,
        "s3://bucket/prefix, where the bucket has a-z, 0-9, . and -, and the names of the prefix "
        "have letters, digits and _ . = - and begin with a letter, a digit or _",
    ),
    "claim://": (CLAIM, "claim://NAME, where the name has 1 to 63 of a-z, 0-9 and -"),
}


def check_address(root: str) -> str:
    """Return the address of a store. Raises AddressError for one that no store can have.

    Every text without `://` is a folder.
    """
    scheme, separator, _ = root.partition("://")
    pattern, form = _FORMS.get(scheme + separator, ("", "a folder or s3://bucket/prefix"))
    if separator and not re.fullmatch(pattern, root):
        raise AddressError(f"{root[:200]!r}: a store is {form}")
    return root


def check_cluster_address(root: str) -> str:
    """Return the address of a store that pods can use. Raises AddressError for any other text."""
    if not on_cluster(root):
        raise AddressError(
            f"{root[:200] or 'no store'}: pods share no folder with this machine; "
            "give --store s3://bucket/prefix or claim://NAME"
        )
    return check_address(root)


def on_cluster(root: str | None) -> bool:
    """Return whether pods of a cluster can use the store."""
    return (root or "").startswith(("s3://", "claim://"))

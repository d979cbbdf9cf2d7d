"""The contract of a store of runs and results, which is a folder or `s3://bucket/prefix`.

Data is durable when `put` returns, and a reader never sees a partial file.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol


class StoreError(Exception):
    """The store cannot be used. The message says what to do."""


class NotStoredError(StoreError):
    """The store has no such key."""


class Store(Protocol):
    """Bytes by key. Keys are relative paths with `/`."""

    root: str

    def put(self, key: str, data: bytes) -> None:
        """Store data durably and replace earlier data. Raises StoreError."""
        ...

    def get(self, key: str) -> bytes:
        """Return the data of a key. Raises NotStoredError, StoreError."""
        ...

    def get_many(self, keys: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        """Yield (key, data) in the order of `keys`. Raises NotStoredError, StoreError."""
        ...

    def list(self, prefix: str) -> list[str]:
        """Return the sorted keys below a prefix, which is like a folder. Raises StoreError."""
        ...

    def delete(self, prefix: str) -> None:
        """Remove a key, or all keys below a prefix, if they exist. Raises StoreError."""
        ...

    def url(self, key: str) -> str:
        """Return the path or URL of a key for people."""
        ...

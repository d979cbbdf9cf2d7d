"""The store of runs and results: a folder or `s3://bucket/prefix`.

A `put` that returned is durable and whole; a reader never sees half a file.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol


class StoreError(Exception):
    """The store cannot be used: what, where, and what to do. Exit code 4."""


class NotStoredError(StoreError):
    """There is nothing under that key."""


class Store(Protocol):
    """Bytes by key; keys are relative paths with `/`."""

    root: str

    def put(self, key: str, data: bytes) -> None:
        """Store durably, replacing what was there. Raises StoreError."""
        ...

    def get(self, key: str) -> bytes:
        """Raises NotStoredError, StoreError."""
        ...

    def get_many(self, keys: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        """(key, data) of each key, in the order given; absent keys raise NotStoredError."""
        ...

    def list(self, prefix: str) -> list[str]:
        """Keys below a folder-like prefix, sorted; empty where there is none. Raises StoreError."""
        ...

    def delete(self, prefix: str) -> None:
        """Remove a key or all below a folder-like prefix; absent is fine. Raises StoreError."""
        ...

    def url(self, key: str) -> str:
        """Where a person finds it."""
        ...

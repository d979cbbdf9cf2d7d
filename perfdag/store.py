"""The store of runs and results: a folder or `s3://bucket/prefix`.

A `put` that returned is durable and whole; a reader never sees half a file.
"""

import contextlib
import errno
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

DEFAULT_ROOT = "./perfdag-results"
READ_AT_ONCE = 32


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
        """Keys below a folder-like prefix, sorted; empty where there is none."""
        ...

    def delete(self, prefix: str) -> None:
        """Remove a key or all below a folder-like prefix; absent is fine."""
        ...

    def url(self, key: str) -> str:
        """Where a person finds it."""
        ...


def open_store(root: str | None, patience: float = 10.0) -> Store:
    """The store at a folder or s3:// address. `patience` is how many seconds a `put` to S3 is tried. Raises StoreError."""
    root = root or DEFAULT_ROOT
    if root.startswith("claim://"):
        raise StoreError(f"{root} is a claim of a cluster; here use a folder or s3://, or run the command in a pod that mounts it")
    if root.startswith("s3://"):
        return S3Store(root, patience)
    if "://" in root:
        raise StoreError(f"{root}: a store is a folder or s3://bucket/prefix")
    return FolderStore(root)


def _why(error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return "the disk is full; free space there, then run again with --resume"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "it cannot be written; choose another with --store"
    return error.strerror or str(error)


class FolderStore:
    """A folder. Files are written beside their place, fsynced, and renamed."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._path = Path(root)

    def put(self, key: str, data: bytes) -> None:
        target = self._path / key
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
            folder = os.open(target.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise StoreError(f"store {self.root}: {_why(error)}") from error

    def get(self, key: str) -> bytes:
        try:
            return (self._path / key).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise NotStoredError(f"store {self.root}: no {key}") from None
        except OSError as error:
            raise StoreError(f"store {self.root}: {key}: {_why(error)}") from error

    def get_many(self, keys: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        for key in keys:
            yield key, self.get(key)

    def list(self, prefix: str) -> list[str]:
        base = self._path / prefix
        if not base.is_dir():
            return []
        found = []
        for folder, _, files in os.walk(base):
            relative = os.path.relpath(folder, self._path)
            found += [f"{relative}/{name}" for name in files if not (name.startswith(".") and name.endswith(".tmp"))]
        return sorted(found)

    def delete(self, prefix: str) -> None:
        import shutil

        target = self._path / prefix
        if target.is_dir():
            shutil.rmtree(target, ignore_errors=True)
        else:
            target.unlink(missing_ok=True)

    def url(self, key: str) -> str:
        return str(self._path / key)


class S3Store:
    """A bucket with an optional prefix, by s3fs; AWS_ENDPOINT_URL and the usual AWS settings are honoured. One PUT an object."""

    def __init__(self, root: str, patience: float) -> None:
        self.root, self.patience = root.rstrip("/"), patience
        self._base = self.root.removeprefix("s3://")
        try:
            import s3fs
        except ModuleNotFoundError:
            raise StoreError(f"store {root}: s3fs is not installed; pip install 'perfdag[s3]'") from None
        config = {
            "connect_timeout": 5,
            "read_timeout": 20,
            "retries": {"max_attempts": 2},
            "max_pool_connections": READ_AT_ONCE,
        }
        self._fs: Any = s3fs.S3FileSystem(use_listings_cache=False, skip_instance_cache=True, config_kwargs=config)

    def _error(self, error: Exception) -> StoreError:
        return StoreError(f"store {self.root}: {_s3_reason(error)}")

    def put(self, key: str, data: bytes) -> None:
        deadline = time.monotonic() + self.patience
        pause = 0.2
        while True:
            try:
                self._fs.pipe_file(f"{self._base}/{key}", data)
                return
            except Exception as error:
                if _permanent(error) or time.monotonic() + pause > deadline:
                    raise self._error(error) from error
                time.sleep(pause)
                pause = min(2 * pause, 5.0)

    def get(self, key: str) -> bytes:
        try:
            return bytes(self._fs.cat_file(f"{self._base}/{key}"))
        except FileNotFoundError:
            raise NotStoredError(f"store {self.root}: no {key}") from None
        except Exception as error:
            raise self._error(error) from error

    def get_many(self, keys: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        for start in range(0, len(keys), 512):
            chunk = keys[start : start + 512]
            try:
                found = self._fs.cat([f"{self._base}/{key}" for key in chunk], batch_size=READ_AT_ONCE)
            except FileNotFoundError as error:
                raise NotStoredError(f"store {self.root}: {error}") from None
            except Exception as error:
                raise self._error(error) from error
            if isinstance(found, bytes):
                found = {f"{self._base}/{chunk[0]}": found}
            for key in chunk:
                yield key, found[f"{self._base}/{key}"]

    def list(self, prefix: str) -> list[str]:
        try:
            found = self._fs.find(f"{self._base}/{prefix}")
        except FileNotFoundError:
            return []
        except Exception as error:
            raise self._error(error) from error
        return sorted(name.removeprefix(f"{self._base}/") for name in found)

    def delete(self, prefix: str) -> None:
        try:
            if self._fs.exists(f"{self._base}/{prefix}"):
                self._fs.rm(f"{self._base}/{prefix}", recursive=True)
        except Exception as error:
            raise self._error(error) from error

    def url(self, key: str) -> str:
        return f"{self.root}/{key}"


def _permanent(error: Exception) -> bool:
    return isinstance(error, PermissionError | FileNotFoundError) or "NoCredentials" in type(error).__name__


def _s3_reason(error: Exception) -> str:
    name = type(error).__name__
    if "NoCredentials" in name:
        return "no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile"
    if isinstance(error, PermissionError):
        return f"the S3 server refuses: {error}"
    if isinstance(error, FileNotFoundError):
        return f"no such bucket or object: {error}"
    text = str(error).splitlines()[0] if str(error) else name
    return f"cannot be reached: {text[:200]}; check AWS_ENDPOINT_URL and the network, then run again with --resume"

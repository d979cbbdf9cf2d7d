"""A store in a folder."""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from perfdag.store.base import NotStoredError, StoreError


def _reason(error: OSError, action: str = "written") -> str:
    if error.errno == errno.ENOSPC:
        return "the disk is full; free space there, then run again with --resume"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return (
            f"it cannot be {action} by this user; "
            "mend its rights, or choose another store with --store"
        )
    return error.strerror or str(error)


class FolderStore:
    """A folder. Files are written under a temporary name, fsynced and renamed."""

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
            raise StoreError(f"store {self.root}: {_reason(error)}") from error

    def get(self, key: str) -> bytes:
        try:
            return (self._path / key).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise NotStoredError(f"store {self.root}: no {key}") from None
        except OSError as error:
            raise StoreError(f"store {self.root}: {key}: {_reason(error, 'read')}") from error

    def get_many(self, keys: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        for key in keys:
            yield key, self.get(key)

    def list(self, prefix: str) -> list[str]:
        keys = []
        for folder, _, files in os.walk(self._path / prefix, onerror=self._check_listing):
            relative = Path(folder).relative_to(self._path)
            keys += [
                str(relative / name)
                for name in files
                if not (name.startswith(".") and name.endswith(".tmp"))
            ]
        return sorted(keys)

    def _check_listing(self, error: OSError) -> None:
        """Raise StoreError for a folder that cannot be read. A missing folder is empty."""
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            raise StoreError(
                f"store {self.root}: {error.filename}: {_reason(error, 'read')}"
            ) from error

    def delete(self, prefix: str) -> None:
        target = self._path / prefix
        try:
            while target.is_dir():
                with contextlib.suppress(FileNotFoundError):  # deleted by another process
                    shutil.rmtree(target)
            target.unlink(missing_ok=True)
        except NotADirectoryError:
            return  # A file has no keys below it.
        except OSError as error:
            raise StoreError(f"store {self.root}: {prefix}: {_reason(error)}") from error

    def url(self, key: str) -> str:
        return str(self._path / key)

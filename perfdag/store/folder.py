"""A store in a folder."""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from perfdag.store.base import NotStoredError, StoreError, check_key, is_key

FILE_MODE, FOLDER_MODE = 0o640, 0o750
"""Rights of what the store creates, less those that the umask takes away."""


def _reason(error: OSError, action: str = "written") -> str:
    if error.errno == errno.ENOSPC:
        return "the disk is full; free space there, then run again with --resume"
    if error.errno == errno.EROFS:
        return (
            "its file system is read-only; mount it writable, or choose another store with --store"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return (
            f"it cannot be {action} by this user; "
            "correct its permissions, or choose another store with --store"
        )
    return error.strerror or str(error)


class FolderStore:
    """A folder. Files are written under a temporary name, fsynced and renamed."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._path = Path(root)

    def _file(self, key: str) -> Path:
        return self._path / check_key(self.root, key)

    def put(self, key: str, data: bytes) -> None:
        target = self._file(key)
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            _make_folder(target.parent)
            temporary.unlink(missing_ok=True)  # of a killed process with the same id
            created = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
            with os.fdopen(created, "wb") as file:
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
            return self._file(key).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise NotStoredError(f"store {self.root}: no {key}") from None
        except OSError as error:
            raise StoreError(f"store {self.root}: {key}: {_reason(error, 'read')}") from error

    def get_many(self, keys: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        for key in keys:
            yield key, self.get(key)

    def folders(self, prefix: str) -> list[str]:
        try:
            with os.scandir(self._file(prefix)) as entries:
                return sorted(item.name for item in entries if item.is_dir() and is_key(item.name))
        except OSError as error:
            self._check_listing(error)
            return []

    def list(self, prefix: str) -> list[str]:
        keys = []
        top = self._file(prefix) if prefix else self._path
        for folder, _, files in os.walk(top, onerror=self._check_listing):
            relative = Path(folder).relative_to(self._path)
            keys += [key for name in files if is_key(key := str(relative / name))]
        return sorted(keys)

    def _check_listing(self, error: OSError) -> None:
        """Raise StoreError for a folder that cannot be read. A missing folder is empty."""
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            raise StoreError(
                f"store {self.root}: {error.filename}: {_reason(error, 'read')}"
            ) from error

    def delete(self, prefix: str) -> None:
        target = self._file(prefix)
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


def _make_folder(folder: Path) -> None:
    """Create a folder and those above it, each with FOLDER_MODE. Raises OSError."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(FOLDER_MODE, exist_ok=True)

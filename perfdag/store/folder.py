"""A store in a folder."""

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from perfdag.store.base import NotStoredError, StoreError


def _why(error: OSError, wanted: str = "written") -> str:
    if error.errno == errno.ENOSPC:
        return "the disk is full; free space there, then run again with --resume"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"it cannot be {wanted} by this user; mend its rights, or choose another store with --store"
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
            raise StoreError(f"store {self.root}: {key}: {_why(error, 'read')}") from error

    def get_many(self, keys: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        for key in keys:
            yield key, self.get(key)

    def list(self, prefix: str) -> list[str]:
        found = []
        for folder, _, files in os.walk(self._path / prefix, onerror=self._unlisted):
            relative = Path(folder).relative_to(self._path)
            found += [
                str(relative / name)
                for name in files
                if not (name.startswith(".") and name.endswith(".tmp"))
            ]
        return sorted(found)

    def _unlisted(self, error: OSError) -> None:
        """A folder that is not there holds nothing; one that may not be read is no empty one."""
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            raise StoreError(
                f"store {self.root}: {error.filename}: {_why(error, 'read')}"
            ) from error

    def delete(self, prefix: str) -> None:
        import shutil

        target = self._path / prefix
        try:
            while target.is_dir():
                with contextlib.suppress(FileNotFoundError):  # somebody else deletes there too
                    shutil.rmtree(target)
            target.unlink(missing_ok=True)
        except NotADirectoryError:
            return  # nothing is below a file
        except OSError as error:
            raise StoreError(f"store {self.root}: {prefix}: {_why(error)}") from error

    def url(self, key: str) -> str:
        return str(self._path / key)

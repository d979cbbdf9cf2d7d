"""The contract of a store of runs and results, a folder, and `s3://bucket/prefix` by its address.

    store = open_store("s3://bench/results")  # of perfdag.store.s3; None is ./perfdag-results
    store.put(f"runs/{plan.run_id}/plan.json", plan.dump())
    store.list("runs")

Data is durable when `put` returns, and a reader never sees a partial file.
"""

import contextlib
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from perfdag.problems import PerfdagError
from perfdag.signals import EXIT_INPUT, EXIT_REACH

KEY_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.=-]{0,199}"
"""One name of a key. It cannot be `..`, and no hidden file."""
_KEY = re.compile(rf"{KEY_NAME}(/{KEY_NAME})*", re.ASCII)


class StoreError(PerfdagError):
    """The store cannot be used. The message says what to do."""

    exit_code = EXIT_REACH


class AddressError(StoreError, ValueError):
    """No store can have this address, or not one that can be used here."""

    exit_code = EXIT_INPUT


class NotStoredError(StoreError):
    """The store has no such key."""

    exit_code = EXIT_INPUT


class DamagedError(StoreError):
    """The store has the key, but its content cannot be used."""

    exit_code = EXIT_INPUT


def is_key(text: str) -> bool:
    """Return whether a text is a key: names of KEY_NAME with `/` between them."""
    return _KEY.fullmatch(text) is not None


def check_key(root: str, key: str) -> str:
    """Return a key or prefix of the store `root`. Raises NotStoredError if it is none."""
    if not is_key(key):
        raise NotStoredError(
            f"store {root}: {key[:200]!r} is no key; a key is one or more names with / between, "
            "each of letters, digits and _ . = -, and not beginning with . = or -"
        )
    return key


class Store(Protocol):
    """Bytes by key. Every method raises NotStoredError for a text that is no key (`is_key`).

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
_FORMS = {
    "s3://": (
        rf"s3://[a-z0-9]([a-z0-9.-]{{0,61}}[a-z0-9])?(/{KEY_NAME})*/?",
        "s3://bucket/prefix, where the bucket has a-z, 0-9, . and -, and the names of the prefix "
        "have letters, digits and _ . = - and begin with a letter, a digit or _",
    ),
    "claim://": (
        r"claim://[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?",
        "claim://NAME, where the name has 1 to 63 of a-z, 0-9 and -",
    ),
}


def store_option(root: str) -> str:
    """Return the option that names this store in a command for people to paste."""
    return f"--store {shlex.quote(root)}"


def check_address(root: str) -> str:
    """Return the address of a store. Raises AddressError for one that no store can have.

    A text without `://` is a folder, unless it begins as an address, a variable or a home does.
    """
    scheme, separator, _ = root.partition("://")
    pattern, form = _FORMS.get(scheme + separator, ("", "a folder or s3://bucket/prefix"))
    if separator and not re.fullmatch(pattern, root):
        raise AddressError(f"{root[:200]!r}: a store is {form}")
    if not separator and re.match(r"[A-Za-z0-9.+-]+:|[~$\s]", root):
        raise AddressError(
            f"{root[:200]!r}: a store is {form}; ~ and $ stand for nothing here, "
            f"and a folder of this name is ./{root[:50]}"
        )
    return root


def check_cluster_address(root: str) -> str:
    """Return the address of a store that pods can use. Raises AddressError for any other text."""
    if not pods_can_use(root):
        raise AddressError(
            f"{root[:200] or 'no store'}: pods share no folder with this machine; "
            "give --store s3://bucket/prefix or claim://NAME"
        )
    return check_address(root)


def pods_can_use(root: str | None) -> bool:
    """Return whether pods of a cluster can use the store."""
    return (root or "").startswith(("s3://", "claim://"))


FILE_MODE = 0o640
FOLDER_MODE = 0o750
"""Rights of what the store creates, less those that the umask takes away."""


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
                target.parent.rmdir()  # an empty folder would look like a run without its plan
            raise StoreError(f"store {self.root}: {error.strerror}") from error

    def get(self, key: str) -> bytes:
        try:
            return self._file(key).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise NotStoredError(f"store {self.root}: no {key}") from None
        except OSError as error:
            raise StoreError(f"store {self.root}: {key}: {error.strerror}") from error

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
            raise StoreError(f"store {self.root}: {error.filename}: {error.strerror}") from error

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
            raise StoreError(f"store {self.root}: {prefix}: {error.strerror}") from error

    def url(self, key: str) -> str:
        return str(self._path / key)


def _make_folder(folder: Path) -> None:
    """Create a folder and those above it, each with FOLDER_MODE. Raises OSError."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(FOLDER_MODE, exist_ok=True)

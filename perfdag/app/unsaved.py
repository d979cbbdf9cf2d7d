"""Samples that the store refused: kept in a folder of this user until the run is resumed.

The folder is in the temporary folder, where other users may create files and links first. So it is
opened without following links, and only a folder that this user alone may enter is used.
"""

import contextlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from perfdag.plan.plan import Plan
from perfdag.results.samples import delete_damaged_samples, read_sample, sample_key
from perfdag.store.base import Store, StoreError
from perfdag.units import plural


def _path() -> Path:
    """Return the folder. Raises OSError if no temporary folder is writable."""
    return Path(tempfile.gettempdir()) / f"perfdag-unsaved-{os.geteuid()}"


@contextlib.contextmanager
def _folder() -> Iterator[int]:
    """Open the folder. Raises OSError, PermissionError if another user may write there."""
    descriptor = os.open(_path(), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise PermissionError(
                f"{_path()} is not a folder of this user with mode 0700; "
                "remove it, or name another folder with TMPDIR"
            )
        yield descriptor
    finally:
        os.close(descriptor)


class RescuingStore:
    """A store that keeps a sample in the temporary folder if it cannot be written.

    `restore_samples` stores it when the run is resumed.
    """

    def __init__(self, store: Store, run_id: str, report: Callable[[str], None]) -> None:
        self._store, self._run_id, self._report = store, run_id, report

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put(self, key: str, data: bytes) -> None:
        try:
            self._store.put(key, data)
        except StoreError:
            # Notes on missing samples are not kept: the resumed run writes them again.
            if key.startswith(f"runs/{self._run_id}/parts/"):
                self._keep(f"{self._run_id}.{key.rpartition('/')[2]}", data)
            raise

    def _keep(self, name: str, data: bytes) -> None:
        try:
            _path().mkdir(0o700, exist_ok=True)
            with _folder() as folder:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=folder)
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
                with os.fdopen(os.open(name, flags, 0o600, dir_fd=folder), "wb") as file:
                    file.write(data)
        except OSError as error:
            self._report(f"the last sample is lost; no temporary folder takes it either: {error}")


def restore_samples(store: Store, plan: Plan, report: Callable[[str], None]) -> None:
    """Store the samples that an earlier attempt kept, and delete damaged ones.

    A file that is no sample of this plan is reported and left. Raises StoreError.
    """
    try:
        with _folder() as folder:
            with os.scandir(folder) as entries:
                names = sorted(entry.name for entry in entries)
            for name in names:
                if name.startswith(f"{plan.run_id}."):
                    _restore(store, plan, folder, name, report)
    except FileNotFoundError:
        pass  # no sample was kept
    except OSError as error:
        report(f"unsaved samples are not restored: {error}")
    if damaged := delete_damaged_samples(store, plan.run_id):
        some = ", ".join(damaged[:5])
        report(f"unreadable, measured again: {plural(len(damaged), 'sample')} ({some})")


def _restore(
    store: Store, plan: Plan, folder: int, name: str, report: Callable[[str], None]
) -> None:
    """Store one sample and remove its file. Raises OSError, StoreError."""
    sample = name.removeprefix(f"{plan.run_id}.").removesuffix(".json")
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    with os.fdopen(os.open(name, flags, dir_fd=folder), "rb") as file:
        data = file.read()
    try:
        point = read_sample(data).point
        if point != "canary" and sample not in map(plan.key, range(len(plan.order))):
            raise ValueError(f"run {plan.run_id} has no sample {sample}")
        if not sample.startswith(f"{point}-"):
            raise ValueError(f"it is of point {point}")
    except ValueError as error:
        report(f"{_path() / name} is not stored: {error}")
        return
    store.put(sample_key(plan.run_id, sample), data)
    os.unlink(name, dir_fd=folder)

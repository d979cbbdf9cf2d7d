"""A store that the tests of steps share."""

from pathlib import Path

import pytest

from perfdag.store.base import FolderStore


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    """A store in a folder of the test."""
    return FolderStore(str(tmp_path / "store"))

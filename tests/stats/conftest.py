"""What several tests of the gate need."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from perfdag.store.base import Store
from perfdag.store.s3 import open_store
from tests.fakes.http_server import serving
from tests.stats.receiver import Receiver


@pytest.fixture
def webhook(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Receive what the gate sends."""
    Receiver.got, Receiver.status = [], 200
    with serving(Receiver) as url:
        monkeypatch.setenv("PERFDAG_WEBHOOK", f"{url}/hook")
        yield url


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))

"""What several tests of the gate need."""

import threading
from collections.abc import Iterator
from http.server import HTTPServer
from pathlib import Path

import pytest

from perfdag.store.base import Store
from perfdag.store.open import open_store
from tests.stats.receiver import Receiver


@pytest.fixture
def webhook() -> Iterator[str]:
    Receiver.got, Receiver.status = [], 200
    server = HTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/hook"
    server.shutdown()
    server.server_close()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))

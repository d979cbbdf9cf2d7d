"""A small API server that KUBECONFIG names."""

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml


class Answering(BaseHTTPRequestHandler):
    """Answers in JSON and logs nothing."""

    def answer(self, status: int, body: Any) -> None:
        """`body` where the status is 200, else a Status."""
        data = json.dumps(body if status == 200 else {"kind": "Status", "message": "no"}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        pass


@contextlib.contextmanager
def serving(
    handler: type[Answering], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Serve, with a kubeconfig in `folder`."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    document = {
        "current-context": "one",
        "clusters": [
            {"name": "one", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
        ],
        "users": [{"name": "one", "user": {"token": "t"}}],
        "contexts": [{"name": "one", "context": {"cluster": "one", "user": "one"}}],
    }
    (folder / "config").write_text(yaml.safe_dump(document))
    monkeypatch.setenv("KUBECONFIG", str(folder / "config"))
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()

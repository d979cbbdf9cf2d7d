"""An HTTP server on loopback for the length of a test."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class QuietHandler(BaseHTTPRequestHandler):
    """A handler that logs no request."""

    def log_message(self, format: str, *args: object) -> None: ...


@contextmanager
def serving(handler: type[QuietHandler]) -> Iterator[str]:
    """Serve with this handler; yield the URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()

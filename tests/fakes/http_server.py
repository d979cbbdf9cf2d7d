"""An HTTP server on loopback for the length of a test."""

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class QuietHandler(BaseHTTPRequestHandler):
    """A handler that logs no request."""

    def log_message(self, format: str, *args: object) -> None: ...


@contextmanager
def serving(handler: type[QuietHandler], tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Serve with this handler, and with TLS if it has a context; yield the URL of plain HTTP."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        if tls:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()

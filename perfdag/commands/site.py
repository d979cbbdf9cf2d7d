"""`perfdag site`: write pages over all runs of a store, and serve them over HTTP."""

import argparse
import mimetypes
import re
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

from perfdag.commands.options import (
    EXIT_REACH,
    STORE,
    CommandError,
    option,
    verb,
)
from perfdag.redaction import print_now
from perfdag.store.base import NotStoredError, Store, StoreError
from perfdag.store.s3 import open_store


@verb(
    "site",
    "Write pages into the store: an index of suites, the history of each, "
    "and a comparison of any two runs.",
    """
    examples:
      perfdag site
      perfdag site --store s3://bench/results
      perfdag site --serve

    The pages open from the folder, from static hosting of the bucket, or behind --serve. The last
    step of a run on a cluster writes them again.
    """,
    STORE,
    option("--serve", action="store_true", help="serve the pages over HTTP until Ctrl-C"),
    option("--port", default=8600, help="port of 127.0.0.1 to serve on; 0: any free one"),
)
def run_site(args: argparse.Namespace) -> None:
    """Write the site, and serve it."""
    from perfdag.charts.pages.site import write_site

    store = open_store(args.store)
    print_now(write_site(store))
    if args.serve:
        with server(store, args.port) as running, suppress(KeyboardInterrupt):
            print_now(
                f"serving http://{running.server_name}:{running.server_port}/ (Ctrl-C ends it)"
            )
            running.serve_forever()


SERVED = re.compile(r"site/.+|runs/[^/]+/[^/]+\.(html|svg|png)")
"""Keys that are served: the site, and the pages and pictures of a run, not its plan or samples."""


def server(store: Store, port: int) -> ThreadingHTTPServer:
    """Return a server of the site that listens, for this machine alone. Raises CommandError."""
    handler = type("Handler", (_Handler,), {"store": store})
    try:
        return ThreadingHTTPServer(("127.0.0.1", port), handler)
    except (OSError, OverflowError) as error:
        cause = getattr(error, "strerror", None) or error
        raise CommandError(f"--port {port}: {cause}; name another", EXIT_REACH) from None


class _Handler(BaseHTTPRequestHandler):
    """Answer GET by the content of a path."""

    store: Store

    def do_GET(self) -> None:
        """Answer with a file, or with the reason why there is none."""
        path = unquote(urlsplit(self.path).path).strip("/")
        status, data = self._content(path)
        kind = mimetypes.guess_type(path)[0] if status == HTTPStatus.OK else None
        self.send_response(status)
        if status == HTTPStatus.FOUND:
            self.send_header("Location", "/site/index.html")
        self.send_header("Content-Type", f"{kind or 'text/plain'}; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-cache")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        with suppress(ConnectionError):  # the page was closed meanwhile
            self.wfile.write(data)

    def _content(self, path: str) -> tuple[HTTPStatus, bytes]:
        """Return the status of a path, and its content or why there is none."""
        # A page of another site can make its own name resolve to this server (DNS rebinding), and
        # would then read the results. It cannot make the browser send another Host header.
        if self.headers.get("Host", "").partition(":")[0] not in ("localhost", "127.0.0.1"):
            return HTTPStatus.FORBIDDEN, b"this server has another name; use its address\n"
        if not path:
            return HTTPStatus.FOUND, b""
        if not SERVED.fullmatch(path):
            return HTTPStatus.NOT_FOUND, b"the site has no such page\n"
        try:
            return HTTPStatus.OK, self.store.get(path)
        except NotStoredError as error:
            return HTTPStatus.NOT_FOUND, str(error).encode()
        except StoreError as error:
            return HTTPStatus.BAD_GATEWAY, str(error).encode()

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing for a request."""

"""`perfdag site`: write pages over all runs of a store, and serve them over HTTP."""

import argparse
import mimetypes
import re
from collections.abc import Container
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from socket import getfqdn, gethostname
from urllib.parse import unquote, urlsplit

from perfdag.commands.options import (
    EXIT_OK,
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
    option("--address", default="127.0.0.1", help="address to serve on"),
    option("--port", default=8600, help="port to serve on; 0: any free one"),
)
def run(args: argparse.Namespace) -> int:
    """Write the site, and serve it."""
    from perfdag.charts.pages.site import write_site

    store = open_store(args.store)
    print_now(write_site(store))
    if args.serve:
        with server(store, args.address, args.port) as running, suppress(KeyboardInterrupt):
            print_now(
                f"serving http://{running.server_name}:{running.server_port}/ (Ctrl-C ends it)"
            )
            running.serve_forever()
    return EXIT_OK


SERVED = re.compile(r"site/.+|runs/[^/]+/[^/]+\.(html|svg|png)")
"""Keys that are served: the site, and the pages and pictures of a run, not its plan or samples."""


def server(store: Store, address: str, port: int) -> ThreadingHTTPServer:
    """Return a server of the site that listens. Raises CommandError."""
    names = {"localhost", *map(str.lower, (address, gethostname(), getfqdn()))}
    handler = type("Handler", (_Handler,), {"store": store, "names": names})
    try:
        return ThreadingHTTPServer((address, port), handler)
    except (OSError, OverflowError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        text = f"--address {address} --port {port}: {why}; name another"
        raise CommandError(text, EXIT_REACH) from None


class _Handler(BaseHTTPRequestHandler):
    """Answer GET by the content of a path."""

    store: Store
    names: set[str]
    """Names of this machine."""

    def do_GET(self) -> None:
        """Answer with a file, or with the reason why there is none."""
        path = unquote(urlsplit(self.path).path).strip("/")
        status, data, kind = HTTPStatus.OK, b"", "text/plain"
        if not is_own_name(self.headers.get("Host", ""), self.names):
            status, data = HTTPStatus.FORBIDDEN, b"this server has another name; use its address\n"
        elif not path:
            status = HTTPStatus.FOUND
        elif not SERVED.fullmatch(path):
            status, data = HTTPStatus.NOT_FOUND, b"the site has no such page\n"
        else:
            try:
                data, kind = self.store.get(path), mimetypes.guess_type(path)[0] or kind
            except StoreError as error:
                missing = isinstance(error, NotStoredError)
                status = HTTPStatus.NOT_FOUND if missing else HTTPStatus.BAD_GATEWAY
                data = str(error).encode()
        self.send_response(status)
        if status == HTTPStatus.FOUND:
            self.send_header("Location", "/site/index.html")
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-cache")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        with suppress(ConnectionError):  # the page was closed meanwhile
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing for a request."""


def is_own_name(host: str, names: Container[str]) -> bool:
    """Return whether a Host header is an IP address or a name of this machine.

    A page of another site can make its own name resolve to this server (DNS rebinding), and would
    then read the results. It cannot make the browser send another Host header.
    """
    name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
    with suppress(ValueError):
        return bool(ip_address(name))
    return name in names

"""`perfdag site`: write pages over all runs of a store, and serve them over HTTP."""

import argparse
import contextlib
import mimetypes
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from socket import getfqdn, gethostname
from urllib.parse import unquote, urlsplit

from perfdag.commands.options import (
    EXIT_REACH,
    JSON,
    STORE,
    CommandError,
    Verbs,
    add_verb,
    option,
    print_json,
    print_now,
)
from perfdag.store.base import NotStoredError, Store, StoreError
from perfdag.store.s3 import open_store

EPILOG = """examples:
  perfdag site
  perfdag site --store s3://bench/results
  perfdag site --serve

The pages open from the folder, from static hosting of the bucket, or behind --serve. The last step
of a run on a cluster writes them again.
"""


def add_site(sub: Verbs) -> None:
    """Register the verb."""
    add_verb(
        sub,
        "site",
        run,
        "Write pages into the store: an index of suites, the history of each, "
        "and a comparison of any two runs.",
        EPILOG,
        STORE,
        option("--serve", action="store_true", help="serve the pages over HTTP until Ctrl-C"),
        option("--address", default="127.0.0.1", help="address to serve on"),
        option("--port", default=8600, help="port to serve on; 0: any free one"),
        JSON,
    )


def run(args: argparse.Namespace) -> int:
    """Write the site, and serve it."""
    from perfdag.charts.pages.site import SiteError, write_site

    store = open_store(args.store)
    try:
        url = write_site(store)
    except SiteError as error:
        raise CommandError(str(error)) from None
    print_json({"url": url}) if args.json else print_now(url)
    if args.serve:
        serve(store, args.address, args.port)
    return 0


PICTURES = (".html", ".svg", ".png")
"""Endings of the files of a run that are served. Its plan and samples are not."""


def serve(store: Store, address: str, port: int) -> None:
    """Serve the site until Ctrl-C. Raises CommandError where it cannot listen."""
    with server(store, address, port) as running:
        print_now(f"serving http://{running.server_name}:{running.server_port}/ (Ctrl-C ends it)")
        try:
            running.serve_forever()
        except KeyboardInterrupt:
            print_now("ended")


def server(store: Store, address: str, port: int) -> ThreadingHTTPServer:
    """Return a server of the site that listens. Raises CommandError."""
    handler = type("Handler", (_Handler,), {"store": store, "address": address})
    try:
        return ThreadingHTTPServer((address, port), handler)
    except (OSError, OverflowError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        text = f"--address {address} --port {port}: {why}; name another"
        raise CommandError(text, EXIT_REACH) from None


class _Handler(BaseHTTPRequestHandler):
    """Answer GET by the content of a path."""

    store: Store
    address: str

    def do_GET(self) -> None:
        """Answer with a file, or with the reason why there is none."""
        if not is_own_name(self.headers.get("Host", ""), self.address):
            self._send(b"this server has another name; use its address\n", HTTPStatus.FORBIDDEN)
            return
        path = unquote(urlsplit(self.path).path).strip("/")
        if not path:
            self.send_response(HTTPStatus.FOUND)
            self.send_header("Location", "/site/index.html")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        try:
            data, status = content(self.store, path), HTTPStatus.OK
        except NotStoredError as error:
            data, status = str(error).encode(), HTTPStatus.NOT_FOUND
        except StoreError as error:
            data, status = str(error).encode(), HTTPStatus.BAD_GATEWAY
        self._send(data, status, mimetypes.guess_type(path)[0] or "text/plain")

    def _send(self, data: bytes, status: HTTPStatus, kind: str = "text/plain") -> None:
        kind = kind if status == HTTPStatus.OK else "text/plain"
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-cache")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # the page was closed meanwhile
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing for a request."""


def is_own_name(host: str, address: str) -> bool:
    """Return whether a Host header is an IP address, localhost or the name of this machine.

    A page of another site can make its own name resolve to this server (DNS rebinding), and would
    then read the results. It cannot make the browser send another Host header.
    """
    name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
    with contextlib.suppress(ValueError):
        return bool(ip_address(name))
    return name == address.lower() or name in _machine_names()


@cache
def _machine_names() -> frozenset[str]:
    """Return the names of this machine; asking DNS may take seconds."""
    return frozenset({"localhost", gethostname().lower(), getfqdn().lower()})


def content(store: Store, path: str) -> bytes:
    """Return a file of the site, or a page or picture of a run. Raises StoreError."""
    parts = path.split("/")
    of_run = parts[0] == "runs" and len(parts) == 3 and path.endswith(PICTURES)
    if parts[0] != "site" and not of_run:
        raise NotStoredError(f"the site has no {path[:200]!r}")
    return store.get(path)

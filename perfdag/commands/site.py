"""`perfdag site`: write pages over all runs of a store, and serve them over HTTP."""

import argparse
import mimetypes
import re
from collections.abc import Sequence
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
from perfdag.signals import end_once
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
      perfdag site --serve-only --host bench.example --store s3://bench/results

    The pages open from the folder, from static hosting of the bucket, or behind --serve. The last
    step of a run on a cluster writes them again.
    """,
    STORE,
    [
        option("--serve", action="store_true", help="serve the pages over HTTP until Ctrl-C"),
        option(
            "--serve-only",
            action="store_true",
            help="write no page, and serve those that the last step of each run writes",
        ),
    ],
    option("--port", default=8600, help="port to serve on; 0: any free one"),
    option(
        "--host",
        action="append",
        default=[],
        dest="hosts",
        metavar="NAME",
        help="serve not only this machine, but all that ask for this name, such as that of an "
        "ingress; repeat the option to add more",
    ),
)
def run_site(args: argparse.Namespace) -> None:
    """Write the site, and serve it."""
    store = open_store(args.store)
    if not args.serve_only:
        from perfdag.charts.pages.site import write_site

        print_now(write_site(store))
    if args.serve or args.serve_only:
        end_once()
        with server(store, args.port, args.hosts) as running, suppress(KeyboardInterrupt):
            address = f"{[*args.hosts, 'localhost'][0]}:{running.server_port}"
            print_now(f"serving http://{address}/ (Ctrl-C ends it)")
            running.serve_forever()


SERVED = re.compile(r"site/.+|runs/[^/]+/[^/]+\.(html|svg|png)")
"""Keys that are served: the site, and the pages and pictures of a run, not its plan or samples."""


def server(store: Store, port: int, hosts: Sequence[str] = ()) -> ThreadingHTTPServer:
    """Return a server of the site that listens. Raises CommandError.

    It is for this machine alone, or for all that ask for one of the names `hosts`.
    """
    names = {"localhost", "127.0.0.1", *map(str.lower, hosts)}
    handler = type("Handler", (_Handler,), {"store": store, "names": names})
    try:
        return ThreadingHTTPServer(("0.0.0.0" if hosts else "127.0.0.1", port), handler)
    except (OSError, OverflowError) as error:
        cause = getattr(error, "strerror", None) or error
        raise CommandError(f"--port {port}: {cause}; name another", EXIT_REACH) from None


class _Handler(BaseHTTPRequestHandler):
    """Answer GET by the content of a path."""

    timeout = 60.0
    """Seconds after which a connection that asks nothing is closed."""
    store: Store
    names: set[str]
    """The names in lower case by which it may be asked."""

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
        if self.headers.get("Host", "").partition(":")[0].lower() not in self.names:
            return HTTPStatus.FORBIDDEN, b"this server has another name: perfdag site --host NAME\n"
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

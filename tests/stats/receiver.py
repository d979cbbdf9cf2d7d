"""A webhook that keeps what it is sent."""

import json
from typing import Any

from tests.fakes.http_server import QuietHandler


class Receiver(QuietHandler):
    got: list[dict[str, Any]] = []
    status = 200

    def do_POST(self) -> None:  # noqa: N802
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.status == 200:
            self.got.append(json.loads(body))
        self.send_response(self.status)
        self.end_headers()

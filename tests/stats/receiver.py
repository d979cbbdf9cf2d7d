"""A webhook that keeps what it is sent."""

import json
from http.server import BaseHTTPRequestHandler
from typing import Any


class Receiver(BaseHTTPRequestHandler):
    got: list[dict[str, Any]] = []
    status = 200

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.status == 200:
            self.got.append(json.loads(body))
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass

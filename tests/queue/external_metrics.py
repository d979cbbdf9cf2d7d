"""The smallest server of external.metrics.k8s.io that lets a real HPA controller read a frontend: for tests alone.

A cluster of one's own has prometheus-adapter there.
"""

from __future__ import annotations

import json
import re
import ssl
import subprocess
import threading
import urllib.request
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

GROUP = "external.metrics.k8s.io/v1beta1"


def serve(folder: Path, metrics: str) -> ThreadingHTTPServer:
    """HTTPS on a free port of the loopback; ``metrics``: URL of the frontend's metrics."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            found = re.fullmatch(rf"/apis/{GROUP}/namespaces/([^/]+)/([^/]+)", path)
            if path == f"/apis/{GROUP}":
                resource = {
                    "name": "hpa_queue_all",
                    "namespaced": True,
                    "kind": "ExternalMetricValueList",
                    "verbs": ["get"],
                    "singularName": "",
                }
                self.answer({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": GROUP, "resources": [resource]})
            elif found:
                queue = re.escape(dict(parse_qsl(query))["labelSelector"].removeprefix("name="))
                with urllib.request.urlopen(metrics, timeout=5) as text:
                    value = re.search(rf'^{found[2]}{{name="{queue}"}} (\S+)$', text.read().decode(), re.M)
                item = {"metricName": found[2], "metricLabels": {}, "timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
                items = [{**item, "value": value[1]}] if value else []
                self.answer({"kind": "ExternalMetricValueList", "apiVersion": GROUP, "metadata": {}, "items": items})
            else:
                self.send_error(404)

        def answer(self, body: Any) -> None:
            data = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    key, certificate = folder / "key.pem", folder / "cert.pem"
    subject = ["-subj", "/CN=localhost", "-days", "2", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *subject], check=True, capture_output=True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def objects(namespace: str, port: int) -> list[dict[str, Any]]:
    """What makes the API server ask that port of its own machine."""
    spec = {
        "service": {"name": "metrics-for-tests", "namespace": namespace, "port": port},
        "group": GROUP.partition("/")[0],
        "version": "v1beta1",
    }
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "metrics-for-tests", "namespace": namespace},
            "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]},
        },
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": "v1beta1.external.metrics.k8s.io"},
            "spec": {**spec, "insecureSkipTLSVerify": True, "groupPriorityMinimum": 100, "versionPriority": 100},
        },
    ]

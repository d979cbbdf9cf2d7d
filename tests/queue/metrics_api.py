"""A server of external and custom metrics, with which a real HPA reads a frontend.

A cluster of one's own has prometheus-adapter there.
"""

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

EXTERNAL, CUSTOM = "external.metrics.k8s.io/v1beta1", "custom.metrics.k8s.io/v1beta2"
METRICS = {"hpa_queue_all": "hpa_queue_all", "hpa_queue_wait_time": "hpa_queue_maxwait_seconds"}
"""Name in the API, as the adapter's rules give it, and in the frontend's text."""


def serve(folder: Path, metrics: str) -> ThreadingHTTPServer:
    """HTTPS on a free port of the loopback; ``metrics``: URL of the frontend's metrics."""

    def value(metric: str, selector: str) -> str | None:
        queue = re.escape(selector.removeprefix("name="))
        with urllib.request.urlopen(metrics, timeout=5) as text:
            match = re.search(
                rf'^{METRICS[metric]}{{name="{queue}"}} (\S+)$', text.read().decode(), re.M
            )
        return match and match[1]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            parameters = dict(parse_qsl(query))
            external = re.fullmatch(rf"/apis/{EXTERNAL}/namespaces/([^/]+)/([^/]+)", path)
            custom = re.fullmatch(
                rf"/apis/{CUSTOM}/namespaces/([^/]+)/services/([^/]+)/([^/]+)", path
            )
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            if path in (f"/apis/{EXTERNAL}", f"/apis/{CUSTOM}"):
                group = path.removeprefix("/apis/")
                name, kind = (
                    ("hpa_queue_all", "External")
                    if group == EXTERNAL
                    else ("services/hpa_queue_wait_time", "")
                )
                resource = {
                    "name": name,
                    "namespaced": True,
                    "kind": f"{kind}MetricValueList",
                    "verbs": ["get"],
                    "singularName": "",
                }
                self.answer(
                    {
                        "kind": "APIResourceList",
                        "apiVersion": "v1",
                        "groupVersion": group,
                        "resources": [resource],
                    }
                )
            elif external:
                match = value(external[2], parameters["labelSelector"])
                items: list[dict[str, Any]] = (
                    [
                        {
                            "metricName": external[2],
                            "metricLabels": {},
                            "timestamp": now,
                            "value": match,
                        }
                    ]
                    if match
                    else []
                )
                self.answer(
                    {
                        "kind": "ExternalMetricValueList",
                        "apiVersion": EXTERNAL,
                        "metadata": {},
                        "items": items,
                    }
                )
            elif custom:
                match = value(custom[3], parameters["metricLabelSelector"])
                about = {
                    "kind": "Service",
                    "apiVersion": "/v1",
                    "namespace": custom[1],
                    "name": custom[2],
                }
                items = (
                    [
                        {
                            "describedObject": about,
                            "metric": {"name": custom[3]},
                            "timestamp": now,
                            "value": match,
                        }
                    ]
                    if match
                    else []
                )
                self.answer(
                    {
                        "kind": "MetricValueList",
                        "apiVersion": CUSTOM,
                        "metadata": {},
                        "items": items,
                    }
                )
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
    subject = [
        "-subj",
        "/CN=localhost",
        "-days",
        "2",
        "-keyout",
        str(key),
        "-out",
        str(certificate),
    ]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *subject],
        check=True,
        capture_output=True,
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    return server


def objects(namespace: str, port: int, group: str) -> list[dict[str, Any]]:
    """Return the objects that route a group of metrics (EXTERNAL or CUSTOM) to a local port."""
    name, version = group.split("/")
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "metrics-for-tests", "namespace": namespace},
            "spec": {
                "type": "ExternalName",
                "externalName": "localhost",
                "ports": [{"port": port}],
            },
        },
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": f"{version}.{name}"},
            "spec": {
                "service": {"name": "metrics-for-tests", "namespace": namespace, "port": port},
                "group": name,
                "version": version,
                "insecureSkipTLSVerify": True,
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
            },
        },
    ]

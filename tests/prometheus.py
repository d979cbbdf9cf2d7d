"""A real Prometheus that scrapes itself each second, for tests of queries."""

import contextlib
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="needs Prometheus (Debian: prometheus)"
)


@contextlib.contextmanager
def prometheus(folder: Path, address: str, nodes: Iterable[str] = ()) -> Iterator[str]:
    """Serve on an address of this machine and return the URL, once rates have values.

    Each of `nodes` is a target with that label. All of these are this Prometheus.
    """
    with socket.create_server((address, 0)) as free:
        listen = f"{address}:{free.getsockname()[1]}"
    targets = [{"targets": [listen], "labels": {"node": node}} for node in nodes]
    job = {"job_name": "own", "static_configs": targets or [{"targets": [listen]}]}
    config = {"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}
    (folder / "prometheus.yml").write_text(json.dumps(config))
    argv = ["prometheus", f"--config.file={folder / 'prometheus.yml'}"]
    argv += [f"--storage.tsdb.path={folder / 'prometheus'}", f"--web.listen-address={listen}"]
    server = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        url = f"http://{listen}"
        _wait_for_values(f"{url}/api/v1/query?query=rate(process_cpu_seconds_total[5s])")
        yield url
    finally:
        server.terminate()
        server.wait(20)


def _wait_for_values(url: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                if json.load(answer)["data"]["result"]:
                    return
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.5)
    pytest.fail("Prometheus has no values after 60 s")

"""report.html in Chromium, at desktop and phone width: it scrolls down and never sideways."""

import shutil
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from perfdag.charts.pages import report
from tests.charts import rows

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
WIDTHS = (390, 1280)  # a phone's and a desktop's, in CSS pixels
PAGE = """<!doctype html><title>frames</title>%s<script>
onload = () => { document.body.dataset.found = [...document.querySelectorAll("iframe")].map(frame => {
  const page = frame.contentDocument, root = page.documentElement;
  return [root.scrollWidth - root.clientWidth, frame.clientWidth, page.querySelectorAll("svg, img").length, page.body.innerText.length].join(" ");
}).join(";"); };
</script>"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    frames = "".join(
        f'<iframe src="report.html" style="width:{width}px;height:2000px;border:0"></iframe>'
        for width in WIDTHS
    )
    (tmp_path / "frames.html").write_text(PAGE % frames)
    (tmp_path / "report.html").write_text(
        report.report(rows.plain(), {"suite_text": f"name: trial # {'wide ' * 100}\n", "seed": 7})
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/frames.html"
    server.shutdown()
    server.server_close()


@pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium here: the report's widths are not looked at"
)
def test_a_report_never_scrolls_sideways(site: str, tmp_path: Path) -> None:
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
    ]
    argv = [
        str(CHROMIUM),
        *flags,
        f"--user-data-dir={tmp_path}/profile",
        "--virtual-time-budget=5000",
        "--dump-dom",
        site,
    ]
    page = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout
    result = [
        list(map(int, word.split()))
        for word in page.split('data-found="')[1].split('"')[0].split(";")
    ]
    assert [item[:2] for item in result] == [[0, width] for width in WIDTHS]
    assert all(pictures >= 1 and letters > 500 for _, _, pictures, letters in result)

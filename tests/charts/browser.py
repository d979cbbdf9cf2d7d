"""A real Chromium, driven over its DevTools protocol: https://chromedevtools.github.io/devtools-protocol/."""

import asyncio
import base64
import itertools
import os
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
PICTURES = os.environ.get("PERFDAG_PICTURES")
"""A folder that keeps the pictures of the pages for people."""
FAULTS = (Path(__file__).parent / "page_check.js").read_text()
"""A script that gives what is wrong with the texts of a page."""
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
]


class Page:
    """One tab. `errors` has the uncaught errors, and what its policy forbade."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._ids = socket, itertools.count(1)
        self.errors: list[str] = []

    async def call(self, method: str, **params: Any) -> Any:
        number = next(self._ids)
        await self._socket.send_json({"id": number, "method": method, "params": params})
        async with asyncio.timeout(60):
            while True:
                answer = await self._socket.receive_json()
                self._note(answer)
                if answer.get("id") == number:
                    assert "error" not in answer, answer
                    return answer["result"]

    def _note(self, answer: dict[str, Any]) -> None:
        if answer.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(answer["params"]["exceptionDetails"]))
        if (
            answer.get("method") == "Log.entryAdded"
            and answer["params"]["entry"]["level"] == "error"
        ):
            self.errors.append(answer["params"]["entry"]["text"])

    async def look(self, width: int, height: int, dark: bool = False, media: str = "") -> None:
        """Take the size of a screen, a colour scheme, and a medium such as print."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])

    async def open(self, url: str) -> None:
        """Open a page and wait until it says that it is ready."""
        await self.value("window.left = true")
        await self.call("Page.navigate", url=url)
        if "#" in url:  # another place of the same page loads nothing
            await self.call("Page.reload")
        await self.until("!window.left && document.body?.dataset.ready !== undefined")

    async def value(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = await self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def until(self, script: str, seconds: float = 30) -> None:
        """Wait until an expression is true."""
        async with asyncio.timeout(seconds):
            while True:
                with suppress(AssertionError):  # the page just leaves
                    if await self.value(script):
                        return
                await asyncio.sleep(0.02)

    async def move(self, x: float, y: float) -> None:
        """Move the mouse."""
        await self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    async def picture(self, name: str) -> None:
        """Keep a PNG of the window in PERFDAG_PICTURES, where that is set."""
        if PICTURES:
            shot = await self.call("Page.captureScreenshot")
            Path(PICTURES).mkdir(parents=True, exist_ok=True)
            (Path(PICTURES) / f"{name}.png").write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def chromium(profile: Path) -> Iterator[int]:
    """Start Chromium, and give the port of its DevTools."""
    argv = [str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    file = profile / "DevToolsActivePort"
    try:
        deadline = time.monotonic() + 60
        while not (file.exists() and file.read_text().strip()):
            assert time.monotonic() < deadline, "Chromium does not start"
            time.sleep(0.05)
        yield int(file.read_text().split()[0])
    finally:
        process.terminate()
        process.wait(20)


@asynccontextmanager
async def tab(port: int) -> AsyncIterator[Page]:
    """Open a tab of a running Chromium."""
    async with aiohttp.ClientSession() as session:
        new = await session.put(f"http://127.0.0.1:{port}/json/new?about:blank")
        about = await new.json(content_type=None)
        address = about["webSocketDebuggerUrl"]
        async with session.ws_connect(address, max_msg_size=0) as socket:
            page = Page(socket)
            for domain in ("Page", "Runtime", "Log"):
                await page.call(f"{domain}.enable")
            yield page
        await session.get(f"http://127.0.0.1:{port}/json/close/{about['id']}")

"""The files of the site that are the same for every store, and data as script files.

A page that is opened from a folder may load scripts but no other data, so data are scripts.
"""

import importlib.util
from collections.abc import Iterator
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import orjson

from perfdag.commands.options import CommandError

FOLDER = "site"
PAGES = {
    "index": "Runs",
    "history": "History of a suite",
    "benchmark": "Series of a benchmark",
    "compare": "Two runs compared",
}
LIBRARY = ("bokeh.min.js", "bokeh-api.min.js")
"""The part of Bokeh that draws in a browser, and its programming interface."""
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:"
)
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="stylesheet" href="site.css">
</head>
<body data-page="{page}" data-library="{library}">
<main><noscript>The pages need JavaScript; each run has a report.html without it.</noscript></main>
<script src="site.js"></script>
<script src="charts.js"></script>
<script src="pages.js"></script>
</body>
</html>
"""


def script(name: str, data: Any) -> bytes:
    """Return data as a script that hands them to the page under a name.

    The data are JSON, and `<` is escaped, so that no text of a suite can be markup.
    """
    pair = orjson.dumps([name, data], option=orjson.OPT_NON_STR_KEYS)
    return b"perfdag.add(%s);\n" % pair[1:-1].replace(b"<", b"\\u003c")


def read_script(data: bytes) -> Any:
    """Return the data of a script. Raises ValueError."""
    pair = data.strip().removeprefix(b"perfdag.add(").removesuffix(b");")
    return orjson.loads(b"[%s]" % pair)[1]


def library_name() -> str:
    """Return the name of the script file of Bokeh. Raises CommandError without Bokeh."""
    _library_folder()
    return f"bokeh-{version('bokeh')}.js"


def _library_folder() -> Path:
    spec = importlib.util.find_spec("bokeh")  # importing it would take half a second
    if spec is None or not spec.submodule_search_locations:
        raise CommandError("bokeh, which draws the charts, is absent: pip install 'perfdag[site]'")
    return Path(next(iter(spec.submodule_search_locations)))


def static_files() -> Iterator[tuple[str, bytes]]:
    """Yield name and content of pages, style, scripts and licence. Raises CommandError."""
    own = files("perfdag.charts")
    style = own.joinpath("report.css").read_bytes() + own.joinpath("site/site.css").read_bytes()
    yield "site.css", style
    for name in ("site.js", "charts.js", "pages.js"):
        yield name, own.joinpath(f"site/{name}").read_bytes()
    library = library_name()
    for page, title in PAGES.items():
        filled = _PAGE.format(policy=_POLICY, title=title, page=page, library=library)
        yield f"{page}.html", filled.encode()
    folder = _library_folder()
    yield "bokeh-LICENSE.txt", (folder / "LICENSE.txt").read_bytes()
    parts = (folder / "server/static/js" / name for name in LIBRARY)
    yield library, b"\n".join(part.read_bytes() for part in parts)

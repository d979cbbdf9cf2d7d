"""Write the site of a store: pages over all runs, and the data that their scripts load.

A page that is opened from a folder may load scripts but no other data, so data are scripts. After a
run only the files that it changed are written.
"""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from perfdag import __version__
from perfdag.analysis.alerts import AlertRecord, read_records
from perfdag.analysis.gate import series_by_cluster
from perfdag.analysis.medians import RunMedians, read_run_medians
from perfdag.charts.pages import site_data
from perfdag.identity import digest
from perfdag.redaction import logger
from perfdag.results.run_store import PARTIAL, RunStore, SelectionError, month_of, report_key
from perfdag.results.schema import explain_unreadable
from perfdag.store.base import NotStoredError, Store, store_option

FORMAT = 10
"""Version of the data. The site of another version is written again."""
COMPARED = 3
"""Newest runs that get verdicts against the run before, if they have none."""
FOLDER = "site"
DATA = f"{FOLDER}/data"
HEAD = "suite.js"
PAGES = {
    "index": "Suites",
    "history": "History of a suite",
    "benchmark": "A benchmark in all suites",
    "compare": "Two runs compared",
}
FILES = Path(__file__).resolve().parent.parent
"""The folder of the styles, scripts and templates."""


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


def static_files() -> Iterator[tuple[str, bytes]]:
    """Yield name and content of pages, style and scripts."""
    yield "site.css", (FILES / "report.css").read_bytes() + (FILES / "site/site.css").read_bytes()
    for path in (FILES / "page.js", *sorted((FILES / "site").glob("*.js"))):
        yield path.name, path.read_bytes()
    page = (FILES / "templates/site.html").read_text("utf-8")
    for name, title in PAGES.items():
        yield f"{name}.html", page.replace("@TITLE@", title).replace("@PAGE@", name).encode()


class _Folder:
    """The files of one suite: `marks` by path, those of the earlier site in `old`."""

    def __init__(self, store: Store, suite: str) -> None:
        self.store = store
        self.suite = suite
        self.prefix = f"{DATA}/{suite}"
        self.present = set(store.list(self.prefix))
        self.marks: dict[str, str] = {}
        head = self.data(HEAD)
        valid = isinstance(head, dict) and head.get("format") == FORMAT
        self.old: dict[str, str] = head["files"] if valid else {}

    def put(self, path: str, data: Any, mark: str = "") -> None:
        """Write a file unless the earlier site has it with this content, or with this mark."""
        name = f"{self.suite}/{path}"
        content = b"" if mark else script(name, data)
        self.marks[path] = mark or digest(content.decode())
        if not self.has(path) or self.old[path] != self.marks[path]:
            self.store.put(f"{DATA}/{name}", content or script(name, data()))

    def has(self, path: str) -> bool:
        """Return whether the earlier site has a file."""
        return path in self.old and f"{self.prefix}/{path}" in self.present

    def data(self, path: str) -> Any:
        """Return the data of a file, or None if it is absent or damaged. Raises StoreError."""
        try:
            return read_script(self.store.get(f"{self.prefix}/{path}"))
        except (NotStoredError, ValueError, IndexError):
            return None

    def runs(self) -> dict[str, site_data.Data]:
        """Return the runs of the earlier site by id, without files that are absent or damaged."""
        months = [self.data(path) for path in self.old if path.startswith("runs/")]
        return {run["id"]: run for month in months if month for run in month["runs"]}


def write_site(store: Store, suite: str | None = None) -> str:
    """Write the site, or what the newest run of one suite changes. Return its first page's URL.

    A suite or file that cannot be read is reported and left out. Raises SelectionError where the
    store has no results, and StoreError.
    """
    names = RunStore(store).suites()
    if not names:
        command = f"perfdag collect RUN {store_option(store.root)}"
        raise SelectionError(f"store {store.root} has no results: run a suite, or `{command}`")
    changed = [suite] if suite in names else names
    for name in changed:
        _write_suite(store, name)
    present = set(store.list(FOLDER))
    heads = {key.split("/")[2] for key in present if key.endswith(f"/{HEAD}")}
    for name in heads - set(names):
        store.delete(f"{DATA}/{name}")
    for name, data in static_files():
        key = f"{FOLDER}/{name}"
        if key not in present or store.get(key) != data:
            store.put(key, data)
    shown = [name for name in names if name in heads]
    index = {"version": __version__, "suites": shown, "store": store_option(store.root)}
    store.put(f"{DATA}/index.js", script("index.js", index))
    return store.url(f"{FOLDER}/index.html")


def write_after_run(store: Store, suite: str) -> None:
    """Write what the newest run of a suite changes. A site that cannot be written is reported."""
    try:
        write_site(store, suite)
    except Exception as error:  # the exit code is that of the run, whatever fails here
        logger.warning(f"perfdag: the site is not up to date: {type(error).__name__}: {error}")


def _write_suite(store: Store, suite: str) -> None:
    """Write the data of a suite. Raises StoreError."""
    medians = read_run_medians(store, suite)
    damaged = [explain_unreadable(store, entry) for entry in medians.damaged]
    for line in damaged:
        logger.warning(f"perfdag site: {line}")
    if not medians.runs:
        store.delete(f"{DATA}/{suite}")
        return
    folder = _Folder(store, suite)
    records = read_records(store, suite)
    rules, clusters = series_by_cluster(store, medians)
    runs = site_data.run_data(store, medians, folder.runs(), records)
    if not folder.old:
        _link_reports(store, runs)
    failed = site_data.add_verdicts(clusters, runs)
    _write_comparisons(folder, medians, {run["id"]: run["mark"] for run in runs})
    _write_runs(folder, medians, runs)
    for benchmark, lines in site_data.series_data(clusters, failed).items():
        name = site_data.key_name(benchmark)
        folder.put(f"series/{name}.js", {"folder": name, "series": lines})
    for path, mark, block in site_data.values(medians):
        folder.put(path, block, mark)
    head = {
        "format": FORMAT,
        "suite": suite,
        "headline": site_data.card(clusters),
        "runs": [
            [
                run.run_id,
                run.cluster,
                run.trigger,
                run.revision,
                len(medians.rechecks.get(run.run_id, ())),
            ]
            for run in medians.runs
        ],
        "report": next((run["id"] for run in reversed(runs) if run.get("report")), None),
        "alerts": _alerts(store, medians, records),
        "acks": [ack.__dict__ for ack in rules.accepted],
        "acks_wrong": rules.acks_wrong,
        "damaged": damaged,
        "files": folder.marks,
    }
    store.put(f"{folder.prefix}/{HEAD}", script(f"{suite}/{HEAD}", head))
    for key in folder.present - {f"{folder.prefix}/{path}" for path in (*folder.marks, HEAD)}:
        store.delete(key)


def _link_reports(store: Store, runs: list[site_data.Data]) -> None:
    """Let the newest reports that were written before the site lead to it."""
    keys = [report_key(run["id"]) for run in runs[-site_data.REPORTS_LATER :] if run.get("report")]
    for key in keys:
        page = store.get(key).replace(b'<span class="site" hidden>', b'<span class="site">')
        store.put(key, page)


def _write_comparisons(folder: _Folder, medians: RunMedians, marks: dict[str, str]) -> None:
    """Write the verdicts of the newest runs against the runs before, and keep the earlier ones.

    A pair whose values changed since, as of a resumed run, is compared again.
    """
    before: dict[str, str] = {}
    pairs = []
    for run in medians.runs:
        if run.trigger not in PARTIAL:
            if run.cluster in before:
                pairs.append((before[run.cluster], run.run_id))
            before[run.cluster] = run.run_id
    for number, (a, b) in enumerate(reversed(pairs)):
        path = f"compare/{b}/{a}.js"
        if number >= COMPARED and not folder.has(path):
            continue
        compared = partial(site_data.verdicts, folder.store, medians.suite, a, b)
        try:
            folder.put(path, compared, mark=f"{marks[a]} {marks[b]}")
        except SelectionError as error:
            del folder.marks[path]
            logger.warning(f"perfdag site: no verdicts of {b} against {a}: {error}")


def _write_runs(folder: _Folder, medians: RunMedians, runs: list[site_data.Data]) -> None:
    """Write the runs month by month, with the distinct environments of the month."""
    months: dict[str, site_data.Data] = {}
    for info, run in zip(medians.runs, runs, strict=True):
        month = months.setdefault(month_of(info.run_id), {"environments": [], "runs": []})
        if info.env not in month["environments"]:
            month["environments"].append(info.env)
        run["environment"] = month["environments"].index(info.env)
        month["runs"].append(run)
    for name, month in months.items():
        folder.put(f"runs/{name}.js", month)


def _alerts(
    store: Store, medians: RunMedians, records: dict[str, AlertRecord]
) -> list[site_data.Data]:
    """Return the alerts of the newest checked run of each cluster, those that page first.

    A message names the address of this store, which may have been elsewhere for the check.
    """
    # Runs stand oldest first, so the newest of a cluster remains.
    newest = {run.cluster: run.run_id for run in medians.runs if run.run_id in records}
    return [
        {
            "cluster": cluster,
            "run": run,
            "kind": alert.kind,
            "text": _at_address(alert.text, records[run].store, store.root),
        }
        for cluster, run in newest.items()
        for alert in records[run].alerts
    ]


def _at_address(text: str, before: str, after: str) -> str:
    """Return a text with another address of its store. A store `st` is no part of `--store`."""
    # The new one is a function's, because a backslash in a text would begin a group.
    return re.sub(rf"(?<![\w/-]){re.escape(before)}(?!\w)", lambda _: after, text)

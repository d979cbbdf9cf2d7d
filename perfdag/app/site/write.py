"""Write the site of a store, and after a run only what the run changed."""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from perfdag import __version__
from perfdag.analysis.alerts import Record, Rules, message, read_records, worst
from perfdag.analysis.gate import read_checks, unattended_rules
from perfdag.analysis.history import headlines, series_names, series_of, words_by_run
from perfdag.analysis.medians import RunMedians, read_run_medians
from perfdag.analysis.selection import SelectionError
from perfdag.analysis.verdict import Tuning
from perfdag.app.site import comparison
from perfdag.app.site.files import FOLDER, read_script, script, static_files
from perfdag.app.site.runs import run_data
from perfdag.app.site.series import (
    SERIES,
    Clusters,
    key_name,
    rounded,
    scale,
    series_data,
    value_blocks,
    values,
)
from perfdag.commands.options import CommandError
from perfdag.digest import digest
from perfdag.results.runs import PARTIAL
from perfdag.results.samples import month_of, suites
from perfdag.results.schema import explain_unreadable
from perfdag.store.base import NotStoredError, Store

logger = logging.getLogger(__name__)


FORMAT = 2
"""Version of the data. The site of another version is written again."""
MOST_ANSWERS = 3
"""Series of the newest run that the index names."""
COMPARED = 3
"""Newest runs that get verdicts against the run before, if they have none."""

DATA, HEAD = f"{FOLDER}/data", "suite.js"

Data = dict[str, Any]


@dataclass
class _Folder:
    """The files of one suite: `marks` by path, those of the earlier site in `old`."""

    store: Store
    name: str
    old: dict[str, str]
    present: set[str]
    marks: dict[str, str] = field(default_factory=dict)

    @property
    def prefix(self) -> str:
        return f"{DATA}/{self.name}"

    def put(self, path: str, data: Any) -> None:
        """Write a file unless the earlier site has it with this content."""
        self.put_marked(path, digest(script(path, data).decode()), lambda: data)

    def put_marked(self, path: str, mark: str, data: Callable[[], Any]) -> None:
        """Write a file unless the earlier site has it with this mark."""
        self.marks[path] = mark
        if not self.has(path) or self.old[path] != mark:
            self.store.put(f"{self.prefix}/{path}", script(f"{self.name}/{path}", data()))

    def has(self, path: str) -> bool:
        """Return whether the earlier site has a file."""
        return path in self.old and f"{self.prefix}/{path}" in self.present

    def data(self, path: str) -> Any:
        """Return the data of a file, or None if it is absent or damaged. Raises StoreError."""
        try:
            return read_script(self.store.get(f"{self.prefix}/{path}"))
        except (NotStoredError, ValueError, IndexError):
            return None

    def sweep(self) -> None:
        """Delete the files that the site no longer has."""
        for key in self.present - {f"{self.prefix}/{path}" for path in (*self.marks, HEAD)}:
            self.store.delete(key)


def write_site(store: Store, suite: str | None = None) -> str:
    """Write the site, or what the newest run of one suite changes. Return its first page's URL.

    A suite or file that cannot be read is reported and left out. Raises CommandError where the
    store has no results, and StoreError.
    """
    names = suites(store)
    if not names:
        raise CommandError(
            f"store {store.root} has no results: run a suite, or `perfdag collect RUN`"
        )
    for name in [suite] if suite in names else names:
        _write_suite(store, name)
    present = set(store.list(FOLDER))
    site_suites = [name for name in names if f"{DATA}/{name}/{HEAD}" in present]
    for name in {key.split("/")[2] for key in present if key.endswith(f"/{HEAD}")} - set(
        site_suites
    ):
        store.delete(f"{DATA}/{name}")
    for name, data in static_files():
        _put_static(store, f"{FOLDER}/{name}", data, present)
    store.put(
        f"{DATA}/index.js", script("index.js", {"version": __version__, "suites": site_suites})
    )
    return store.url(f"{FOLDER}/index.html")


def write_after_run(store: Store, suite: str) -> None:
    """Write what the newest run of a suite changes. A site that cannot be written is reported."""
    try:
        write_site(store, suite)
    except Exception as error:  # the exit code is that of the run, whatever fails here
        logger.warning(f"perfdag: the site is not up to date: {type(error).__name__}: {error}")


def _put_static(store: Store, key: str, data: bytes, present: set[str]) -> None:
    """Write a file that is the same for every store, unless the store has it.

    The name of the library says its version, so its megabyte is not read to compare it.
    """
    if key in present and (len(data) > 1_000_000 or store.get(key) == data):
        return
    store.put(key, data)


def _write_suite(store: Store, suite: str) -> None:
    """Write the data of a suite. Raises StoreError."""
    medians = read_run_medians(store, suite)
    damaged = [explain_unreadable(store, entry) for entry in medians.damaged]
    for line in damaged:
        logger.warning(f"perfdag site: {line}")
    if not medians.runs:
        logger.warning(f"perfdag site: suite {suite} has no readable run with a history; left out")
        store.delete(f"{DATA}/{suite}")
        return
    folder, head = _open(store, suite)
    records = read_records(store, suite)
    known = {run["id"]: run for run in _known_runs(folder, head)}
    rules = _rules(store, medians)
    clusters = [
        (here, series_of(here, Tuning(rules.checks, here.runs[0].cluster), rules.accepted))
        for here in map(medians.on_cluster, dict.fromkeys(run.cluster for run in medians.runs))
    ]
    runs = run_data(store, medians, known, records)
    _add_words(clusters, runs)
    _write_comparisons(folder, store, medians, runs)
    _write_runs(folder, medians, runs)
    _write_series(folder, medians, rules, clusters)
    head = {
        "format": FORMAT,
        "suite": suite,
        "headline": _headline(medians),
        "runs": [[run.run_id, run.cluster, run.trigger] for run in medians.runs],
        "alerts": _alerts(store, medians, rules, records),
        "acks": [ack.__dict__ for ack in rules.accepted],
        "acks_wrong": rules.acks_wrong,
        "damaged": damaged,
        "files": folder.marks,
    }
    store.put(f"{folder.prefix}/{HEAD}", script(f"{suite}/{HEAD}", head))
    folder.sweep()


def _open(store: Store, suite: str) -> tuple[_Folder, Data]:
    """Return the folder of a suite and what the earlier site says of it."""
    folder = _Folder(store, suite, {}, set(store.list(f"{DATA}/{suite}")))
    head = folder.data(HEAD)
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        return folder, {}
    folder.old = head["files"]
    return folder, head


def _known_runs(folder: _Folder, head: Data) -> list[Data]:
    """Return the runs of the earlier site, without files that are absent or damaged."""
    paths = [path for path in head.get("files", {}) if path.startswith("runs/")]
    return [run for path in paths for run in (folder.data(path) or {}).get("runs", [])]


def _rules(store: Store, medians: RunMedians) -> Rules:
    """Return the checks of the newest run, and the acknowledgements. Raises StoreError."""
    return unattended_rules(store, read_checks(store, medians.runs[-1].run_id))


def _write_comparisons(
    folder: _Folder, store: Store, medians: RunMedians, runs: list[Data]
) -> None:
    """Write the verdicts of the newest runs against the runs before, and keep the earlier ones.

    A pair whose values changed since, as of a resumed run, is compared again.
    """
    marks = {run["id"]: run["mark"] for run in runs}
    before: dict[str, str] = {}
    pairs = []
    for run in medians.runs:
        if run.trigger not in PARTIAL:
            if run.cluster in before:
                pairs.append((before[run.cluster], run.run_id))
            before[run.cluster] = run.run_id
    for number, (a, b) in enumerate(reversed(pairs)):
        path = comparison.path(a, b)
        if number >= COMPARED and not folder.has(path):
            continue
        verdicts = partial(comparison.verdicts, store, medians.suite, a, b)
        try:
            folder.put_marked(path, f"{marks[a]} {marks[b]}", verdicts)
        except SelectionError as error:
            del folder.marks[path]
            logger.warning(f"perfdag site: no verdicts of {b} against {a}: {error}")


def _write_runs(folder: _Folder, medians: RunMedians, runs: Sequence[Data]) -> None:
    """Write the runs month by month, with the distinct environments of the month."""
    months: dict[str, Data] = {}
    for info, run in zip(medians.runs, runs, strict=True):
        month = months.setdefault(month_of(info.run_id), {"environments": [], "runs": []})
        if info.env not in month["environments"]:
            month["environments"].append(info.env)
        run["environment"] = month["environments"].index(info.env)
        month["runs"].append(run)
    for name, month in months.items():
        folder.put(f"runs/{name}.js", month)


def _add_words(clusters: Clusters, runs: Sequence[Data]) -> None:
    """Add the answer about each run: the word of its headline series."""
    by_id = {run["id"]: run for run in runs}
    for own, series in clusters:
        lines = headlines(series)
        for run, word in zip(own.runs, words_by_run(lines, own), strict=True):
            by_id[run.run_id]["word"] = word
        newest = by_id[[run for run in own.runs if run.trigger != "confirm"][-1].run_id]
        newest["answers"] = [
            f"{line.name}: {line.answer.text}"
            for line in lines
            if line.answer.word == newest["word"] != "same"
        ][:MOST_ANSWERS]


def _write_series(folder: _Folder, medians: RunMedians, rules: Rules, clusters: Clusters) -> None:
    """Write the series of each benchmark, and their values month by month."""
    for benchmark, lines in series_data(clusters, rules).items():
        for number, start in enumerate(range(0, len(lines), SERIES)):
            data = {"benchmark": benchmark, "series": lines[start : start + SERIES]}
            path = f"series/{key_name(benchmark)}/{number}.js"
            folder.put(path, data)
    for block in value_blocks(medians):
        folder.put_marked(block.path, block.mark, partial(values, medians, block))


def _headline(medians: RunMedians) -> Data | None:
    """Return the headline series with the most runs, and its value in each run."""
    counts = [
        int((medians.n[i] > 0).sum()) if info.headline and not info.canary else 0
        for i, info in enumerate(medians.series)
    ]
    if not any(counts):
        return None
    best = counts.index(max(counts))
    info, column = medians.series[best], medians.value[best].tolist()
    newest = next(value for value in reversed(column) if not math.isnan(value))
    factor, unit = scale(info.unit, newest)
    return {
        "name": series_names(medians)[best],
        "unit": unit,
        "factor": factor,
        "better": info.better,
        "values": [rounded(value) for value in column],
    }


def _alerts(
    store: Store, medians: RunMedians, rules: Rules, records: dict[str, Record]
) -> list[Data]:
    """Return the alerts of the newest checked run of each cluster, those that page first.

    A message names the addresses of this store, which the run may have had elsewhere.
    """
    newest = {run.cluster: run.run_id for run in medians.runs if run.run_id in records}
    alerts = []
    for cluster, run in newest.items():
        report = store.url(f"runs/{run}/report.html")
        for alert in worst(records[run].alerts):
            text = message(alert, report, store.root, rules.acks_file)
            alerts.append({"cluster": cluster, "run": run, "kind": alert.kind, "text": text})
    return alerts

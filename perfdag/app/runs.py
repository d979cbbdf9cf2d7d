"""The runs of a store: find one by the words of a user, list them, open a report."""

import tempfile
import webbrowser
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from perfdag.analysis.selection import select_one
from perfdag.app.errors import CommandError
from perfdag.app.terminal.text_table import text_table
from perfdag.plan.plan import Plan
from perfdag.results.collect import kept_rows
from perfdag.results.runs import find_run, known_plan, load_plan, newer_note, runs
from perfdag.results.samples import result_key, stored_samples
from perfdag.results.schema import SAMPLES, NewerSchemaError, read_rows
from perfdag.results.summary import statuses_of, statuses_text
from perfdag.store.base import DamagedError, NotStoredError, Store
from perfdag.store.folder import FolderStore
from perfdag.store.open import open_store


@dataclass(frozen=True)
class StoredRun:
    """One line of `perfdag ls`."""

    run_id: str
    suite: str
    kind: str
    samples: str
    report: bool


def read_run(root: str | None, selector: str, report: Callable[[str], None]) -> tuple[Store, Plan]:
    """Return the store, and the plan of the run that `selector` names, `baseline:NAME` included.

    The plan has no points where the run's rows alone are left. `report` receives the explanation of
    `last`. Raises StoreError.
    """
    store = open_store(root)
    if selector.startswith("baseline:"):
        selector = select_one(store, selector)[0]
    known = runs(store)
    run_id = find_run(store, selector, known)
    explain_last(store, selector, run_id, report)
    return store, known_plan(store, run_id, known[run_id])


def explain_last(store: Store, selector: str, run_id: str, report: Callable[[str], None]) -> None:
    """Report the newer run of a suite that `last` does not mean. Raises StoreError."""
    if selector == "last" and (note := newer_note(store, run_id)):
        report(f"note: {note}")


def check_samples(store: Store, plan: Plan) -> None:
    """Raise CommandError if a run cannot be resumed because only its rows are left.

    Raises StoreError.
    """
    stored = stored_samples(store, plan.run_id)
    if not stored and kept_rows(store, plan, stored) is not None:
        raise CommandError(
            f"run {plan.run_id} was collected and its samples are stored no more: "
            "its rows stay as they are, and it cannot be resumed"
        )


def list_runs(root: str | None, suite: str | None, newest: int) -> list[StoredRun]:
    """Return the newest runs of a store, oldest first. Raises StoreError."""
    store = open_store(root)
    known, lines = runs(store), list[StoredRun]()
    for run_id in reversed(known):
        if len(lines) == newest:
            break
        if suite and known[run_id] not in (None, suite):
            continue
        line = _stored_run(store, run_id, known[run_id])
        if not suite or line.suite in (suite, "-"):
            lines.append(line)
    if not lines:
        raise CommandError(f"store {store.root} has no run{f' of suite {suite}' if suite else ''}")
    return lines[::-1]


def _stored_run(store: Store, run_id: str, suite: str | None) -> StoredRun:
    """Return the line of a run, by its rows, or by its plan where it has no rows."""
    files = store.list(f"runs/{run_id}")
    report = f"runs/{run_id}/report.html" in files
    if suite is not None:
        return StoredRun(run_id, suite, *_collected(store, run_id, suite), report)
    try:
        plan = load_plan(store, run_id)
    except (NotStoredError, DamagedError) as error:
        why = "damaged" if isinstance(error, DamagedError) else "gone"
        return StoredRun(run_id, "-", "-", f"plan.json is {why}", report)
    stored = sum("/parts/" in key and "/canary" not in key for key in files)
    samples = f"{stored} of {len(plan.order)} stored"
    return StoredRun(run_id, plan.suite, _kind(plan.trigger), samples, report)


def _kind(trigger: str | None) -> str:
    return "" if trigger in (None, "manual") else trigger


def _collected(store: Store, run_id: str, suite: str) -> tuple[str, str]:
    """Return what kind of run a collected run is, and its samples by status."""
    names = ("trigger", "benchmark", "phase", "point", "repetition", "status")
    try:
        data = store.get(result_key(suite, run_id))
        rows = read_rows(data, pa.schema([SAMPLES.field(name) for name in names]))
    except NewerSchemaError:
        return "", "newer schema: update perfdag"
    except (pa.ArrowInvalid, OSError):
        return "", "damaged: perfdag collect RUN"
    kind = _kind(rows["trigger"][0].as_py() if rows.num_rows else None)
    return kind, statuses_text(statuses_of(rows))


def runs_text(runs: list[StoredRun]) -> str:
    """Return the runs as a table."""
    rows = [
        (run.run_id, run.suite, run.kind, run.samples, "yes" if run.report else "") for run in runs
    ]
    return text_table(["run", "suite", "kind", "samples", "report"], rows)


def open_report(root: str | None, selector: str, report: Callable[[str], None]) -> str:
    """Open the report of a run in a browser, and return its path.

    A report in S3 is copied to a temporary file. Without a browser, only the path is of use.
    Raises CommandError, StoreError.
    """
    store, plan = read_run(root, selector, report)
    key = f"runs/{plan.run_id}/report.html"
    try:
        data = store.get(key)
    except NotStoredError:
        raise CommandError(
            f"run {plan.run_id} has no report; draw it: perfdag report {plan.run_id}"
        ) from None
    if isinstance(store, FolderStore):
        path = Path(store.url(key)).resolve()
    else:
        path = Path(tempfile.mkdtemp(prefix="perfdag-")) / f"{plan.run_id}.html"
        path.write_bytes(data)
    webbrowser.open(path.as_uri())
    return str(path)

"""The runs of a store: find one by the words of a user, list them, open a report."""

import tempfile
import webbrowser
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from perfdag.app.errors import CommandError
from perfdag.app.terminal.text_table import text_table
from perfdag.plan.plan import Plan
from perfdag.regress.selection import select_one
from perfdag.results.result_files import result_key
from perfdag.results.runs import ab_note, load_plan
from perfdag.results.schema import SAMPLES, NewerSchemaError, read_rows
from perfdag.results.summary import statuses_text
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


def find_run(root: str | None, selector: str, report: Callable[[str], None]) -> tuple[Store, Plan]:
    """Return the store, and the plan of the run that `selector` names, `baseline:NAME` included.

    `report` receives the explanation of `last` after `perfdag ab`. Raises StoreError.
    """
    store = open_store(root)
    if selector.startswith("baseline:"):
        selector = select_one(store, selector)[0]
    plan = load_plan(store, selector)
    explain_last(store, selector, plan.run_id, report)
    return store, plan


def explain_last(store: Store, selector: str, run_id: str, report: Callable[[str], None]) -> None:
    """Report the newer run of `perfdag ab` that `last` does not mean. Raises StoreError."""
    if selector == "last" and (note := ab_note(store, run_id)):
        report(f"note: {note}")


def list_runs(root: str | None, suite: str | None, newest: int) -> list[StoredRun]:
    """Return the newest runs of a store, oldest first. Raises StoreError."""
    store = open_store(root)
    keys = store.list("runs")
    stored = Counter(key.split("/")[1] for key in keys if "/parts/" in key and "canary" not in key)
    reports = {key.split("/")[1] for key in keys if key.endswith("/report.html")}
    lines: list[StoredRun] = []
    for run_id in reversed([key.split("/")[1] for key in keys if key.endswith("/plan.json")]):
        if len(lines) == newest:
            break
        try:
            plan = load_plan(store, run_id)
        except DamagedError:
            lines.append(StoredRun(run_id, "-", "-", "plan.json is damaged", False))
            continue
        if suite in (None, plan.suite):
            kind = plan.trigger if plan.trigger != "manual" else ""
            samples = _collected(store, plan) or f"{stored[run_id]} of {len(plan.order)} stored"
            lines.append(StoredRun(run_id, plan.suite, kind, samples, run_id in reports))
    if not lines:
        raise CommandError(f"store {store.root} has no run{f' of suite {suite}' if suite else ''}")
    return lines[::-1]


def _collected(store: Store, plan: Plan) -> str:
    """Return the samples of a collected run by status, or nothing where it is not collected."""
    names = ("benchmark", "phase", "point", "repetition", "status")
    try:
        data = store.get(result_key(plan.suite, plan.run_id))
        rows = read_rows(data, pa.schema([SAMPLES.field(name) for name in names]))
    except NotStoredError:
        return ""
    except NewerSchemaError:
        return "newer schema: update perfdag"
    except (pa.ArrowInvalid, OSError):
        return "damaged: perfdag collect RUN"
    canary = pc.equal(rows["benchmark"], "canary")
    measured = pc.and_not(pc.equal(rows["phase"], "measure"), canary)
    table = rows.filter(measured).select(["point", "repetition", "status"])
    samples = table.group_by(table.column_names).aggregate([])
    return statuses_text(Counter(samples["status"].to_pylist()))


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
    store, plan = find_run(root, selector, report)
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

"""`perfdag ls` and `prune`: the runs of a store."""

import argparse
import contextlib
import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from perfdag.analysis.selection import baselines, select_one
from perfdag.commands.options import (
    EXIT_OK,
    JSON,
    STORE,
    SUITE,
    CommandError,
    Verbs,
    add_verb,
    duration,
    option,
    print_json,
)
from perfdag.commands.terminal import HIGHLIGHTS, text_table
from perfdag.plan.plan import Plan
from perfdag.results.collect import kept_rows
from perfdag.results.runs import RunStore, began_at, report_key, result_key, run_lock
from perfdag.results.samples import stored_samples
from perfdag.results.schema import NewerSchemaError, read_rows
from perfdag.results.summary import statuses_text, summarise
from perfdag.store.base import DamagedError, NotStoredError, Store, StoreError
from perfdag.store.open import open_store
from perfdag.units import plural

logger = logging.getLogger(__name__)


LS_EPILOG = """examples:
  perfdag ls
  perfdag ls --suite quick --newest 100
  perfdag ls --store s3://bench/results --json
"""


def add_ls(sub: Verbs) -> None:
    """Register the verb."""
    add_verb(
        sub,
        "ls",
        run_ls,
        "List the runs of a store, the newest last: age, suite, samples by status, how far "
        "the figures can be trusted, and the answer about the run. A run of kind ab is one "
        "variant of `perfdag ab`. One of kind recheck measures suspicious points again.",
        LS_EPILOG,
        STORE,
        SUITE,
        option("--newest", metavar="N", default=20, help="list the newest N runs"),
        JSON,
    )


def run_ls(args: argparse.Namespace) -> int:
    """List the newest runs of a store, oldest first. Raises CommandError, StoreError."""
    if args.newest < 1:
        raise CommandError(f"--newest {args.newest}: list at least one run")
    store, suite = open_store(args.store), args.suite
    runs, lines = RunStore(store), list[dict[str, Any]]()
    for run_id in reversed(runs.known):
        if len(lines) == args.newest:
            break
        if suite and runs.known[run_id] not in (None, suite):
            continue
        line = _line(runs, run_id)
        if not suite or line["suite"] in (suite, "-"):
            lines.insert(0, line)
    if not lines:
        raise CommandError(f"store {store.root} has no run{f' of suite {suite}' if suite else ''}")
    _add_answers(store, lines)
    if args.json:
        print_json(lines)
    else:
        names = ("suite", "kind", "samples", "trust", "answer")
        cells = [[r["run_id"], _age(r["run_id"]), *(r[name] for name in names)] for r in lines]
        styles = [HIGHLIGHTS.get(line["answer"], "") for line in lines]
        print(text_table(["run", "age", *names], cells, styles=styles))
    return EXIT_OK


PRUNE_EPILOG = """examples:
  perfdag prune --keep 90d --dry-run
  perfdag prune --keep 90d --suite quick
  perfdag prune --keep 90d --store s3://bench/results
"""


def add_prune(sub: Verbs) -> None:
    """Register the verb."""
    add_verb(
        sub,
        "prune",
        run_prune,
        "Remove the samples, rows and reports of runs that began before a time. The "
        "runs of baselines stay. Histories and comparisons lose the removed runs.",
        PRUNE_EPILOG,
        option(
            "--keep",
            metavar="DURATION",
            type=duration,
            required=True,
            help="keep the runs of this time, for example 90d",
        ),
        STORE,
        SUITE,
        option("--dry-run", action="store_true", help="print the runs and remove none"),
    )


def run_prune(args: argparse.Namespace) -> int:
    """Remove the runs that began before a time, but no baseline, and print their ids.

    A run that cannot be read, or that may not be finished, stays, and is named.
    """
    store = open_store(args.store)
    limit, unfinished = _run_ids_before(args.keep), _run_ids_before(UNFINISHED)
    runs = RunStore(store)
    protected, removed = _protected_runs(runs), 0
    for run_id, rows_of in runs.known.items():
        if run_id >= limit or run_id in protected:
            continue
        try:
            plan = runs.plan_or_rows(run_id)
            if args.suite not in (None, plan.suite):
                continue
            if run_id >= unfinished and rows_of is None:
                logger.warning(f"perfdag: kept {run_id}: it has no rows yet; perfdag rm removes it")
                continue
            keys = removable_keys(runs, plan)
            for key in () if args.dry_run else keys:
                store.delete(key)
        except (CommandError, StoreError) as error:
            # Nothing is left of a run that was removed with the run that it belongs to.
            if not isinstance(error, NotStoredError) or store.list(f"runs/{run_id}"):
                logger.warning(f"perfdag: kept {run_id}: {error}")
                continue
        print(run_id)
        removed += 1
    print(f"{plural(removed, 'run')}{' would be' * args.dry_run} removed")
    return EXIT_OK


UNFINISHED = 7 * 86400
"""Seconds for which `prune` keeps a run without rows: it may still measure, or be resumed."""


def read_run(root: str | None, selector: str) -> tuple[RunStore, Plan]:
    """Return the runs of a store, and the plan of the one that `selector` names.

    The plan has no points where the run's rows alone are left. Raises StoreError.
    """
    runs = RunStore(open_store(root))
    if selector.startswith("baseline:"):
        selector = select_one(runs, selector)[0]
    run_id = runs.find(selector)
    explain_last(runs, selector, run_id)
    return runs, runs.plan_or_rows(run_id)


def explain_last(runs: RunStore, selector: str, run_id: str) -> None:
    """Report the newer run of a suite that `last` does not mean. Raises StoreError."""
    if selector == "last" and (note := runs.newer_note(run_id)):
        logger.info(f"note: {note}")


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


def _line(runs: RunStore, run_id: str) -> dict[str, Any]:
    """Return a run as `ls` shows it, by its rows, or by its plan where it has no rows."""
    files = runs.store.list(f"runs/{run_id}")
    suite, trust = runs.known[run_id], ""
    if suite is not None:
        kind, samples, trust = _collected(runs.store, run_id, suite)
    else:
        try:
            plan = runs.plan(run_id)
            suite, kind = plan.suite, _kind(plan.trigger)
            stored = sum("/parts/" in key and "/canary" not in key for key in files)
            samples = f"{stored} of {len(plan.order)} stored"
        except (NotStoredError, DamagedError) as error:
            why = "damaged" if isinstance(error, DamagedError) else "gone"
            suite, kind, samples = "-", "-", f"plan.json is {why}"
    about = {"run_id": run_id, "suite": suite, "kind": kind, "samples": samples, "trust": trust}
    return {**about, "answer": "", "report": report_key(run_id) in files}


def _add_answers(store: Store, lines: Sequence[dict[str, Any]]) -> None:
    """Add the word of the verdict on each run that has a history. Raises StoreError."""
    from perfdag.analysis.gate import judged_clusters
    from perfdag.analysis.history import headlines, words_by_run
    from perfdag.analysis.medians import read_run_medians

    for suite in {line["suite"] for line in lines if line["trust"]}:
        words = dict[str, str | None]()
        for here, series in judged_clusters(store, read_run_medians(store, suite))[1]:
            found = words_by_run(headlines(series), here)
            words |= dict(zip((run.run_id for run in here.runs), found, strict=True))
        for line in lines:
            line["answer"] = words.get(line["run_id"]) or line["answer"]


def _age(run_id: str) -> str:
    """Return how long ago a run began, in its largest unit: 40 s, 5 min, 3 h, 12 d."""
    seconds = max((datetime.now(UTC) - began_at(run_id)).total_seconds(), 0)
    units = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
    return next(
        f"{seconds // size:.0f} {unit}" for size, unit in units if seconds >= size or size == 1
    )


def _kind(trigger: str | None) -> str:
    return "" if trigger in (None, "manual") else trigger


def _collected(store: Store, run_id: str, suite: str) -> tuple[str, str, str]:
    """Return what kind of run a collected run is, its samples by status, and the trust in it."""
    try:
        rows = read_rows(store.get(result_key(suite, run_id)))
    except NewerSchemaError:
        return "", "newer schema: update perfdag", ""
    except (pa.ArrowInvalid, OSError):
        return "", "damaged: perfdag collect RUN", ""
    kind = _kind(rows["trigger"][0].as_py() if rows.num_rows else None)
    summary = summarise(rows)
    return kind, statuses_text(summary.statuses), summary.trust.level


def removable_keys(runs: RunStore, plan: Plan) -> list[str]:
    """Return the keys of a run and its companions. The run's own folder is the last.

    It names the others, so that a second attempt finds them. Raises CommandError if one of the runs
    is a baseline or is being measured on this machine, and StoreError.
    """
    protected = _protected_runs(runs)
    plans = _with_companions(runs, plan)
    if protected_run := next((run.run_id for run in plans if run.run_id in protected), None):
        name = protected[protected_run]
        raise CommandError(
            f"run {protected_run} belongs to baseline {name}; set the baseline to another run: "
            f"perfdag baseline set {name} RUN"
        )
    for run in plans:
        with run_lock(run.run_id) as alone:
            if not alone:
                raise CommandError(
                    f"run {run.run_id} still measures on this machine; "
                    "wait for it, or end it with Ctrl-C, then remove it"
                )
    return [
        key for run in plans for key in (result_key(run.suite, run.run_id), f"runs/{run.run_id}")
    ]


def _run_ids_before(seconds: float) -> str:
    """Return a text that is above the ids of the runs that began more than `seconds` ago."""
    limit = max(0.0, datetime.now(UTC).timestamp() - seconds)
    return datetime.fromtimestamp(limit, UTC).strftime("%Y%m%dT%H%M%SZ")


def _with_companions(runs: RunStore, plan: Plan) -> list[Plan]:
    """Return the rechecks of a run, the other variant of an ab, and the run itself."""
    companions = []
    for name in filter(None, [*plan.options.rechecks, plan.options.other]):
        with contextlib.suppress(NotStoredError):
            companions.append(runs.plan(name))
    return [*companions, plan]


def _protected_runs(runs: RunStore) -> dict[str, str]:
    """Return the runs of baselines and their companions, each with the name of a baseline."""
    protected: dict[str, str] = {}
    for name, suites in baselines(runs.store).items():
        for entry in suites.values():
            protected |= dict.fromkeys(entry.runs, name)
    for run, name in list(protected.items()):
        with contextlib.suppress(NotStoredError):
            companions = _with_companions(runs, runs.plan(run))
            protected |= {plan.run_id: name for plan in companions}
    return protected

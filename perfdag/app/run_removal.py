"""Remove the results of runs from a store: of one run, or of all old ones."""

import contextlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import cast

from perfdag.analysis.selection import SelectionError, baselines
from perfdag.app.errors import CommandError
from perfdag.app.runs import read_run
from perfdag.plan.plan import Plan
from perfdag.results.runs import known_plan, load_plan, run_lock, runs
from perfdag.results.samples import result_key
from perfdag.store.base import NotStoredError, Store, StoreError
from perfdag.store.open import open_store

UNFINISHED = 7 * 86400
"""Seconds for which `prune` keeps a run without rows: it may still measure, or be resumed."""


def removable_keys(store: Store, plan: Plan) -> list[str]:
    """Return the keys of a run and its companions. The run's own folder is the last.

    It names the others, so that a second attempt finds them. Raises CommandError if one of the runs
    is a baseline or is being measured on this machine, and StoreError.
    """
    protected = _protected_runs(store)
    plans = _with_companions(store, plan)
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


def remove_run(root: str | None, selector: str, report: Callable[[str], None]) -> str:
    """Remove the results of a run from the store, and return what was removed.

    Raises CommandError, StoreError.
    """
    store, plan = read_run(root, selector, report)
    for key in removable_keys(store, plan):
        store.delete(key)
    return f"removed run {plan.run_id} of suite {plan.suite} from {store.root}"


def remove_old_runs(
    root: str | None, keep: float, suite: str | None, dry_run: bool, report: Callable[[str], None]
) -> list[str]:
    """Remove the runs that began more than `keep` seconds ago, but no baseline.

    Return the ids of the removed runs; with `dry_run` they stay. A run that cannot be read, or that
    may not be finished, is reported and stays. Raises CommandError, StoreError.
    """
    store = open_store(root)
    limit, unfinished = _run_ids_before(keep), _run_ids_before(UNFINISHED)
    protected, removed = _protected_runs(store), []
    for run_id, rows_of in runs(store).items():
        if run_id >= limit or run_id in protected:
            continue
        try:
            plan = known_plan(store, run_id, rows_of)
            if suite not in (None, plan.suite):
                continue
            if run_id >= unfinished and rows_of is None:
                report(f"perfdag: kept {run_id}: it has no rows yet; perfdag rm removes it")
                continue
            keys = removable_keys(store, plan)
            for key in () if dry_run else keys:
                store.delete(key)
        except (CommandError, StoreError) as error:
            # Nothing is left of a run that was removed with the run that it belongs to.
            if not isinstance(error, NotStoredError) or store.list(f"runs/{run_id}"):
                report(f"perfdag: kept {run_id}: {error}")
                continue
        removed.append(run_id)
    return removed


def _run_ids_before(seconds: float) -> str:
    """Return a text that is above the ids of the runs that began more than `seconds` ago."""
    limit = max(0.0, datetime.now(UTC).timestamp() - seconds)
    return datetime.fromtimestamp(limit, UTC).strftime("%Y%m%dT%H%M%SZ")


def _with_companions(store: Store, plan: Plan) -> list[Plan]:
    """Return the runs that confirm a run, the other variant of an ab, and the run itself."""
    companions = []
    for name in filter(None, [*plan.options.get("confirmed", []), plan.options.get("other")]):
        with contextlib.suppress(NotStoredError):
            companions.append(load_plan(store, name))
    return [*companions, plan]


def _protected_runs(store: Store) -> dict[str, str]:
    """Return the runs of baselines and their companions, each with the name of a baseline."""
    protected: dict[str, str] = {}
    try:
        for name, suites in baselines(store).items():
            for entry in suites.values():
                protected |= {str(run): name for run in cast("list[str]", entry["runs"])}
    except (AttributeError, KeyError, TypeError):
        raise SelectionError(
            "the store's baselines.json is damaged; correct it, or delete it and set them again"
        ) from None
    for run, name in list(protected.items()):
        with contextlib.suppress(NotStoredError):
            companions = _with_companions(store, load_plan(store, run))
            protected |= {plan.run_id: name for plan in companions}
    return protected

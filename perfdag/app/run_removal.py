"""Remove the results of runs from a store: of one run, or of all old ones."""

import contextlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from perfdag.app.errors import CommandError
from perfdag.app.runs import find_run
from perfdag.plan.plan import Plan
from perfdag.regress.selection import baselines
from perfdag.results.collect import result_key
from perfdag.results.runs import load_plan, runs
from perfdag.store.base import NotStoredError, Store, StoreError
from perfdag.store.open import open_store


def keys_of(store: Store, plan: Plan) -> list[str]:
    """Return the keys of a run, of the runs that confirm it, and of the other variant of an ab.

    The run's own folder is the last: it names the others, so that a second attempt finds them.
    Raises StoreError.
    """
    keys = []
    for name in filter(None, [*plan.options.get("confirmed", []), plan.options.get("other")]):
        with contextlib.suppress(NotStoredError):
            keys += [result_key(load_plan(store, name)), f"runs/{name}"]
    return [*keys, result_key(plan), f"runs/{plan.run_id}"]


def remove_run(root: str | None, words: str, report: Callable[[str], None]) -> str:
    """Remove the results of a run from the store, and return what was removed.

    Raises CommandError, StoreError.
    """
    store, plan = find_run(root, words, report)
    if plan.run_id in (named := _baseline_runs(store)):
        raise CommandError(
            f"run {plan.run_id} is baseline {named[plan.run_id]}; set the baseline to another run: "
            f"perfdag baseline set {named[plan.run_id]} RUN"
        )
    _remove(store, plan)
    return f"removed run {plan.run_id} of suite {plan.suite} from {store.root}"


def remove_old_runs(
    root: str | None, keep: float, suite: str | None, dry_run: bool, report: Callable[[str], None]
) -> list[str]:
    """Remove the runs that began more than `keep` seconds ago, but no baseline.

    Return the ids of the removed runs; with `dry_run` they stay. A run that cannot be read is
    reported and stays. Raises StoreError.
    """
    store = open_store(root)
    limit = (datetime.now(UTC) - timedelta(seconds=keep)).strftime("%Y%m%dT%H%M%SZ")
    named, removed = _baseline_runs(store), []
    for run_id in runs(store):
        if run_id >= limit or run_id in named:
            continue
        try:
            plan = load_plan(store, run_id)
            if suite not in (None, plan.suite):
                continue
            if not dry_run:
                _remove(store, plan)
        except NotStoredError:
            pass  # removed with the run that it confirms, or with the other variant
        except StoreError as error:
            report(f"perfdag: kept {run_id}: {error}")
            continue
        removed.append(run_id)
    return removed


def _remove(store: Store, plan: Plan) -> None:
    for key in keys_of(store, plan):
        store.delete(key)


def _baseline_runs(store: Store) -> dict[str, str]:
    """Return the runs of baselines, with the name of one."""
    return {
        str(run): name
        for name, suites in baselines(store).items()
        for entry in suites.values()
        for run in (entry["runs"] if isinstance(entry["runs"], list) else ())
    }

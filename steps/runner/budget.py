"""The budget of a run on a cluster: when its clock began, and what is left of it.

The plan step starts the clock, so that the wait for other runs and for a node does not count. The
last step stops it: a run that is retried or resumed has all of its budget for what is left. The
first batch of a recheck starts a clock of its own, or the first measurement would leave it
nothing.
"""

import time

from perfdag.plan.plan import Plan
from perfdag.results.samples import run_folder
from perfdag.store.base import NotStoredError, Store


def begin(store: Store, run_id: str) -> float:
    """Start the clock of a run; return the time in seconds since 1970. Raises StoreError."""
    now = time.time()
    store.put(_key(run_id), f"{now:.3f}\n".encode())
    return now


def end(store: Store, run_id: str) -> None:
    """Stop the clock of a run; the next gang starts it again. Raises StoreError."""
    store.delete(_key(run_id))


def deadline(store: Store, run_id: str, plan: Plan) -> float | None:
    """Return when the budget is spent, in monotonic seconds; None: no budget. Raises StoreError."""
    if not plan.budget:
        return None
    try:
        began = float(store.get(_key(run_id)))
    except NotStoredError:
        began = begin(store, run_id)
    return time.monotonic() + plan.budget - (time.time() - began)


def _key(run_id: str) -> str:
    return f"{run_folder(run_id)}/clock"

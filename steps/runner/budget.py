"""The budget of a run on a cluster: when its clock began, and what is left of it.

The plan step begins it, so that neither the wait for other runs' lock nor that for a node to plan on is counted. What ends a run stops
it: a run that is retried or resumed later has all of its budget for what is left. A run that confirms another has a clock of its own, which
its first batch begins, or the night that was measured would leave it nothing.
"""

import time

from perfdag.plan.plan import Plan
from perfdag.results.samples import run_folder
from perfdag.store.base import NotStoredError, Store


def begin(store: Store, run_id: str) -> float:
    """Begin the clock of a run now; seconds since the epoch, by this node's clock. Raises StoreError."""
    now = time.time()
    store.put(_key(run_id), f"{now:.3f}\n".encode())
    return now


def end(store: Store, run_id: str) -> None:
    """Stop the clock of a run; whoever measures next begins it anew. Raises StoreError."""
    store.delete(_key(run_id))


def deadline(store: Store, run_id: str, plan: Plan) -> float | None:
    """When the budget of the run is spent, on this process' monotonic clock in seconds; None: it has no budget. Raises StoreError."""
    if not plan.budget:
        return None
    try:
        began = float(store.get(_key(run_id)))
    except NotStoredError:
        began = begin(store, run_id)
    return time.monotonic() + plan.budget - (time.time() - began)


def _key(run_id: str) -> str:
    return f"{run_folder(run_id)}/clock"

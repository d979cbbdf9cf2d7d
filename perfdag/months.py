"""Where the monthly roll-ups of a suite lie in the store, and when they expire."""

from __future__ import annotations

from perfdag.store import Store

VERSION = 2


def key_of(suite: str, month: str) -> str:
    """Key of a month's roll-up."""
    return f"rollups/suite={suite}/month={month}.parquet"


def month_of(run_id: str) -> str:
    """YYYY-MM of a run id."""
    return f"{run_id[:4]}-{run_id[4:6]}"


def delete_rollup(store: Store, suite: str, month: str) -> None:
    """Drop a month's roll-up, because a run of that month was written (again). Raises StoreError."""
    store.delete(key_of(suite, month))

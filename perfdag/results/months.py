"""Where the monthly roll-ups of a suite lie in the store, and when they expire."""

from perfdag.store.base import Store

VERSION = 3


def key_of(suite: str, month: str) -> str:
    """Return the key of the roll-up of a month."""
    return f"rollups/suite={suite}/month={month}.parquet"


def month_of(run_id: str) -> str:
    """Return the month of a run id as YYYY-MM."""
    return f"{run_id[:4]}-{run_id[4:6]}"


def delete_rollup(store: Store, suite: str, month: str) -> None:
    """Delete the roll-up of a month, because a run of that month was written. Raises StoreError."""
    store.delete(key_of(suite, month))

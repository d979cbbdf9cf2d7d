"""Where the rows of runs and the monthly roll-ups of a suite lie in the store."""

from perfdag.store.base import Store

VERSION = 3
"""Version of the roll-ups."""


def result_key(suite: str, run_id: str) -> str:
    """Return the key of the Parquet file of a run."""
    return f"results/{suite}/{month_of(run_id)}/{run_id}.parquet"


def stored_runs(store: Store, suite: str | None = None) -> list[tuple[str, str]]:
    """Return (run id, suite) of every run with results, oldest first. Raises StoreError."""
    keys = store.list("results" if suite is None else f"results/{suite}")
    runs = []
    for key in keys:
        parts = key.split("/")
        if len(parts) == 4 and key.endswith(".parquet"):
            runs.append((parts[3].removesuffix(".parquet"), parts[1]))
    return sorted(runs)


def suites(store: Store) -> list[str]:
    """Return the suites that have results. Raises StoreError."""
    return sorted({suite for _, suite in stored_runs(store)})


def rollup_key(suite: str, month: str) -> str:
    """Return the key of the roll-up of a month."""
    return f"rollups/{suite}/{month}.parquet"


def month_of(run_id: str) -> str:
    """Return the month of a run id as YYYY-MM."""
    return f"{run_id[:4]}-{run_id[4:6]}"


def day_of(run_id: str) -> str:
    """Return the day of a run id as YYYY-MM-DD."""
    return f"{month_of(run_id)}-{run_id[6:8]}"

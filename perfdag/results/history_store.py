"""A run whose history is in another store, which stays as it is."""

import logging
from collections.abc import Iterator, Sequence

from perfdag.plan import Plan
from perfdag.results.runs import runs_with_rows
from perfdag.store.base import Store
from perfdag.store.s3 import open_store

logger = logging.getLogger(__name__)


class StoreWithHistory:
    """The store of a run above that of its history: a Store that reads both and writes the first.

    Other runs in the store of the run do not count, because they are no part of the history.
    """

    def __init__(self, own: Store, history: Store, plan: Plan) -> None:
        self.root = own.root
        self.history = history
        self._own = own
        self._plan = plan

    def put(self, key: str, data: bytes) -> None:
        self._own.put(key, data)

    def delete(self, prefix: str) -> None:
        self._own.delete(prefix)

    def get(self, key: str) -> bytes:
        return self._store_of(key).get(key)

    def get_many(self, keys: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        earlier = self.history.get_many([key for key in keys if not self._is_own(key)])
        for key in keys:
            yield (key, self._own.get(key)) if self._is_own(key) else next(earlier)

    def folders(self, prefix: str) -> list[str]:
        own = [name for name in self._own.folders(prefix) if self._is_own(name)]
        return sorted({*own, *self.history.folders(prefix)})

    def list(self, prefix: str) -> list[str]:
        own = [key for key in self._own.list(prefix) if self._is_own(key)]
        return sorted([*own, *(key for key in self.history.list(prefix) if not self._is_own(key))])

    def url(self, key: str) -> str:
        return self._store_of(key).url(key)

    def _store_of(self, key: str) -> Store:
        return self._own if self._is_own(key) else self.history

    def _is_own(self, key: str) -> bool:
        """Return whether a key is of the run, its rechecks, or the site that shows them."""
        runs = (self._plan.run_id, *self._plan.options.rechecks)
        return key.startswith("site/") or any(run in key for run in runs)


def with_history(store: Store, root: str, plan: Plan) -> StoreWithHistory:
    """Return the store of a run above its history in the store `root`. Raises StoreError."""
    history = open_store(root)
    if not runs_with_rows(history, plan.suite):
        logger.warning(f"note: the history {root} has no run of suite {plan.suite}")
    return StoreWithHistory(store, history, plan)

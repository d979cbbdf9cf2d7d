"""Notes of a run: why some of its samples are not stored, `runs/<run_id>/notes/<name>.json`."""

import orjson

from perfdag.store import Store


def write_note(
    store: Store, run_id: str, name: str, status: str, reason: str, batches: list[int] | None = None
) -> None:
    """Write why samples are not stored: all of the run, or those of some batches.

    Collect copies the reason to their rows.
    """
    data = {"status": status, "reason": reason, "batches": batches}
    store.put(f"runs/{run_id}/notes/{name}.json", orjson.dumps(data, option=orjson.OPT_SORT_KEYS))


def delete_note(store: Store, run_id: str, name: str) -> None:
    """Delete a note that no longer applies. Raises StoreError."""
    store.delete(f"runs/{run_id}/notes/{name}.json")

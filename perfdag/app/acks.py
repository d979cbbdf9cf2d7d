"""Set and show the acknowledgements of a store."""

from perfdag.analysis.gate import ACKS, put_acks, stored_acks
from perfdag.store.open import open_store
from perfdag.units import plural


def set_acks(root: str | None, file: str) -> str:
    """Put a file of acknowledgements into the store. Raises BadDocument, StoreError."""
    store = open_store(root)
    return f"{plural(len(put_acks(store, file)), 'acknowledgement')} in {store.url(ACKS)}"


def show(root: str | None) -> str:
    """Return the acknowledgements of the store as text. Raises BadDocument, StoreError."""
    acks, url = stored_acks(open_store(root))
    lines = [
        f"{ack.series}  from {ack.run}{f' until {ack.until}' if ack.until else ''}: {ack.reason}"
        for ack in acks
    ]
    return "\n".join(lines) or f"no acknowledgements in {url}; `perfdag acks set FILE` adds them"

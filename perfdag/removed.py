"""Names that perfdag had in 0.1, and what to use instead of them. The table goes with 0.3."""

REMOVED: dict[str, str] = {}
"""The advice for a benchmark, a key or a value of a suite, a verb, or an option of 0.1.

A value is written as `key=value`.
"""


def removal_note(*names: str) -> str:
    """Return `NAME was removed in 0.2: what to use instead` for the first known name, or ""."""
    return next(
        (f"{name} was removed in 0.2: {REMOVED[name]}" for name in names if name in REMOVED), ""
    )

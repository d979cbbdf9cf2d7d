"""Whether a figure is within its limit, in words; the scripts beside this one exit 1 where one
is not.
"""


def at_most(what: str, value: float, bound: float, unit: str = "") -> bool:
    """Print a figure with its limit; whether it is held."""
    ok = value <= bound
    print(
        f"    {what}: {f'{value:.3g} {unit}'.strip()} (limit {f'{bound:g} {unit}'.strip()}: "
        f"{'held' if ok else 'NOT HELD'})",
        flush=True,
    )
    return ok

"""Whether all samples of a run are stored: counted rarely enough that it costs the store little."""

import asyncio
import time
from collections.abc import Sequence

from perfdag.plan.plan import Plan
from perfdag.results.samples import stored_samples
from perfdag.store.base import Store, StoreError

EVERY, LAST_EVERY = 3.0, 0.5
"""Seconds between two looks at a run that lasts, and at one that may end at any moment."""
COUNTING = 20
"""Seconds between two counts of the samples for each that a count takes."""


def missing(store: Store, plans: Sequence[Plan]) -> int:
    """Count the samples of runs that are not stored. Raises StoreError."""
    stored = [stored_samples(store, plan.run_id) for plan in plans]
    return sum(
        plan.key(position) not in known
        for plan, known in zip(plans, stored, strict=True)
        for position in range(len(plan.order))
    )


def until_next(left: int, took: float, still: float) -> float:
    """Seconds until the samples are counted again: so many are left, to count them took so long, and that is so for `still` seconds.

    Counting costs the store a listing, so that many left, a long listing and a long wait each make it rarer.
    """
    return max(LAST_EVERY, COUNTING * took, min(0.2 * left, 10 * EVERY), min(0.05 * still, EVERY))


async def all_stored(store: Store, plans: Sequence[Plan]) -> bool:
    """Wait until every sample of these runs is stored, and say so. A store that is away is waited for."""
    last, changed = -1, time.monotonic()
    while True:
        began = time.monotonic()
        try:
            left = await asyncio.to_thread(
                missing, store, plans
            )  # a store that does not answer must not keep the guard from its rounds
        except StoreError as error:
            print(f"waiting for the store: {error}", flush=True)  # noqa: T201
            await asyncio.sleep(EVERY)
            continue
        if not left:
            return True
        now = time.monotonic()
        if left != last:
            last, changed = left, now
        await asyncio.sleep(until_next(left, now - began, now - changed))

"""Ending the tasks that run beside a measurement."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress


async def cancel(tasks: "Sequence[asyncio.Task[None]]") -> None:
    """Cancel tasks and wait for them. Raises the error of a task that failed by itself."""
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task

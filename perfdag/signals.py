"""The end of a process: exit codes, and what it does at SIGINT and SIGTERM.

What measures begins with `end_once()`: the first SIGTERM then ends it as Ctrl-C does, and later
ones do not interrupt its cleanup. Its coroutines run by `run(main())`, which such an end cancels.
"""

import signal
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import asyncio

EXIT_OK = 0
EXIT_FAILED = 1
"""A sample has no valid value."""
EXIT_INPUT = 2
"""The suite, an option or a file is wrong."""
EXIT_GATE = 3
"""The gate failed: a regression, a broken threshold or absent data."""
EXIT_REACH = 4
"""The store, the cluster or the webhook is out of reach, or the cluster starts no pod of a run."""
EXIT_UNCLEAR = 5
"""The noise hides whether a limit holds: neither a failure nor a proof."""
EXIT_INTERRUPTED = 130


Handler = Callable[[int, FrameType | None], None]
T = TypeVar("T")


@dataclass
class _Once:
    """The handler of `end_once`. While an event loop runs, it calls `instead` and not `end`."""

    end: Handler
    instead: Callable[[], None] | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        signal.signal(number, _ignore)
        if self.instead is None:
            self.end(number, frame)
        else:
            self.instead()


def end_once(end: Handler = signal.default_int_handler) -> None:
    """Let the first SIGTERM call `end`, by default the handler of Ctrl-C, and ignore later ones.

    `timeout`, a kubelet and Argo may send it twice. The second one would interrupt the cleanup.
    """
    signal.signal(signal.SIGTERM, _Once(end))


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` as asyncio.run does, but cancel it on the SIGTERM of `end_once`.

    Raises what `end` raises, after `main` has ended. Raised inside a task, it would appear as an
    error of the task.
    """
    import asyncio  # its import is a third of the time of `perfdag --help`

    once = signal.getsignal(signal.SIGTERM)
    if not isinstance(once, _Once) or threading.current_thread() is not threading.main_thread():
        return asyncio.run(main)
    cancelled = False
    results: list[T] = []

    async def cancellable() -> None:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None

        def cancel() -> None:
            nonlocal cancelled
            cancelled = True
            loop.call_soon_threadsafe(task.cancel)

        once.instead = cancel
        try:
            results.append(await main)
        finally:
            once.instead = None

    try:
        # asyncio.run formats the result of its task, however large, to restore SIGINT.
        asyncio.run(cancellable())
    finally:
        if cancelled:
            once.end(signal.SIGTERM, None)
    return results[0]


def run_until_stopped(main: Coroutine[Any, Any, T]) -> T:
    """Run `main`, which SIGTERM cancels as Ctrl-C does. Raises KeyboardInterrupt if cancelled."""
    end_once()
    return run(main)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing. Programs that this process starts would inherit SIG_IGN."""


async def cancel(tasks: "Sequence[asyncio.Task[None]]") -> None:
    """Cancel tasks and wait for them. Raises the error of a task that failed by itself."""
    import asyncio

    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task

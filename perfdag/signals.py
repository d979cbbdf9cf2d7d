"""Being told to end."""

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, TypeVar

Handler = Callable[[int, FrameType | None], None]
T = TypeVar("T")


class _Once:
    """The handler of `end_once`; `instead` is what it calls in place of `end` while an event loop runs."""

    def __init__(self, end: Handler) -> None:
        self.end = end
        self.instead: Callable[[], None] | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        signal.signal(number, _deaf)
        if self.instead is None:
            self.end(number, frame)
        else:
            self.instead()


def end_once(end: Handler = signal.default_int_handler) -> None:
    """Let SIGTERM call `end` (by default what Ctrl-C does) the first time and nothing after that.

    `timeout`, a kubelet and Argo may send it more than once, and a second one would cut short what the first began to clear away.
    """
    signal.signal(signal.SIGTERM, _Once(end))


def run(main: Coroutine[Any, Any, T]) -> T:
    """asyncio.run, in which the SIGTERM of `end_once` cancels `main` (as Ctrl-C does anyway) and is what it is when `main` has cleared away.

    Raised in the midst of a task it would be that task's own error, and told with tracebacks. Raises what `end` raises, after `main` has ended.
    """
    once = signal.getsignal(signal.SIGTERM)
    if not isinstance(once, _Once) or threading.current_thread() is not threading.main_thread():
        return asyncio.run(main)
    told = False

    async def cancellable() -> T:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None

        def cancel() -> None:
            nonlocal told
            told = True
            loop.call_soon_threadsafe(task.cancel)

        once.instead = cancel
        try:
            return await main
        finally:
            once.instead = None

    try:
        return asyncio.run(cancellable())
    finally:
        if told:
            once.end(signal.SIGTERM, None)


def run_until_stopped(main: Coroutine[Any, Any, T]) -> T:
    """Run `main`, which SIGTERM cancels as Ctrl-C does, so that it removes what it made. Raises KeyboardInterrupt if it was stopped."""
    end_once()
    return run(main)


def _deaf(number: int, frame: FrameType | None) -> None:
    """A handler, and not SIG_IGN, which programs started from now on would inherit."""

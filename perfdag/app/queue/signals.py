"""The end of a program that serves until a signal."""

import asyncio
import signal


def until_signal() -> asyncio.Event:
    """Return an event that SIGHUP, SIGINT and SIGTERM set."""
    stopped = asyncio.Event()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    return stopped

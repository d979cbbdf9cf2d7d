"""Run the frontend of the queues."""

import asyncio
import math
from collections.abc import Callable, Sequence

from perfdag.app.queue.signals import until_signal
from perfdag.steps.queue import wire
from perfdag.steps.queue.dispatcher import Limits, raise_file_limit
from perfdag.steps.queue.frontend import Frontend


def serve(
    names: Sequence[str],
    limits: Limits,
    clients: str,
    backends: str,
    metrics: str,
    report: Callable[[str], None],
) -> None:
    """Serve the queues at three addresses until a signal. Raises ValueError, OSError.

    `report` receives the ports, and the statistics at each interval and at the end.
    """
    _check(limits)
    raise_file_limit(limits.peers)
    addresses = [wire.address(text) for text in (clients, backends, metrics)]
    asyncio.run(_serve(names, limits, addresses, report))


def _check(limits: Limits) -> None:
    """Raise ValueError for a limit that is negative, infinite or, for some, zero."""
    for option, value, zero in (
        ("interval", limits.interval, True),
        ("qmax", limits.queue, True),
        ("retries", limits.retries, True),
        ("reply-timeout", limits.reply_seconds, True),
        ("message-timeout", limits.message_seconds, False),
        ("max-peers", limits.peers, False),
    ):
        if not 0 <= value < math.inf:
            raise ValueError(f"--{option} {value} is below 0 or infinite")
        if not value and not zero:
            raise ValueError(f"--{option} {value} is not above 0")


async def _serve(
    names: Sequence[str],
    limits: Limits,
    addresses: Sequence[wire.Address],
    report: Callable[[str], None],
) -> None:
    frontend = Frontend(names, limits)
    await frontend.start(*addresses)
    clients, backends, metrics = frontend.ports
    if frontend.max_peers < limits.peers:
        report(
            f"at most {frontend.max_peers} connections at once, not {limits.peers}: "
            "`ulimit -Hn` admits no more open files"
        )
    report(
        f"queues {', '.join(frontend.queues)}: clients on port {clients}, "
        f"backends on {backends}, metrics on {metrics}"
    )
    stopped = until_signal()
    while not stopped.is_set():
        try:
            await asyncio.wait_for(stopped.wait(), limits.interval or None)
        except TimeoutError:
            report(frontend.summary())
    report(frontend.summary())
    await frontend.stop()

"""Run a client of a queue."""

import asyncio
import json
import math
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from perfdag.app.queue.signals import until_signal
from perfdag.exit_codes import EXIT_FAILED, EXIT_OK
from perfdag.steps.queue import http, wire
from perfdag.steps.queue.client import control
from perfdag.steps.queue.client.load import Load, Work
from perfdag.steps.queue.client.stats import ClientStats
from perfdag.steps.queue.dispatcher import raise_file_limit
from perfdag.steps.queue.validate.targets import TOKEN_VARIABLE

MAX_PARALLEL = 4096


@dataclass(frozen=True)
class ClientOptions:
    """What a client sends. Times are in seconds, and 0 stands for no limit."""

    control: str
    frontend: str
    queue: str
    arguments: list[str]
    limit: float
    parallel: int
    max_parallel: int
    duration: float


def serve(options: ClientOptions, report: Callable[[str], None]) -> tuple[str, int]:
    """Send requests until the duration is over or a signal comes.

    Return the statistics (JSON if there is a duration) and the exit code: 1 if a request failed.
    Raises ValueError, OSError.
    """
    _check(options)
    raise_file_limit(options.max_parallel)
    return asyncio.run(_serve(options, report))


def _check(options: ClientOptions) -> None:
    """Raise ValueError if the options do not fit together."""
    if not 0 <= options.parallel <= options.max_parallel <= MAX_PARALLEL:
        raise ValueError(
            f"parallel requests must be 0 <= --req-now ({options.parallel}) <= --req-max "
            f"({options.max_parallel}) <= {MAX_PARALLEL}"
        )
    if not 0 <= options.duration < math.inf:
        raise ValueError(f"--duration {options.duration:g} is not a time")
    private = wire.address(options.control).host in ("localhost", "127.0.0.1", "::1")
    if not (private or os.environ.get(TOKEN_VARIABLE)):
        raise ValueError(
            f"--caddr {options.control} lets others control this client; "
            f"set {TOKEN_VARIABLE}, or listen on localhost"
        )


async def _serve(options: ClientOptions, report: Callable[[str], None]) -> tuple[str, int]:
    stats, frontend = ClientStats(), wire.address(options.frontend)
    work = Work(frontend, options.queue, options.arguments, options.limit)
    load = Load(work, stats, max(1, options.max_parallel))
    chosen = os.environ.get(TOKEN_VARIABLE)
    token = chosen or secrets.token_urlsafe(24)
    server = await http.serve(
        wire.address(options.control), control.Control(stats, load), token, control.CHANGES
    )
    if not chosen:
        report(f"{TOKEN_VARIABLE} is not set; the token of the control port is {token}")
    port = server.sockets[0].getsockname()[1]
    report(f"requests to queue {options.queue!r} at {options.frontend}, control on port {port}")
    stopped = asyncio.create_task(until_signal().wait())
    load.set_parallel(options.parallel)
    await asyncio.wait([stopped], timeout=options.duration or None)
    result = stats.as_json()
    await load.stop()
    server.close()
    text = control.nodes_text(stats) + control.stats_text(stats)
    code = EXIT_FAILED if stats.failure else EXIT_OK
    return json.dumps(result) if options.duration else text, code

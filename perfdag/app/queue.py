"""The programs of `perfdag queue`: frontend, backend, client, validation and manifests.

Each imports what it needs when it runs, so that a backend does not load what the others need.
"""

import asyncio
import json
import math
import os
import resource
import secrets
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from perfdag import signals
from perfdag.app.errors import CommandError
from perfdag.signals import EXIT_FAILED, EXIT_OK, EXIT_REACH
from perfdag.steps.queue import wire
from perfdag.steps.queue.dispatcher import Limits, raise_file_limit
from perfdag.steps.queue.workload import FILENAME, Workload, matching
from perfdag.units import plural

if TYPE_CHECKING:
    from perfdag.steps.queue.client import Work
    from perfdag.steps.queue.validate import Plan
    from perfdag.steps.queue.verdict import Verdict

Report = Callable[[str], None]


def until_signal() -> asyncio.Event:
    """Return an event that SIGHUP, SIGINT and SIGTERM set."""
    stopped = asyncio.Event()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    return stopped


def serve_frontend(
    names: Sequence[str], limits: Limits, addresses: Sequence[str], report: Report
) -> None:
    """Serve the queues until a signal. Raises ValueError, OSError.

    `addresses`: of clients, backends and metrics. `report` receives the ports, and the statistics
    at each interval and at the end.
    """
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
    raise_file_limit(limits.peers)
    asyncio.run(_serve_frontend(names, limits, [*map(wire.address, addresses)], report))


async def _serve_frontend(
    names: Sequence[str], limits: Limits, addresses: Sequence[wire.Address], report: Report
) -> None:
    from perfdag.steps.queue.frontend import Frontend

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


def run_backend_once(workload: Workload, glob: str, report: Report) -> tuple[int, dict[str, Any]]:
    """Run the command once without a frontend.

    Return 1 if it fails or takes too long, else 0, and what the item used: its time, CPU time (of
    all its processes), the memory of its largest process, and the use of this machine's GPUs.
    """
    from perfdag.hosts import gpu_use
    from perfdag.hosts.local import LocalHost

    _report_device(workload, glob, report)
    with gpu_use.devices_watched(LocalHost()) as devices:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        start = time.monotonic()
        outcome = workload.run(None, 0.0)
        seconds = time.monotonic() - start
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if outcome.error:
        report(outcome.error)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    used = {
        "seconds": seconds,
        "cpu_seconds": cpu,
        "cpus": cpu / seconds if seconds else 0.0,
        # The largest of all children so far, in KiB: unknown if an earlier one was larger.
        "memory_bytes": after.ru_maxrss * 1024 if after.ru_maxrss > before.ru_maxrss else None,
        "devices": {name: asdict(use) for name, use in devices.items()},
    }
    return EXIT_FAILED if outcome.retcode or outcome.timeout else EXIT_OK, used


def serve_backend(
    workload: Workload,
    glob: str,
    frontend: str,
    queue: str,
    *,
    pod_variable: str,
    node_variable: str,
    backoff: float,
    backoff_max: float,
    report: Report,
) -> None:
    """Run the command for each item of a queue until a signal.

    The variables name the environment variables with the names of pod and node. Raises ValueError,
    and CommandError if the frontend is out of reach.
    """
    from perfdag.steps.queue.backend import Backend, Options, UnreachableError

    host = socket.gethostname() or "localhost"
    options = Options(
        wire.address(frontend),
        queue,
        pod=os.environ.get(pod_variable, "") or host,
        node=os.environ.get(node_variable, "") or host,
        backoff=backoff,
        backoff_max=backoff_max,
    )
    _report_device(workload, glob, report)
    backend = Backend(options, workload)
    backend.catch_signals()
    report(f"backend of queue {queue!r} at {frontend}: {' '.join(workload.command)}")
    try:
        backend.serve()
    except UnreachableError as error:
        raise CommandError(str(error), EXIT_REACH) from None
    report(f"{plural(backend.completed, 'item')} done")


def _report_device(workload: Workload, glob: str, report: Report) -> None:
    if glob:
        count = len(matching(glob))
        others = f", the first of {count} that match {glob}" if count > 1 else ""
        report(f"{FILENAME} stands for {workload.device}{others}")


def serve_client(
    work: "Work", address: str, parallel: int, most: int, duration: float, report: Report
) -> tuple[str, int]:
    """Send requests until the duration (seconds, 0: none) is over or a signal comes.

    `address`: of the control port. `parallel`: requests at the start, at most `most`.
    Return the statistics (JSON if there is a duration) and the exit code: 1 if a request failed.
    Raises ValueError, OSError.
    """
    if not 0 <= parallel <= most <= wire.MOST_PARALLEL:
        raise ValueError(
            f"parallel requests must be 0 <= --req-now ({parallel}) <= --req-max "
            f"({most}) <= {wire.MOST_PARALLEL}"
        )
    if not 0 <= duration < math.inf:
        raise ValueError(f"--duration {duration:g} is not a time")
    control = wire.address(address)
    private = control.host in ("localhost", "127.0.0.1", "::1")
    if not (private or os.environ.get(wire.TOKEN_VARIABLE)):
        raise ValueError(
            f"--caddr {control} lets others control this client; "
            f"set {wire.TOKEN_VARIABLE}, or listen on localhost"
        )
    raise_file_limit(most)
    return asyncio.run(_serve_client(work, control, parallel, most, duration, report))


async def _serve_client(
    work: "Work",
    address: wire.Address,
    parallel: int,
    most: int,
    duration: float,
    report: Report,
) -> tuple[str, int]:
    from perfdag.steps.queue import control, http
    from perfdag.steps.queue.client import ClientStats, Load

    stats = ClientStats()
    load = Load(work, stats, max(1, most))
    chosen = os.environ.get(wire.TOKEN_VARIABLE)
    token = chosen or secrets.token_urlsafe(24)
    server = await http.serve(address, control.Control(stats, load), token, control.CHANGES)
    if not chosen:
        report(f"{wire.TOKEN_VARIABLE} is not set; the token of the control port is {token}")
    port = server.sockets[0].getsockname()[1]
    report(f"requests to queue {work.queue!r} at {work.frontend}, control on port {port}")
    stopped = asyncio.create_task(until_signal().wait())
    load.set_parallel(parallel)
    await asyncio.wait([stopped], timeout=duration or None)
    result = stats.as_json()
    await load.stop()
    server.close()
    text = control.nodes_text(stats) + control.stats_text(stats)
    code = EXIT_FAILED if stats.failure else EXIT_OK
    return json.dumps(result) if duration else text, code


def validate_local(
    command: Sequence[str], plan: "Plan", glob: str, item_limit: float, report: Report
) -> "Verdict":
    """Validate processes of this machine. Raises ValueError (BadInput), KeyboardInterrupt."""
    from perfdag.steps.queue.local import Local
    from perfdag.steps.queue.validate import validate

    async def work() -> "Verdict":
        async with Local(list(command), plan.limit, glob=glob, item_limit=item_limit) as local:
            return await validate(local.target, local.load, plan, report)

    return signals.run_until_stopped(work())


def render_manifests(
    file: str | None,
    extra: Sequence[str],
    namespace: str | None,
    image: str | None,
    monitor: str | None,
    report: Report,
) -> str:
    """Return the objects of the queues in a file and of `extra` queues (NAME=COMMAND) as YAML.

    Raises ValueError, OSError.
    """
    import yaml

    from perfdag.steps.queue.manifests import manifests
    from perfdag.steps.queue.spec import load

    queues = load(file, list(extra), namespace=namespace, image=image, monitor=monitor)
    token = os.environ.get(wire.TOKEN_VARIABLE)
    if not token:
        report(
            "these objects have a new token, which locks out users of the old one: "
            f"set {wire.TOKEN_VARIABLE} to keep one"
        )
    try:
        objects = manifests(queues, token)
    except ValueError as error:
        raise ValueError(f"{file or 'queues'}: {error}") from None
    return str(yaml.safe_dump_all(objects, sort_keys=False))

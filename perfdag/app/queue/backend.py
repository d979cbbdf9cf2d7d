"""Run a backend of a queue."""

import os
import resource
import socket
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from perfdag.app.errors import CommandError
from perfdag.exit_codes import EXIT_FAILED, EXIT_OK, EXIT_REACH
from perfdag.hosts import device_use
from perfdag.hosts.local import LocalHost
from perfdag.steps.queue import wire
from perfdag.steps.queue.backend.backend import Backend, Options, UnreachableError
from perfdag.steps.queue.backend.workload import FILENAME, Workload, matching
from perfdag.units import plural

Report = Callable[[str], None]


def run_once(workload: Workload, glob: str, report: Report) -> tuple[int, dict[str, Any]]:
    """Run the command once without a frontend.

    Return 1 if it fails or takes too long, else 0, and what the item used: its time, CPU time (of
    all its processes), the memory of its largest process, and the use of this machine's GPUs.
    """
    _report_device(workload, glob, report)
    with device_use.watched(LocalHost()) as devices:
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


def serve(
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
) -> int:
    """Run the command for each item of a queue until a signal.

    The variables name the environment variables with the names of pod and node. Raises ValueError,
    and CommandError if the frontend is out of reach.
    """
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
    return EXIT_OK


def _report_device(workload: Workload, glob: str, report: Report) -> None:
    if glob:
        count = len(matching(glob))
        others = f", the first of {count} that match {glob}" if count > 1 else ""
        report(f"{FILENAME} stands for {workload.device}{others}")

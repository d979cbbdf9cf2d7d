"""Follow a run on a cluster to its end."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterable

from perfdag.app.cluster.resume import kept_samples
from perfdag.app.cluster.view import DONE, View, program_lines, view_run
from perfdag.app.cluster.waits import observe
from perfdag.commands.options import print_now
from perfdag.kube.client import Kube, KubeError
from perfdag.signals import EXIT_FAILED, EXIT_INPUT

logger = logging.getLogger(__name__)


POLL_INTERVAL = 2.0
"""Seconds between two looks at a run."""
MAX_TROUBLES = 5


async def follow_run(workflow: str, namespace: str) -> int:
    """Follow the run of a Workflow and return its exit code.

    It prints a line for each change, then the run's table. A lost connection is tried
    again. Raises KubeError if the API server refuses.
    """
    start, connected = time.monotonic(), True
    view: View | None = None
    state = ""
    troubles: list[str] = []
    async with Kube(retries=2) as client:
        while True:
            try:
                view = await view_run(client, workflow, namespace)
                connected = True
            except KubeError as error:
                if error.status == 404:
                    text = f"workflow {workflow} was deleted"
                    if view:
                        samples = kept_samples(view.run_id, view.store, namespace)
                        text = f"{text}; {samples}"
                    logger.info(text)
                    return EXIT_FAILED
                if error.status in (401, 403):
                    raise
                if connected:
                    logger.info(f"connection lost, trying again: {error}")
                connected = False
                await asyncio.sleep(POLL_INTERVAL)
                continue
            seen = await observe(client, view, namespace)
            line = describe(view, seen.line, seen.waits)
            if line != state:
                seconds = int(time.monotonic() - start)
                print_now(f"{clock(seconds)} | {line}")
                state = line
            # Argo deletes a pod that was pending too long, and then only says "timeout".
            current = [text for text in view.troubles() if not text.endswith(": timeout")]
            troubles = current or troubles
            if view.phase in DONE:
                return await _end(client, view, namespace, troubles)
            await asyncio.sleep(POLL_INTERVAL)


def clock(seconds: int) -> str:
    """Return minutes and seconds as 1:05."""
    return f"{seconds // 60}:{seconds % 60:02d}"


def describe(view: View, line: str | None = None, waits: Iterable[str] = ()) -> str:
    """Return the phase, progress, batches, pods by phase, waits and troubles in one line.

    `line` is the last line of the lead: the newest sample of its batch.
    """
    progress = []
    if view.progress:
        done, total = view.progress
        progress = [f"{done}/{total} of the started batches", *([line] if line else [])]
    phases = Counter(pod.phase for pod in view.pods if pod.batch is not None)
    pods = ", ".join(f"{count} {phase}" for phase, count in sorted(phases.items()))
    batches = ", ".join(map(str, view.batches))
    parts = [
        f"{view.phase} ({view.message})" if view.message else view.phase,
        *progress,
        *([f"batch {batches}"] if batches else []),
        *([f"pods {pods}"] if pods else []),
    ]
    return " | ".join([*parts, *waits, *view.troubles()[:MAX_TROUBLES]])


async def _end(client: Kube, view: View, namespace: str, troubles: list[str]) -> int:
    """Write the logs of the plan step, if it failed, and of the finish step; return the code."""
    plan, code = view.code_of("plan"), view.exit_code()
    if plan != 0:
        await _write_log(client, view, "plan", namespace)
    if plan != EXIT_INPUT:
        await _write_log(client, view, "finish", namespace)
    if code is None:
        reason = view.message or "; ".join(troubles[:3])
        logger.info(f"workflow {view.name} {view.phase}: {reason}")
        return EXIT_FAILED
    return code


async def _write_log(client: Kube, view: View, step: str, namespace: str) -> None:
    """Write the log of a step's last attempt, if there is one."""
    node = view.last_node(step)
    if node is None:
        return
    suffix = node["id"].rpartition("-")[2]
    for pod in view.pods:
        if pod.name.endswith(suffix) and step in pod.name:
            try:
                async for line in program_lines(client, pod.name, namespace):
                    print_now(line)
            except KubeError as error:
                logger.info(f"the log of {pod.name} cannot be read: {error}")
            return

"""What a run on a cluster waits for: its store, its nodes, its watchdog."""

import asyncio
import time
from dataclasses import dataclass
from datetime import datetime

from perfdag.app.cluster.view import DONE, View, program_lines
from perfdag.kube.client import Kube, KubeError, Object
from perfdag.kube.pods import Pod, nodes_of, template_of
from perfdag.steps.runner.watch import finished
from perfdag.store.s3 import is_wait_line, seconds_away

SHORTEST_WAIT = 10.0
"""Seconds from which a wait is shown."""
LOG_SECONDS = 5.0
"""Limit of reading a log: the API server waits long for a kubelet that does not answer."""
MAX_NODES = 5
"""Most nodes that are read at a time."""


@dataclass(frozen=True)
class Observation:
    """What the logs, the nodes and the Workflow of a run tell at one moment.

    `line` is the last line of a lead that measures, or None. `waits` has a line for each thing
    that the run waits for.
    """

    line: str | None = None
    waits: tuple[str, ...] = ()


async def observe(client: Kube, view: View, namespace: str) -> Observation:
    """Read the logs of the running pods that use the store, and the nodes of pods in trouble.

    What the user may not read is left out.
    """
    if view.phase in DONE:
        return Observation()
    running = [pod for pod in view.pods if pod.phase == "Running" and not pod.trouble]
    leads = [pod for pod in running if pod.rank == 0][:1]
    steps = [pod for pod in running if pod.batch is None]
    logs = await asyncio.gather(*(_log(client, pod, namespace) for pod in [*leads, *steps]))
    lines = [line for line in logs[0] if not is_wait_line(line)] if leads else []
    waits = [
        _wait("S3 has not answered", max(map(seconds_away, logs), default=0.0)),
        *await _lost_nodes(client, view),
        _wait("finish has waited for the watchdog", _watchdog_seconds(view)),
    ]
    return Observation(lines[-1] if lines else None, tuple(filter(None, waits)))


def _wait(text: str, seconds: float) -> str | None:
    """Return a line about a wait; None for a short one.

    The time is rounded down, so that the line of a long wait seldom changes.
    """
    if seconds < SHORTEST_WAIT:
        return None
    step = 10 if seconds < 60 else 60 if seconds < 600 else 600
    rounded = int(seconds // step * step)
    return f"{text} for {f'{rounded} s' if rounded < 60 else f'{rounded // 60} min'}"


def _seconds_since(moment: str) -> float:
    """Return the seconds since a time of the API server, by this machine's clock."""
    return time.time() - datetime.fromisoformat(moment).timestamp()


async def _log(client: Kube, pod: Pod, namespace: str) -> list[str]:
    """Return the last lines of a pod's log; none if it is gone, or may not be read."""
    try:
        async with asyncio.timeout(LOG_SECONDS):
            log = program_lines(client, pod.name, namespace, tail=5)
            return [line async for line in log if line]
    except (KubeError, TimeoutError):
        return []


async def _lost_nodes(client: Kube, view: View) -> list[str | None]:
    """Return a line for each node of an unfinished pod in trouble that is not ready."""
    names = {
        pod.node
        for pod in view.pods
        if pod.node and (pod.phase == "Pending" or (pod.phase == "Running" and pod.trouble))
    }
    lines = []
    try:
        for name in sorted(names)[:MAX_NODES]:
            node = await client.get(await client.resource("v1", "Node"), name)
            lines += [
                _wait(f"{name} has been NotReady", _seconds_since(condition["lastTransitionTime"]))
                for condition in node["status"].get("conditions") or []
                if condition["type"] == "Ready" and condition["status"] != "True"
            ]
    except KubeError:  # the user may not read nodes, or the node is gone
        pass
    return lines


def _watchdog_seconds(view: View) -> float:
    """Return for how many seconds the watchdog alone has kept finish from its start, or 0."""
    if not finished(view.workflow):
        return 0.0
    nodes = list(nodes_of(view.workflow).values())
    watchdogs = [node for node in nodes if template_of(node) in ("watchdog", "watchdog-pod")]
    if not any(node.get("phase") in ("Pending", "Running") for node in watchdogs):
        return 0.0
    ends = [_end_text(node) for node in nodes if template_of(node) in ("batches", "recheck")]
    return _seconds_since(max(ends)) if any(ends) else 0.0


def _end_text(node: Object) -> str:
    return node.get("finishedAt") or ""

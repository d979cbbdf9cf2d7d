"""`perfdag status` and `perfdag logs`: the progress of a run on a cluster, and its pods' logs."""

import argparse
import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from perfdag.commands.cluster import (
    DONE,
    NoRun,
    View,
    find_workflow,
    kept,
    program_lines,
    view_run,
)
from perfdag.commands.options import (
    CLUSTER_RUN,
    EXIT_FAILED,
    EXIT_OK,
    EXIT_REACH,
    NAMESPACE,
    WATCH,
    add_options,
    print_now,
)
from perfdag.kube.client import Kube, KubeError, run_with_client
from perfdag.kube.pods import Pod
from perfdag.plan.plan import is_run_id
from perfdag.store.s3 import is_wait_line, seconds_away

logger = logging.getLogger(__name__)


EPILOG = """examples:
  perfdag status last --namespace bench
  perfdag status 20260101T020000Z-0a1b2c3d --namespace bench --watch
"""


def add_status(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    parser = sub.add_parser(
        "status",
        description="Show the progress of a run, its current batch, its pods, and what keeps them "
        "from running.",
        epilog=EPILOG,
    )
    add_options(parser, CLUSTER_RUN, NAMESPACE)
    add_options(parser, WATCH)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the status, or follow the run and return its exit code. Raises NoRun, KubeError."""

    async def look(client: Kube) -> tuple[View, Observation]:
        workflow = await find_workflow(client, args.name, args.namespace)
        view = await view_run(client, workflow["metadata"]["name"], args.namespace)
        return view, await observe(client, view, args.namespace)

    try:
        view, seen = run_with_client(look)
    except NoRun as error:
        if not is_run_id(args.name):
            raise
        raise NoRun(f"{error}; {kept(args.name, '', args.namespace)}") from None
    if args.watch:
        return asyncio.run(follow_run(view.name, args.namespace))
    print(f"run {view.run_id or '(no plan yet)'}, workflow {view.name}")
    print(f"{clock(int(view.seconds()))} | {describe(view, seen.line, seen.waits)}")
    return EXIT_OK


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
                        text = f"{text}; {kept(view.run_id, view.store, namespace)}"
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
            # Argo deletes a pod that was pending too long, and then says no more than this
            ends = (": timeout", ": pod deleted")
            current = [text for text in view.troubles() if not text.endswith(ends)]
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
    """Write the log of the finish step, if there was one; return the exit code of the run."""
    code, node = view.exit_code(), view.last_node("finish") or {"id": ""}
    for pod in view.pods:
        if node["id"] and pod.name.endswith(f"finish-pod-{node['id'].rpartition('-')[2]}"):
            try:
                async for line in program_lines(client, pod.name, namespace):
                    print_now(line)
            except KubeError as error:
                logger.info(f"the log of {pod.name} cannot be read: {error}")
    if code is None:
        reason = view.message or "; ".join(troubles[:3])
        logger.info(f"workflow {view.name} {view.phase}: {reason}")
        plan = view.last_node("plan") or {}
        return EXIT_REACH if plan.get("phase") in ("Failed", "Error") else EXIT_FAILED
    return code


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


LOGS_EPILOG = """examples:
  perfdag logs last --namespace bench
  perfdag logs last --namespace bench --batch 3 --tail 20
"""


def add_logs(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    parser = sub.add_parser(
        "logs",
        description="Print the logs of a run's pods, each line after the name of its pod. Pods are "
        "kept for a while after they end; the samples are in the store.",
        epilog=LOGS_EPILOG,
    )
    add_options(parser, CLUSTER_RUN, NAMESPACE)
    parser.add_argument("--batch", type=int, help="only the pods of this batch")
    parser.add_argument("--tail", type=int, help="only the last lines of each pod")
    parser.set_defaults(run=run_logs)


def run_logs(args: argparse.Namespace) -> int:
    """Print the logs of a run's pods. Why one is absent is logged. Raises NoRun, KubeError."""

    async def write(client: Kube) -> None:
        workflow = await find_workflow(client, args.name, args.namespace)
        view = await view_run(client, workflow["metadata"]["name"], args.namespace)
        pods = [pod for pod in view.pods if args.batch in (None, pod.batch)]
        for pod in sorted(pods, key=_order):
            await _write_pod(client, pod, args.namespace, args.tail)

    run_with_client(write)
    return EXIT_OK


def _order(pod: Pod) -> tuple[int, int, str]:
    return (-1 if pod.batch is None else pod.batch, pod.rank or 0, pod.name)


async def _write_pod(client: Kube, pod: Pod, namespace: str, tail: int | None) -> None:
    label = pod.name
    if pod.batch is not None:
        label = f"batch {pod.batch} rank {pod.rank} attempt {pod.attempt}"
    if pod.trouble:
        print_now(f"{label}: {pod.trouble}")
    try:
        async for line in program_lines(client, pod.name, namespace, tail):
            print_now(f"{label}: {line}")
    except KubeError as error:
        logger.info(f"{label}: no log: {error}")

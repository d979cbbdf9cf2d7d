"""`perfdag status` and `perfdag logs`: a run on a cluster, and what its pods print."""

import argparse
import asyncio
import logging
import time
from datetime import datetime

from perfdag.commands.options import (
    CLUSTER_RUN,
    EXIT_OK,
    NAMESPACE,
    WATCH,
    option,
    verb,
)
from perfdag.kube.client import Kube, run_with_client
from perfdag.kube.pods import (
    Pod,
)
from perfdag.redaction import print_now
from perfdag.runs.cluster import View, clock, describe, find_run, follow_run, observe, write_log

logger = logging.getLogger(__name__)


@verb(
    "status",
    "Show the progress of a run, its current batch, its pods, and what keeps them from running.",
    """
    examples:
      perfdag status last --namespace bench
      perfdag status 20260101T020000Z-0a1b2c3d --namespace bench --watch
    """,
    CLUSTER_RUN,
    NAMESPACE,
    WATCH,
)
def run(args: argparse.Namespace) -> int:
    """Print the status, or follow the run and return its exit code. Raises NoRun, KubeError."""

    async def look(client: Kube) -> tuple[View, str]:
        view = await find_run(client, args.name, args.namespace)
        return view, describe(view, await observe(client, view, args.namespace))

    view, line = run_with_client(look)
    if args.watch:
        return asyncio.run(follow_run(view.name, args.namespace))
    print(f"run {view.run_id or '(no plan yet)'}, workflow {view.name}")
    began = datetime.fromisoformat(view.workflow["metadata"]["creationTimestamp"])
    print(f"{clock(max(0.0, time.time() - began.timestamp()))} | {line}")
    return EXIT_OK


@verb(
    "logs",
    "Print the logs of a run's pods, each line after the name of its pod. Pods are "
    "kept for a while after they end; the samples are in the store.",
    """
    examples:
      perfdag logs last --namespace bench
      perfdag logs last --namespace bench --batch 3 --tail 20
    """,
    CLUSTER_RUN,
    NAMESPACE,
    option("--batch", type=int, help="only the pods of this batch"),
    option("--tail", type=int, help="only the last lines of each pod"),
)
def run_logs(args: argparse.Namespace) -> int:
    """Print the logs of a run's pods. Why one is absent is logged. Raises NoRun, KubeError."""

    def order(pod: Pod) -> tuple[int, int, str]:
        return (-1 if pod.batch is None else pod.batch, pod.rank or 0, pod.name)

    async def write(client: Kube) -> None:
        view = await find_run(client, args.name, args.namespace)
        for pod in sorted(view.pods, key=order):
            if args.batch not in (None, pod.batch):
                continue
            label = f"batch {pod.batch} rank {pod.rank} attempt {pod.attempt}: "
            label = f"{pod.name}: " if pod.batch is None else label
            if pod.trouble:
                print_now(f"{label}{pod.trouble}")
            await write_log(client, pod, args.namespace, label, args.tail)

    run_with_client(write)
    return EXIT_OK

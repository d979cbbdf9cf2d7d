"""The logs of a run's pods."""

import logging

from perfdag.app.cluster.find import find_workflow
from perfdag.app.cluster.view import program_lines, view_run
from perfdag.commands.options import print_now
from perfdag.kube.client import Kube, KubeError, run_with_client
from perfdag.kube.pods import Pod

logger = logging.getLogger(__name__)


def write_logs(name: str, namespace: str, batch: int | None, tail: int | None) -> None:
    """Write the logs of a run's pods, or of one batch, each line after the name of its pod.

    `tail` limits the lines of a pod. Why a log is absent is logged. Raises NoRun,
    KubeError.
    """

    async def write(client: Kube) -> None:
        workflow = await find_workflow(client, name, namespace)
        view = await view_run(client, workflow["metadata"]["name"], namespace)
        for pod in sorted(view.pods, key=_order):
            if batch in (None, pod.batch):
                await _write_pod(client, pod, namespace, tail)

    run_with_client(write)


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

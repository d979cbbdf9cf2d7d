"""Watch Deployments that their cluster scales, under a changing load."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any

from perfdag.kube.client import Kube, KubeError
from perfdag.outcome import Failed
from perfdag.steps.queue.autoscale.params import QueueAutoscaleParams
from perfdag.steps.queue.autoscale.queue_gauges import queue_gauges
from perfdag.steps.queue.autoscale.run import run_on_target
from perfdag.steps.queue.autoscale.scores import Profile
from perfdag.steps.queue.validate import targets
from perfdag.steps.queue.validate.deployment import DeploymentTarget, not_permitted

CLIENT_SECONDS = 30.0
"""Seconds that the clients of Deployments have to answer."""


@contextlib.asynccontextmanager
async def _together(
    works: Iterable[Coroutine[Any, Any, dict[str, Any]]],
) -> AsyncIterator["asyncio.Future[list[dict[str, Any]]]"]:
    """Run all at once. If one fails, the others stop their requests and end."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        yield asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def watch(profile: Profile, params: QueueAutoscaleParams) -> dict[str, Any]:
    """Trace the Deployments of the parameters, and return the traces by Deployment.

    Raises Failed, and Skip without the right to read them.
    """
    try:
        async with Kube() as kube:
            namespace = params.namespace or kube.namespace
            token = os.environ.get("PERFDAG_QUEUE_TOKEN", "")
            services = params.clients or [f"{name}-client" for name in params.deployments]
            watched = [DeploymentTarget(kube, namespace, name) for name in params.deployments]
            where = params.client_namespace or namespace
            loads = [
                targets.HttpLoad(targets.fetch_by_service(kube, where, service, 9996, token))
                for service in services
            ]
            for target in watched:
                await target.find()
                await require_scaler(target)
            for load in loads:
                await load.up(CLIENT_SECONDS)
            lines = [queue_gauges(kube, namespace, target.containers) for target in watched]
            async with _together(
                run_on_target(profile, *arguments)
                for arguments in zip(watched, loads, lines, strict=True)
            ) as traces:
                return dict(zip(params.deployments, await traces, strict=True))
    except (KubeError, ValueError) as error:
        if isinstance(error, KubeError) and error.status == 403:
            raise not_permitted(str(error), "queue-autoscale") from None
        raise Failed(str(error)) from None


async def require_scaler(target: DeploymentTarget) -> None:
    """Raise ValueError for a Deployment without a scaler.

    Without the right to look for one, return: the trace shows whether it is scaled.
    """
    try:
        if await target.scaler():
            return
    except KubeError as error:
        if error.status != 403:
            raise
        return
    raise ValueError(
        f"nothing scales Deployment {target.name} in namespace {target.namespace}: it has no "
        "HorizontalPodAutoscaler, and no CronJob of its name starts backends (`autoscale` of the "
        "queue makes one)"
    )

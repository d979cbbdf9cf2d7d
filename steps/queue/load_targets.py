"""The targets of queue-load: processes of this machine, or a Deployment as it is."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from perfdag.kube.client import Kube
from perfdag.outcome import Failed
from perfdag.steps.queue.client.load import RETRY_SECONDS
from perfdag.steps.queue.trials import Setting, run_trials
from perfdag.steps.queue.validate import targets
from perfdag.steps.queue.validate.deployment import DeploymentTarget, as_outcome

START_SECONDS = 30.0
"""Seconds of backends to connect, and of the client of a Deployment to answer."""


async def load_processes(
    command: Sequence[str], replicas: int, glob: str, setting: Setting, rate: float | None
) -> dict[str, Any]:
    """Load so many processes, as run_trials() does. Raises Failed."""
    try:
        async with targets.Local(command, replicas, glob=glob) as local:
            await local.target.scale(replicas)
            end = time.monotonic() + START_SECONDS
            while len(local.frontend.parked[targets.QUEUE]) < replicas:
                if (lost := await local.target.lost()) or time.monotonic() > end:
                    raise Failed(lost or f"not all {replicas} backends started in time")
                await asyncio.sleep(0.05)
            result = await run_trials(local.target, local.load, setting, rate)
            if lost := await local.target.lost():
                raise Failed(lost)
            return result
    except ValueError as error:
        raise Failed(str(error)) from None


async def load_deployment(
    name: str,
    namespace: str | None,
    client: str | None,
    client_namespace: str | None,
    setting: Setting,
    rate: float | None,
) -> dict[str, Any]:
    """Load a Deployment through its client's Service, as run_trials() does.

    Raises Failed, and Skip without the right to read it.
    """
    with as_outcome("queue-load"):
        async with Kube() as kube:
            target = DeploymentTarget(kube, namespace or kube.namespace, name)
            await target.find()
            if scaler := await target.scaler():
                raise Failed(f"{scaler} scales {name}: the number of backends must not change")
            where = client_namespace or target.namespace
            token = await targets.token_of(kube, where)
            send = targets.send_by_service(kube, where, client or f"{name}-client", token)
            load = targets.HttpLoad(send)
            await load.up(START_SECONDS)
            await _connected(load)
            try:
                return await run_trials(target, load, setting, rate)
            finally:
                await load.rate(None)


async def _connected(load: targets.HttpLoad) -> None:
    """Send one request at a time until none fails: a new Service takes a moment to forward.

    A failure that stays is reported by the trials.
    """
    end = time.monotonic() + START_SECONDS
    await load.parallel(1)
    while time.monotonic() < end:
        await load.reset()
        await asyncio.sleep(RETRY_SECONDS + 0.5)
        if not (await load.stats())["failure"]:
            break
    await load.parallel(0)

"""Validate that throughput grows with the backends, on this machine or on a cluster."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from perfdag import signals
from perfdag.kube.client import Kube, KubeError
from perfdag.steps.queue.validate import targets
from perfdag.steps.queue.validate.deploy import deployed
from perfdag.steps.queue.validate.deployment import DeploymentTarget
from perfdag.steps.queue.validate.targets import Local
from perfdag.steps.queue.validate.validate import BadInput, Load, Plan, idle, validate
from perfdag.steps.queue.validate.verdict import Verdict

Report = Callable[[str], None]


@dataclass(frozen=True)
class ClientAddress:
    """Where the client's control port is: a Service in a namespace, or a URL."""

    service: str | None = None
    namespace: str | None = None
    url: str | None = None


def validate_local(
    command: Sequence[str], plan: Plan, glob: str, item_limit: float, report: Report
) -> Verdict:
    """Validate processes of this machine. Raises ValueError (BadInput), KeyboardInterrupt."""

    async def work() -> Verdict:
        async with Local(list(command), plan.limit, glob=glob, item_limit=item_limit) as local:
            return await validate(local.target, local.load, plan, report)

    return signals.run_until_stopped(work())


def validate_deployment(
    name: str,
    namespace: str | None,
    client: ClientAddress,
    plan: Plan,
    manifests: str | None,
    report: Report,
) -> Verdict:
    """Validate a Deployment. Objects of the file `manifests` are there only meanwhile.

    Raises ValueError (BadInput), KubeError, KeyboardInterrupt.
    """

    async def work() -> Verdict:
        async with Kube() as kube, deployed(kube, manifests, namespace, name, report):
            target = DeploymentTarget(kube, namespace or kube.namespace, name)
            await target.find()
            if scaler := await other_scaler(target, report):
                raise BadInput(f"{scaler} scales {name} as well: delete it during the validation")
            load = targets.HttpLoad(await sender(kube, client, target))
            await load.up(plan.scale_seconds if manifests else 0)
            verdict = await validate(target, load, plan, report)
            if manifests:
                await wait_idle(target, load, plan.scale_seconds, report)
            return verdict

    return signals.run_until_stopped(work())


async def sender(kube: Kube, client: ClientAddress, target: DeploymentTarget) -> targets.Send:
    """Return the function that sends requests to the client's control port. Raises KubeError."""
    namespace = client.namespace or target.namespace
    token = await targets.token_of(kube, namespace)
    if client.url:
        return targets.send_by_url(client.url, token)
    service = client.service or f"{target.name}-client"
    return targets.send_by_service(kube, namespace, service, token)


async def wait_idle(target: DeploymentTarget, load: Load, seconds: float, report: Report) -> None:
    """Wait until all requests are answered, before the objects are deleted. Report a failure."""
    try:
        await idle(target, load, seconds)
    except (BadInput, KubeError) as error:
        report(str(error))


async def other_scaler(target: DeploymentTarget, report: Report) -> str | None:
    """Return what else scales the Deployment, or None if nothing does. Report a missing right."""
    try:
        return await target.scaler()
    except KubeError as error:
        if error.status != 403:
            raise
        report(f"not known whether anything else scales {target.name}: {error}")
        return None

"""The parameters of queue-autoscale."""

from typing import Literal

from pydantic import Field

from perfdag.benchmark.contract import Params
from perfdag.units import PositiveDuration


class QueueAutoscaleParams(Params):
    """Load, items and scaler. The need is rate times item seconds."""

    load: Literal["step", "ramp", "spike"] = Field("step", description="how the load changes")
    low: float = Field(2.0, gt=0, le=1000, description="requests a second before and after")
    high: float = Field(10.0, gt=0, le=1000, description="requests a second at its height")
    item: PositiveDuration = Field(0.4, description="seconds of one item")
    duration: PositiveDuration = Field(60.0, description="of the whole load")
    queues: int = Field(1, ge=1, le=16, description="queues loaded and scaled at once")
    target: float = Field(1.0, gt=0, description="items, waiting or running, a backend should have")
    most: int = Field(16, ge=1, le=256, description="most backends of a queue")
    sync: PositiveDuration = Field(
        1.0, description="seconds between two decisions of the scaler (a cluster's HPA: 15 s)"
    )
    window: PositiveDuration = Field(10.0, description="of stable demand before scaling in")
    deployments: list[str] = Field(
        [],
        max_length=16,
        description="watch these Deployments at once, which their cluster scales; `item` is then "
        "the seconds of an item of theirs",
    )
    namespace: str | None = Field(None, description="of the Deployments")
    clients: list[str] = Field(
        [], description="Services of their clients, in the same order (default: DEPLOYMENT-client)"
    )
    client_namespace: str | None = Field(
        None, description="of those Services (default: the Deployments')"
    )


def deployment_problems(params: QueueAutoscaleParams) -> list[str]:
    """Return the problems of parameters that name Deployments, or belong to them."""
    if not params.deployments:
        own = params.clients or params.namespace or params.client_namespace
        return ["clients and namespaces belong to deployments"] if own else []
    wrong = []
    if params.queues != 1:
        wrong.append("queues is for local queues: every Deployment has one queue")
    if params.clients and len(params.clients) != len(params.deployments):
        wrong.append(
            f"{len(params.clients)} clients for {len(params.deployments)} deployments: give as "
            "many, or none"
        )
    twice = sorted({name for name in params.deployments if params.deployments.count(name) > 1})
    return wrong + [f"deployments names {name} twice" for name in twice]

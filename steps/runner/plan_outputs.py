"""The output parameters of the plan step: what Argo fans out over, and the pods of each batch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from perfdag.kube.labels import LABEL
from perfdag.kube.permits import own_image
from perfdag.kube.placement import of_roles
from perfdag.kube.pod_patch import Context, account_of, patch, priority_class, ssh_port
from perfdag.kube.resources import Object
from perfdag.plan.gated import gated
from perfdag.plan.plan import Plan
from perfdag.results.confirming import ROUNDS
from perfdag.shape import Shape
from perfdag.steps.runner.limits import check_shapes, check_size
from perfdag.steps.runner.pod_context import PENDING_GRACE, PodContext

NETWORK = f"{LABEL}/network"
"""Annotation of a pod outside Multus networks: the network that it measures."""
MULTUS = {False: "k8s.v1.cni.cncf.io/networks", True: "v1.multus-cni.io/default-network"}
"""Annotations that name a Multus network, by whether it replaces the pod's default network."""


def outputs(plan: Plan, context: PodContext, left: Sequence[int]) -> dict[str, Any]:
    """Return the output parameters by name, with the batches that are `left` to measure.

    `shapeof` has the shape and the number of pods of each batch, `shapes` the distinct shapes.
    Raises BadDocument.
    """
    check_size(plan)
    shapes = _shapes_of(plan, context)
    check_shapes(shapes)
    return {
        "batches": list(left),
        "shapeof": _shape_of_batches(plan),
        "shapes": shapes,
        "pending": f"{int(plan.options.get('pending_limit', 600)) + PENDING_GRACE}s",
        "run": plan.run_id,
        "suitename": plan.suite,
        "gated": str(gated(plan)).lower(),
    }


def write_outputs(out: Path, values: Mapping[str, Any]) -> None:
    """Write output parameters to files of their names in a folder: texts as they are, else JSON."""
    out.mkdir(parents=True, exist_ok=True)
    for name, value in values.items():
        (out / name).write_text(value if isinstance(value, str) else orjson.dumps(value).decode())


def _turn(shape: Shape, pods: int, number: int) -> str:
    """Return the name of the mutex of a batch, for an installation where batches overlap.

    All gangs share one: two half-placed gangs would deadlock. Volcano places a gang as a whole.
    """
    return "gang" if pods > 1 and shape.scheduler != "volcano" else str(number)


def _shape_of_batches(plan: Plan) -> list[Object]:
    """Return the shape and the pods of each batch; batches that confirm the run come last."""
    indices = [batch.shape for batch in plan.batches] + [*range(len(plan.shapes))] * ROUNDS
    batches = []
    for number, index in enumerate(indices):
        shape = Shape.model_validate(plan.shapes[index])
        count = shape.hosts.count
        turn = _turn(shape, count, number)
        batches.append({"s": str(index), "n": str(count), "turn": turn})
    return batches


def _shapes_of(plan: Plan, context: PodContext) -> list[Object]:
    """Return the shapes of a plan as Argo gets them."""
    accounts = {
        point.shape: account_of(point.benchmark)
        for point in plan.points
        if point.benchmark in context.allowed
        and own_image(plan.shapes[point.shape].get("image"), context.images)
    }
    return [
        _shape_output(Shape.model_validate(shape), plan, context, accounts.get(number))
        for number, shape in enumerate(plan.shapes)
    ]


def _shape_output(shape: Shape, plan: Plan, context: PodContext, account: str | None) -> Object:
    patch_context = Context(
        plan.run_id,
        context.workflow_uid,
        context.images,
        context.store,
        context.pull_policy,
        priority_class(plan.options.get("priority", 0)),
        account,
    )
    ports = [ssh_port(shape, plan.run_id, rank) for rank in (0, 1)]
    network, roles = shape.network, of_roles(shape)
    return {
        "patch": patch(shape, patch_context),
        "port": str(ports[0]),
        "step": str(ports[1] - ports[0]),
        **{
            role: orjson.dumps(roles.get(role, shape).node_selector).decode()
            for role in ("client", "server")
        },
        "netkey": MULTUS[network.default] if network.name else NETWORK,
        "network": ",".join(network.attachments) or ("host" if network.host else "pod"),
    }

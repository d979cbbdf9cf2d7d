"""What Argo gets of the batches of a plan, and whether one Workflow holds it. Light to import."""

from collections.abc import Collection, Iterable
from dataclasses import replace

import orjson

from perfdag.kube.client import Object
from perfdag.kube.patch import (
    LABEL,
    PRIORITY_CLASSES,
    Context,
    account_of,
    image,
    own_image,
    patch,
    ssh_port,
)
from perfdag.plan.plan import Plan
from perfdag.shape import Shape
from perfdag.suite.document import BadDocument, Problem

NETWORK = f"{LABEL}/network"
"""Annotation of a pod outside Multus networks: the network that it measures."""
MULTUS = {False: "k8s.v1.cni.cncf.io/networks", True: "v1.multus-cni.io/default-network"}
"""Annotations that name a Multus network, by whether it replaces the pod's default network."""
MAX_BATCHES = 1000
MAX_KINDS = 75_000
"""Bytes of all kinds as text within JSON.

They stand twice in the Workflow: as outputs of the plan step and of the Workflow. Its templates,
which Argo stores twice too, need the rest of the 256 KiB of an object.
"""
_LONG_IMAGE = "registry.of-a-usual-length.example/benchmarks/perfdag-{name}:1.0"
"""Stands for the images of the installation where these are not known."""


def refuse(text: str) -> BadDocument:
    """Return an error of the input, which ends the step with exit code 2."""
    return BadDocument([Problem("refused", text, file="suite")])


def check_account(account: str, plan: Plan, number: int) -> None:
    """Raise BadDocument if a pod with rights of one benchmark is to measure another one.

    The plan is read again from the store, so it may differ from the one that the plan step checked.
    """
    for position in plan.batches[number].samples if account else ():
        benchmark = plan.point_at(position).benchmark
        if account_of(benchmark) != account:
            raise refuse(f"batch {number}: {benchmark} may not use the account {account}")


def check_own_images(plan: Plan, images: str, allowed: Iterable[str]) -> None:
    """Raise BadDocument if a benchmark with rights of its own has another image.

    `images` is the pattern of the installation, `allowed` names these benchmarks.
    """
    for point in plan.points:
        image = plan.shapes[point.shape].image
        if point.benchmark in allowed and not own_image(image, images):
            raise refuse(
                f"entry {point.entry}: {point.benchmark} has rights of its own here, "
                f"so {image} may not be its image; leave image out"
            )


def kinds_of(
    plan: Plan, context: Context | None = None, allowed: Collection[str] = ()
) -> list[Object]:
    """Return what Argo gets of each kind of batches: what its batches and their pods share.

    Without `context` it is about as long as on a cluster. `allowed` names the benchmarks with
    rights of their own. Raises BadDocument if a plan has too many batches or kinds, or a wrong
    shape: a stored plan may come from elsewhere. The message names the settings that change this.
    """
    if len(plan.batches) > MAX_BATCHES:
        raise refuse(
            f"{len(plan.batches):,} batches are more than {MAX_BATCHES:,}, which is what one "
            "workflow holds; raise batch_time or rounds_per_batch, use isolation: batch, "
            "or split the suite"
        )
    benchmarks = {point.entry: point.benchmark for point in plan.points}
    usual = Context(plan.run_id, 36 * "0", _LONG_IMAGE, priority_class=PRIORITY_CLASSES[1])
    kinds: list[Object] = []
    size = 0
    for index, entry in plan.kinds():
        benchmark, shape = benchmarks[entry], plan.shapes[index]
        for problem in shape.problems():
            raise BadDocument([replace(problem, file="suite")])
        given = context or usual
        if benchmark in allowed and own_image(shape.image, given.images):
            given = replace(given, account=account_of(benchmark))
        kinds.append({"entry": entry, "benchmark": benchmark, **_kind(shape, given)})
        size += len(orjson.dumps(orjson.dumps(kinds[-1]).decode()))
        if size > MAX_KINDS:
            raise refuse(
                f"the first {len(kinds)} distinct shapes are too many for one workflow "
                f"({size:,} of {MAX_KINDS:,} bytes); split the suite by shape"
            )
    return kinds


def _kind(shape: Shape, context: Context) -> Object:
    """Return what a kind of batches has of its shape.

    `turn` is the mutex of batches that may overlap: two half-placed gangs would deadlock. Volcano
    places a gang as a whole.
    """
    count, network = shape.hosts.count, shape.network
    roles = {"lead": 0, "peer": 1} if count > 1 else {"lead": 0}
    return {
        "image": image(shape.image, context.images),
        "pods": str(count),
        "ports": [str(ssh_port(shape, context.run_id, rank)) for rank in range(count)],
        "netkey": MULTUS[network.default] if network.name else NETWORK,
        "network": network_of(shape),
        "turn": "gang" if count > 1 and shape.scheduler != "volcano" else "",
        **{role: patch(shape, context, rank) for role, rank in roles.items()},
    }


def network_of(shape: Shape) -> str:
    """Return what a shape measures: the names of Multus networks, host or pod."""
    network = shape.network
    return ",".join(network.attachments) or ("host" if network.host else "pod")

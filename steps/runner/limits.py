"""The size limits of a Workflow. Light to import: `perfdag plan` checks them too."""

from collections.abc import Iterable
from typing import Any

import orjson
from pydantic import ValidationError

from perfdag.kube.patch import PRIORITY_CLASSES, Context, account_of, own_image, patch
from perfdag.plan.plan import MAX_BATCHES, Plan
from perfdag.shape import Shape
from perfdag.suite.document import BadDocument, Problem

MAX_SHAPES = 75_000
"""Bytes of all patches as text within JSON.

They stand twice in the Workflow: as outputs of the plan step and of the Workflow. Its templates,
which Argo stores twice too, need the rest of the 256 KiB of an object.
"""
_LONG_IMAGE = "registry.of-a-usual-length.example/benchmarks/perfdag-{name}:1.0"
"""Stands for the images of the installation where these are not known."""


def refuse(text: str) -> BadDocument:
    """Return an error of the input, which ends the step with exit code 2."""
    return BadDocument([Problem("suite", 1, "", text)])


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
        image = plan.shapes[point.shape].get("image")
        if point.benchmark in allowed and not own_image(image, images):
            raise refuse(
                f"entry {point.entry}: {point.benchmark} has rights of its own here, "
                f"so {image} may not be its image; leave image out"
            )


def check_size(plan: Plan) -> None:
    """Raise BadDocument if a plan has too many batches or shapes, or a shape that is none.

    A stored plan may come from elsewhere. The message names the settings that change this.
    """
    if len(plan.batches) > MAX_BATCHES:
        raise refuse(
            f"{len(plan.batches):,} batches are more than {MAX_BATCHES:,}, which is what one "
            "workflow holds; raise batch_time or rounds_per_batch, use isolation: batch, "
            "or split the suite"
        )
    context = Context(plan.run_id, 36 * "0", _LONG_IMAGE, priority_class=PRIORITY_CLASSES[1])
    check_shapes({"patch": patch(_shape(shape), context)} for shape in plan.shapes)


def _shape(data: dict[str, Any]) -> Shape:
    """Return a shape of a plan. Raises BadDocument."""
    try:
        shape = Shape.model_validate(data)
    except ValidationError as invalid:
        error = invalid.errors()[0]
        raise refuse(f"{'.'.join(map(str, error['loc']))}: {error['msg']}") from None
    for key, text in shape.problems():
        raise refuse(f"{key}: {text}")
    return shape


def check_shapes(shapes: Iterable[dict[str, Any]]) -> None:
    """Raise BadDocument if the shapes, as Argo gets them, are too many bytes."""
    size = 0
    for number, shape in enumerate(shapes):
        size += len(orjson.dumps(orjson.dumps(shape).decode()))
        if size > MAX_SHAPES:
            raise refuse(
                f"the first {number + 1} distinct shapes are too many for one workflow "
                f"({size:,} of {MAX_SHAPES:,} bytes); split the suite by shape"
            )

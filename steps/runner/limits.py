"""What one workflow holds of a plan; light to import, since `perfdag plan` says it too."""

from typing import Any

import orjson

from perfdag.kube.podspec import PRIORITY_CLASSES, Context, patch
from perfdag.plan.plan import MAX_BATCHES, Plan
from perfdag.shape import Shape
from perfdag.suite.yaml_document import BadDocument, Problem

MAX_SHAPES = 75_000
"""Bytes of all patches as text within JSON: they stand twice in the Workflow, as what plan said and as the workflow's own, beside its
templates, which Argo stores twice too; an object has less than 256 KiB."""
_LONG_IMAGE = "registry.of-a-usual-length.example/benchmarks/perfdag-{name}:1.0"  # where the installation's is not known


def refuse(text: str) -> BadDocument:
    """An error of the input, exit code 2."""
    return BadDocument([Problem("suite", 1, "", text)])


def check_size(plan: Plan) -> None:
    """Raises BadDocument for a plan of too many batches or too many shapes for one workflow, naming the knob."""
    if len(plan.batches) > MAX_BATCHES:
        knob = "raise batch_time or rounds_per_batch, use isolation: batch, or split the suite"
        raise refuse(
            f"{len(plan.batches):,} batches are more than {MAX_BATCHES:,}, which is what one workflow holds; {knob}"
        )
    context = Context(plan.run_id, 36 * "0", _LONG_IMAGE, priority_class=PRIORITY_CLASSES[1])
    check_shapes([{"patch": patch(Shape.model_validate(shape), context)} for shape in plan.shapes])


def check_shapes(described: list[dict[str, Any]]) -> None:
    """Raises BadDocument where the shapes, as Argo gets them, are too many bytes."""
    size = len(orjson.dumps(orjson.dumps(described).decode()))
    if size > MAX_SHAPES:
        raise refuse(
            f"{len(described)} distinct shapes are too many for one workflow ({size:,} of {MAX_SHAPES:,} bytes); split the suite by shape"
        )

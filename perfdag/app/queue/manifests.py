"""Render the Kubernetes objects of a set of queues."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import yaml

from perfdag.steps.queue.manifests.model import Queues, load
from perfdag.steps.queue.manifests.objects import manifests
from perfdag.steps.queue.validate.targets import TOKEN_VARIABLE


def schema() -> dict[str, Any]:
    """Return the JSON schema of a file of queues."""
    return Queues.model_json_schema()


def render(
    file: str | None,
    extra: Sequence[str],
    namespace: str | None,
    image: str | None,
    monitor: str | None,
    report: Callable[[str], None],
) -> str:
    """Return the objects of the queues in a file and of `extra` queues (NAME=COMMAND) as YAML.

    Raises ValueError, OSError.
    """
    queues = load(file, list(extra), namespace=namespace, image=image, monitor=monitor)
    token = os.environ.get(TOKEN_VARIABLE)
    if not token:
        report(
            "these objects have a new token, which locks out users of the old one: "
            f"set {TOKEN_VARIABLE} to keep one"
        )
    try:
        objects = manifests(queues, token)
    except ValueError as error:
        raise ValueError(f"{file or 'queues'}: {error}") from None
    return str(yaml.safe_dump_all(objects, sort_keys=False))

"""A work queue that measures the scaling of devices: frontend, backends, clients and validator."""

from functools import cache
from typing import Any


@cache
def _environment() -> Any:  # of jinja2, which only texts need
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("perfdag.steps.queue", "templates"),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )


def render(template: str, **fields: Any) -> str:
    """Return the text of a template of this package."""
    return str(_environment().get_template(template).render(**fields))

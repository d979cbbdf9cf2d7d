"""Sessions of scenarios without a cluster."""

from typing import Any

from perfdag.steps.scale.measure.errors import Offset, WatchLag
from perfdag.steps.scale.measure.observer import Observer
from perfdag.steps.scale.model.templates import Template, load
from perfdag.steps.scale.scenarios.session import Session


def session_of(
    kube: Any, observer: Observer, template: Template | None = None, **fields: Any
) -> Session:
    """Return a session of run `r` in the namespace `ns`, on a server whose clock is ours."""
    defaults: dict[str, Any] = {
        "run": "r",
        "template": template or load("pod", "r"),
        "namespaces": ["ns"],
        "watch_lag": WatchLag(kube, "r", "ns"),
        "submitter": kube,
        "offset": Offset(0.0, 0.0),
        "scrapes": [],
    }
    return Session(kube=kube, observer=observer, **defaults | fields)

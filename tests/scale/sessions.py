"""Sessions of scenarios without a cluster, and a heartbeat that came back at once."""

from typing import Any, ClassVar

from perfdag.steps.scale.measure.clock import Offset
from perfdag.steps.scale.measure.observer import Observer
from perfdag.steps.scale.model.templates import Template, load
from perfdag.steps.scale.scenarios.session import Session


class Heart:
    """Heartbeats that came back at once."""

    lags: ClassVar[dict[str, list[Any]]] = {}
    requests: ClassVar[dict[str, int]] = {}
    note, p99 = "", 0.001

    def __init__(self) -> None:
        self.calls: list[str] = []

    def pause(self) -> None:
        self.calls.append("pause")

    def resume(self) -> None:
        self.calls.append("resume")

    def summary(self) -> list[dict[str, Any]]:
        return [{"beats": 1}]


def session_of(
    kube: Any, observer: Observer, template: Template | None = None, **fields: Any
) -> Session:
    """Return a session of run `r` in the namespace `ns`, on a server whose clock is ours."""
    defaults: dict[str, Any] = {
        "run": "r",
        "template": template or load("pod", "r"),
        "namespaces": ["ns"],
        "heartbeats": Heart(),
        "submitter": kube,
        "offset": Offset(0.0, 0.0),
        "scrapes": [],
    }
    return Session(kube=kube, observer=observer, **defaults | fields)

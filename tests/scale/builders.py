"""Records, submissions, observers and sessions without a cluster."""

from typing import Any

import pytest

from perfdag.steps.scale.generate import Submission
from perfdag.steps.scale.objects import Record, Template, load
from perfdag.steps.scale.rows import Row, rows_of
from perfdag.steps.scale.scenario import Context, Session
from perfdag.steps.scale.watch import Observer

SECOND = 1_000_000_000
BASE = 1_700_000_000 * SECOND


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What perfdag logged, without the fake API server."""
    return [item.getMessage() for item in caplog.records if item.name.startswith("perfdag")]


def record(kind: str, uid: str, owner: str = "", /, **stages: float) -> Record:
    """Stages in seconds of receive time after BASE."""
    new = Record(kind, uid, uid, "ns", owner)
    for stage, seconds in stages.items():
        new.put(stage, received_ns=BASE + round(seconds * SECOND))
    return new


def submissions_of(*names: str) -> list[Submission]:
    return [Submission(i, name, "ns", BASE, BASE, BASE + 1, name) for i, name in enumerate(names)]


def observer_of(*records: Record, **more: Any) -> Observer:
    observer = Observer(None, "r", [], ["ns"], **more)  # type: ignore[arg-type]
    observer.simulated = set()
    for item in records:
        observer.records[item.uid] = item
        if not item.owner:
            observer.roots.add(item.uid)
    return observer


def rows_for(
    kind: str, *records: Record, submitted: str = "a", until: float = 60, **more: Any
) -> list[Row]:
    """Rows of the workloads named by letters."""
    options = {"run": "r", "kind": kind, "until_ns": BASE + round(until * SECOND), **more}
    by_uid = {item.uid: item for item in records}
    return list(rows_of(submissions_of(*submitted), by_uid, **options))


def session_of(
    kube: Any, observer: Observer, template: Template | None = None, **fields: Any
) -> Session:
    """Return a session of run `r` in the namespace `ns`, on a server whose clock is ours."""
    defaults: dict[str, Any] = {
        "context": Context(run="r"),
        "namespaces": ["ns"],
        "submitter": kube,
        "members": 1,
    }
    return Session(
        kube, template=template or load("pod", "r"), observer=observer, **defaults | fields
    )

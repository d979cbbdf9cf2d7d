"""Sessions and what they leave behind."""

import asyncio
import contextlib
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any
from unittest.mock import AsyncMock, Mock

import orjson
import pytest

from perfdag.kube.client import KubeError, Resource
from perfdag.steps.scale.measure.errors import Offset
from perfdag.steps.scale.measure.generator import Schedule, Submission
from perfdag.steps.scale.measure.observer import Observer
from perfdag.steps.scale.model.stages import Record
from perfdag.steps.scale.model.templates import RUN_LABEL, load
from perfdag.steps.scale.scenarios import session, vmi
from perfdag.steps.scale.scenarios.vmi import Spec
from tests.fakes.api_server import ApiServer, client

from .sessions import session_of


class Server:
    """Pods by name: `stuck`, they are not deleted; `away`, it does not answer; `refused`, whose
    deletion is.
    """

    def __init__(
        self, *there: str, stuck: bool = False, away: bool = False, refused: Sequence[str] = ()
    ) -> None:
        self.refused = refused
        self.there, self.stuck, self.away, self.terminating = list(there), stuck, away, False
        self.observer, self.deleted = Observer(None, "r", [], ["ns"]), list[str]()  # type: ignore[arg-type]
        for name in there:
            self.make(name)

    def make(self, name: str) -> None:
        created = Record("Pod", name, name, "ns", "")
        created.put("created", received_ns=time.monotonic_ns())
        self.observer.adopt(created)

    async def resource(self, api_version: str, kind: str) -> Resource:
        return Resource(api_version, kind, f"{kind.lower()}s", True)

    async def get(self, *_: Any) -> Any:
        return {
            "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"} if self.terminating else {}
        }

    async def list(self, *_: Any, **__: Any) -> Any:
        if self.away:
            raise KubeError(0, "Unreachable", "no answer")
        return [
            {"metadata": {"name": name, "uid": name, "namespace": "ns", "labels": {RUN_LABEL: "r"}}}
            for name in self.there
        ]

    async def delete(self, resource: Resource, name: str, namespace: str) -> bool:
        if name in self.refused:
            raise KubeError(403, "Forbidden", "denied by a webhook")
        if not self.stuck:
            self.there.remove(name)
            self.deleted.append(name)
            self.observer.note(self.observer.records[name], "gone", 0, 0, time.monotonic_ns())
        return True


def left_by(
    server: Any, *names: str, in_flight: bool = False
) -> tuple[session.open_session, list[str]]:
    """A session that made pods of these names, about to be left, and what is told."""
    messages: list[str] = []
    template = load("pod", "r")
    opened = session.open_session(server, template, ["ns"], "r", log=messages.append)
    submissions = [
        Submission(i, name, "ns", 1, 1, 0 if in_flight else 2, name) for i, name in enumerate(names)
    ]
    opened.session = session_of(server, server.observer, template, submissions=submissions)
    return opened, messages


LEFT, REMEDY = "of run r in ns", "`perfdag scale delete --run r` deletes them"
DENIED = "Pod a was not deleted: denied by a webhook"


class TestLeaving:
    @pytest.fixture(autouse=True)
    def soon(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, seconds in {"LEFT_BEHIND": 0.5, "AGAIN": 0.05, "IN_FLIGHT": 0.0}.items():
            monkeypatch.setattr(session, name, seconds)

    @pytest.mark.parametrize(
        ("server", "meanwhile", "left"),
        [
            ({}, "", ""),
            ({"stuck": True}, "", f"left behind: 2 objects {LEFT}; {REMEDY}"),
            ({"stuck": True}, "terminating", ""),
            (
                {"away": True},
                "",
                f"whether objects {LEFT} are left is unknown (no answer); {REMEDY}",
            ),
            ({"refused": "a"}, "", f"left behind: 1 object {LEFT} ({DENIED}); {REMEDY}"),
            ({"refused": "ab"}, "terminating", ""),
            (
                {"refused": "a"},
                "away",
                f"whether objects {LEFT} are left is unknown ({DENIED}; no answer); {REMEDY}",
            ),
        ],
    )
    async def test_what_is_left_is_told_unless_it_goes_with_a_namespace_that_was_made_here(
        self, server: dict[str, Any], meanwhile: str, left: str
    ) -> None:
        """Leaving deletes a namespace, or loses the server, after the objects were waited for."""
        kube = Server("a", "b", **server)
        opened, message = left_by(kube, "a", "b")
        if meanwhile:
            opened.stack.callback(lambda: setattr(kube, meanwhile, True))
        await opened.close()
        assert message == ([left] if left else [])

    async def test_what_is_left_is_counted_where_what_was_opened_cannot_be_closed(self) -> None:

        opened, message = left_by(Server("a", "b", stuck=True), "a", "b")
        opened.stack.push_async_callback(
            AsyncMock(side_effect=KubeError(500, "InternalError", "no namespace was deleted"))
        )
        with pytest.raises(KubeError, match="no namespace was deleted"):
            await opened.close()
        assert message == [f"left behind: 2 objects {LEFT}; {REMEDY}"]

    async def test_a_second_interruption_is_told_and_the_rest_is_closed_all_the_same(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(session, "LEFT_BEHIND", 60.0)
        opened, message = left_by(Server("a", stuck=True), "a")
        closed: list[bool] = []
        opened.stack.callback(lambda: closed.append(True))
        closing = asyncio.create_task(opened.close())
        await asyncio.sleep(0.05)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert (closed, len(message)) == ([True], 1)
        assert "unknown (interrupted); `perfdag scale delete --run r`" in message[0]

    async def test_what_appears_while_the_rest_is_waited_for_is_deleted_too(self) -> None:
        """A busy server carries out a creation that was cut off when all was looked for already:
        the watch tells of it.
        """
        server = Server()
        opened, message = left_by(server, "a", in_flight=True)
        waits = server.observer.until

        async def until(done: Any, timeout: float) -> bool:
            if not server.deleted and not server.there:
                server.there.append("a")
                server.make("a")
            return await waits(done, timeout)

        server.observer.until = until  # type: ignore[method-assign]
        await opened.close()
        assert (server.deleted, message) == (["a"], [])


class Primed:
    """A cluster whose first VMI does not do what it should."""

    counts: dict[str, int] = {}

    def __init__(self, how: str) -> None:
        self.how, self.observer = how, Observer(None, "r", [], ["ns"])  # type: ignore[arg-type]

    async def submit(self, bodies: Sequence[bytes], namespace: str, tally: Counter[str]) -> str:
        if self.how == "refused":
            raise KubeError(403, "Forbidden", "quota exceeded")
        body = orjson.loads(bodies[-1])
        own = Record(body["kind"], uuid.uuid4().hex, body["metadata"]["name"], namespace, "")
        own.put("created", received_ns=time.monotonic_ns())
        self.observer.adopt(own)
        if self.how in ("waits", "failed"):
            own.error = "Unschedulable: no node"
        if self.how != "waits":
            stage = "failed" if self.how == "failed" else "running"
            say = partial(self.observer.note, own, stage, 0, 0, time.monotonic_ns())
            asyncio.get_running_loop().call_soon(say)
        return own.uid

    async def resource(self, api_version: str, kind: str) -> str:
        return kind

    async def delete(self, resource: str, name: str, namespace: str = "") -> bool:
        for item in list(self.observer.records.values()):
            if item.name == name and self.how != "stays":
                self.observer.note(item, "gone", 0, 0, time.monotonic_ns())
        return True


@pytest.mark.parametrize(
    ("how", "note"),
    [
        ("runs", ""),
        ("waits", "the primer did not run after 0.1 s: Unschedulable: no node"),
        ("failed", "the primer failed: Unschedulable: no node"),
        ("refused", "the primer was not created: quota exceeded"),
        ("stays", "the primer still existed when the measurement began"),
    ],
)
async def test_a_primer_that_did_not_do_its_work_is_noted(
    how: str, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(kube: Any, template: Any, namespaces: Any, run: str, **_: Any) -> Any:
        return contextlib.nullcontext(session_of(kube, kube.observer, template, run=run))

    monkeypatch.setattr(vmi, "open_session", opened)
    # all others go on at once, on a busy machine too
    monkeypatch.setattr(vmi, "LATE", 0.03 if how in ("stays", "waits") else 10.0)
    kube: Any = Primed(how)
    messages: list[str] = []
    spec = Spec(namespaces=["ns"], timeout=0.1, log=messages.append)
    async with vmi.primed_session(kube, spec) as primed_session:
        assert primed_session.notes == (
            [f"{note}; the figures may include first-time costs"] if note else []
        )
    slow = {
        "stays": "is still there 0.03 s after its deletion",
        "waits": "does not run 0.03 s after its creation; it has 0.1 s",
    }
    for cause, text in slow.items():
        assert any(text in message for message in messages) == (how == cause)


SHARED = """apiVersion: v1
kind: ConfigMap
metadata: {name: "size-${run}"}
---
apiVersion: v1
kind: Pod
metadata: {name: "${name}"}
"""


async def test_a_shared_object_is_made_once_for_a_run_and_deleted_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = Mock(side_effect=KubeError(403, "Forbidden", "no metrics"))
    monkeypatch.setattr(session, "server_offset", AsyncMock(return_value=Offset(0.0, 0.0)))
    monkeypatch.setattr(session, "AGAIN", 0.05)
    monkeypatch.setattr("perfdag.steps.scale.figures.api_metrics.clients", refused)
    monkeypatch.setattr(session, "LEFT_BEHIND", 0.5)
    server = ApiServer({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ns"}})
    template = load(SHARED, "r7")
    assert [document.kind for document in template.documents] == ["Pod"]
    async with (
        client(server) as kube,
        session.open_session(kube, template, ["ns"], "r7") as opened,
    ):
        await opened.create(3, Schedule(), 2)
        assert [name for name in server.names("ConfigMap") if "size" in name] == ["size-r7"]
        assert sorted(server.names("Pod")) == ["r7-0", "r7-1", "r7-2"]
        assert await opened.delete_all(2, 5.0) == 0
    assert server.of("ConfigMap") == server.of("Pod") == []

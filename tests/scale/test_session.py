"""What leaving a session tells of what is left, and what a primer that did not do its work leaves as a note."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import orjson
import pytest

from perfdag.kube.client import KubeError, Resource
from perfdag.steps.scale.measure.clock import Offset
from perfdag.steps.scale.measure.generator import Submission
from perfdag.steps.scale.measure.observer import Observer
from perfdag.steps.scale.model.records import Record
from perfdag.steps.scale.model.stages import VMI
from perfdag.steps.scale.model.templates import RUN_LABEL, load
from perfdag.steps.scale.scenarios import open_session, session, vmi

from .test_workloads import Heart


class Server:
    """Pods by name: `stuck`, they are not deleted; `away`, it does not answer; `refused`, whose deletion is."""

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
) -> tuple[open_session.open_session, list[str]]:
    """A session that made pods of these names, about to be left, and what is told."""
    messages: list[str] = []
    template = load("pod", "r")
    opened = open_session.open_session(server, template, ["ns"], "r", log=messages.append)
    run = session.Session(
        server, "r", template, ["ns"], server.observer, Heart(), None, Offset(0.0, 0.0), []
    )  # type: ignore[arg-type]
    run.submissions = [
        Submission(i, name, "ns", 1, 1, 0 if in_flight else 2, name) for i, name in enumerate(names)
    ]
    opened.session = run
    return opened, messages


class TestLeaving:
    @pytest.fixture(autouse=True)
    def soon(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, seconds in {"LEFT_BEHIND": 0.5, "AGAIN": 0.05, "IN_FLIGHT": 0.0}.items():
            monkeypatch.setattr(open_session, name, seconds)

    async def test_nothing_is_told_where_nothing_is_left(self) -> None:
        opened, message = left_by(Server("a", "b"), "a", "b")
        await opened.close()
        assert message == []

    async def test_what_cannot_be_deleted_is_told_with_what_deletes_it(self) -> None:
        opened, message = left_by(Server("a", "b", stuck=True), "a", "b")
        await opened.close()
        assert message == [
            "2 objects of run r are left in ns; `perfdag scale delete --run r` deletes them"
        ]

    async def test_what_goes_with_a_namespace_that_was_made_here_is_not_told(self) -> None:
        """Leaving deletes it after the objects were waited for."""
        server = Server("a", "b", stuck=True)
        opened, message = left_by(server, "a", "b")
        opened.stack.callback(lambda: setattr(server, "terminating", True))
        await opened.close()
        assert message == []

    async def test_what_a_cut_off_request_made_has_a_time_of_its_own_to_go(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """All the time was taken by the first pass."""
        limits: list[float] = []

        async def removed(*parameters: Any) -> int:
            limits.append(parameters[5])
            await asyncio.sleep(0.5 if len(limits) == 1 else 0.0)
            return 0

        monkeypatch.setattr(open_session, "remove", removed)
        opened, message = left_by(Server(), "a", in_flight=True)
        await opened.close()
        assert limits == [0.5, pytest.approx(0.5, abs=0.2)]
        assert message == []

    async def test_where_nobody_answers_that_is_told(self) -> None:
        opened, message = left_by(Server("a", away=True), "a")
        await opened.close()
        assert message == [
            "whether objects of run r are left in ns is unknown (no answer); `perfdag scale delete --run r` deletes them"
        ]

    async def test_what_was_refused_is_counted_with_the_reason(self) -> None:
        opened, message = left_by(Server("a", "b", refused="a"), "a", "b")
        await opened.close()
        why = "Pod a was not deleted: denied by a webhook"
        assert message == [
            f"1 objects of run r are left in ns ({why}); `perfdag scale delete --run r` deletes them"
        ]

    async def test_what_was_refused_and_goes_with_its_namespace_is_not_told(self) -> None:
        server = Server("a", refused="a")
        opened, message = left_by(server, "a")
        opened.stack.callback(lambda: setattr(server, "terminating", True))
        await opened.close()
        assert message == []

    async def test_where_nobody_answers_any_more_the_refusal_is_told_too(self) -> None:
        server = Server("a", refused="a")
        opened, message = left_by(server, "a")
        opened.stack.callback(lambda: setattr(server, "away", True))
        await opened.close()
        assert (
            "is unknown (Pod a was not deleted: denied by a webhook; no answer); `perfdag scale delete"
            in message[0]
        )

    async def test_what_is_left_is_counted_where_what_was_opened_cannot_be_closed(self) -> None:
        async def fails() -> None:
            raise KubeError(500, "InternalError", "no namespace was deleted")

        opened, message = left_by(Server("a", "b", stuck=True), "a", "b")
        opened.stack.push_async_callback(fails)
        with pytest.raises(KubeError, match="no namespace was deleted"):
            await opened.close()
        assert message == [
            "2 objects of run r are left in ns; `perfdag scale delete --run r` deletes them"
        ]

    async def test_a_second_interruption_is_told_and_the_rest_is_closed_all_the_same(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(open_session, "LEFT_BEHIND", 60.0)
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
        """A busy server carries out a creation that was cut off when all was looked for already: the watch tells of it."""
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

    def __init__(self, how: str) -> None:
        self.how, self.counts = how, dict[str, int]()
        self.observer = Observer(None, "r", [], ["ns"])  # type: ignore[arg-type]

    async def submit(self, bodies: Sequence[bytes], namespace: str, tally: Counter[str]) -> str:
        if self.how == "refused":
            raise KubeError(403, "Forbidden", "quota exceeded")
        name = str(orjson.loads(bodies[-1])["metadata"]["name"])
        created = Record(VMI, name, name, namespace, "")
        for stage in (
            "created",
            *{"runs": ("running",), "stays": ("running",), "failed": ("failed",)}.get(self.how, ()),
        ):
            created.put(stage, received_ns=time.monotonic_ns())
        created.error = "" if self.how in ("runs", "stays") else "Unschedulable: no node"
        self.observer.adopt(created)
        return name

    async def resource(self, api_version: str, kind: str) -> str:
        return kind

    async def delete(self, resource: str, name: str, namespace: str) -> bool:
        if self.how not in ("stays", "refused"):
            self.observer.note(self.observer.records[name], "gone", 0, 0, time.monotonic_ns())
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
    @contextlib.asynccontextmanager
    async def opened(
        kube: Any, template: Any, namespaces: Any, run: str, **_: Any
    ) -> AsyncIterator[session.Session]:
        yield session.Session(
            kube, run, template, namespaces, kube.observer, Heart(), kube, Offset(0.0, 0.0), []
        )  # type: ignore[arg-type]

    monkeypatch.setattr(vmi, "open_session", opened)
    kube: Any = Primed(how)
    async with vmi.primed_session(kube, vmi.Spec(namespaces=["ns"], timeout=0.1)) as primed_session:
        assert primed_session.notes == (
            [f"{note}; the figures may include first-time costs"] if note else []
        )

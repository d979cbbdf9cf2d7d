"""What a step says on its Workflow, by which Argo decides whether it is done anew."""

import asyncio
from typing import Any

import pytest

from perfdag.kube import KubeError
from perfdag.podspec import STEP
from perfdag.steps.marks import step

from .test_plan_step import place


@pytest.mark.parametrize(
    ("code", "said"),
    [(0, ["began"]), (1, ["began", "ended"]), (None, ["began", "ended"]), (-9, ["began"])],
)
def test_a_step_that_fails_by_itself_says_so_and_one_that_is_ended_does_not(
    code: int | None, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []

    def work() -> int:
        if code is None:
            raise KubeError(403, "Forbidden", "no")
        if code < 0:
            raise KeyboardInterrupt
        return code

    class Api:
        async def resource(self, *told: str) -> None: ...

        async def patch(self, kind: None, name: str, body: Any, namespace: str) -> None:
            heard.append(body["metadata"]["annotations"][STEP])

    monkeypatch.setattr("perfdag.kube.run", lambda todo: asyncio.run(todo(Api())))
    if code is None or code < 0:
        with pytest.raises((KubeError, KeyboardInterrupt)):
            step(place(), "plan", work)
    else:
        assert step(place(), "plan", work) == code
    assert heard == [f"uid plan {each}" for each in said]


def test_a_step_is_done_where_the_api_server_is_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def away(work: Any) -> None:
        raise KubeError(0, "Unreachable", "connection refused")

    monkeypatch.setattr("perfdag.kube.run", away)
    assert step(place(), "finish", lambda: 3) == 3
    assert capsys.readouterr().err.count("connection refused") == 2

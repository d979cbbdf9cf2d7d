"""What a step says on its Workflow, by which Argo decides whether it is done anew."""

from pathlib import Path

import pytest

from perfdag.kube.client import KubeError
from perfdag.kube.patch import STEP
from perfdag.steps.pods.context import run_step
from perfdag.suite.document import BadDocument, Problem
from tests.fakes.api_server import ApiServer

from .objects import workflow_of
from .test_plan_step import place


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (0, ["began"]),
        (1, ["began", "ended"]),
        (None, ["began", "ended"]),
        (2, ["began", "refused"]),
        (-9, ["began"]),
    ],
)
def test_a_step_that_fails_by_itself_says_so_and_one_that_is_ended_does_not(
    code: int | None, message: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said = tmp_path / "termination-log"
    said.touch()
    monkeypatch.setattr("perfdag.steps.pods.context.TERMINATION_MESSAGE", said)
    server = ApiServer(workflow_of(place()))

    def work() -> int:
        if code is None:
            raise KubeError(403, "Forbidden", "no")
        if code == 2:
            raise BadDocument([Problem("bad", f"bad line {n}", "", "s.yaml", n) for n in (3, 7, 9)])
        if code < 0:
            raise KeyboardInterrupt
        return code

    monkeypatch.setattr("perfdag.kube.client.Kube", server.client)
    if code not in (0, 1):
        with pytest.raises((KubeError, BadDocument, KeyboardInterrupt)):
            run_step(place(), "plan", work)
    else:
        assert run_step(place(), "plan", work) == code
    texts = {2: "s.yaml:3: bad line 3 (and 2 more)", None: "no"}
    assert said.read_text() == texts.get(code, "")
    states = [
        each.body["metadata"]["annotations"][STEP]
        for each in server.requests
        if each.method == "PATCH"
    ]
    assert states == [f"uid plan {each}" for each in message]


def test_a_step_is_done_where_the_api_server_is_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = ApiServer()
    server.fail(".", 0, "connection refused")
    monkeypatch.setattr("perfdag.kube.client.Kube", server.client)
    assert run_step(place(), "finish", lambda: 3) == 3
    assert capsys.readouterr().err.count("connection refused") == 2

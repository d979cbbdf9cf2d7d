"""What `status` and the watch of a run say that it waits for."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from perfdag.app.cluster.watch import follow_run
from perfdag.store.base import StoreError
from perfdag.store.wait import print_wait, seconds_away
from tests.conftest import CommandLine
from tests.fakes.api_server import Answer, ApiServer, kubeconfig

from .steps.test_plan_step import place

RUN = "20260101T020000Z-0a1b2c3d"
S3, NODE, WATCHDOG = (
    "S3 has not answered for 2 min",
    "node-1 has been NotReady for 2 min",
    "finish has waited for the watchdog for 2 min",
)
AWAY, BACK = b"waiting for the store: no answer for 130 s\n", b"the store answers again\n"
SAMPLE = b"2/4 ok command x=1 repetition 1\n"


def ago(seconds: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat(timespec="seconds")


def workflow(nodes: dict[str, Any], phase: str = "Running") -> dict[str, Any]:
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {
            "name": "w",
            "namespace": "bench",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"perfdag/run": RUN},
        },
        "spec": {},
        "status": {"phase": phase, "progress": "2/4", "nodes": nodes},
    }


def pod(name: str, node: str, *, lost: bool = False, **labels: str) -> dict[str, Any]:
    container = {"name": "main", "ready": True, "state": {"running": {}}}
    conditions = [{"type": "Ready", "status": "False" if lost else "True"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "bench",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"workflows.argoproj.io/workflow": "w", **labels},
        },
        "spec": {"nodeName": node, "containers": [{"name": "main"}]},
        "status": {
            "phase": "Running",
            "containerStatuses": [container],
            "conditions": conditions,
        },
    }


def node(seconds: float, ready: str = "Unknown") -> dict[str, Any]:
    condition = {"type": "Ready", "status": ready, "lastTransitionTime": ago(seconds)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "node-1"},
        "status": {"conditions": [condition]},
    }


def steps(seconds: float, confirm: str = "Skipped", watchdog: str = "Running") -> dict[str, Any]:
    return {
        "b": {"templateName": "batches", "phase": "Succeeded", "finishedAt": ago(seconds)},
        "c": {"templateName": "confirm", "phase": confirm, "finishedAt": ago(seconds)},
        "d": {"templateName": "watchdog", "type": "Retry", "phase": watchdog},
    }


LEAD = {"perfdag/batch": "0", "perfdag/rank": "0", "perfdag/attempt": "0"}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """A run whose lead measures on node-1 and whose watchdog is on node-2."""
    played = ApiServer(
        workflow({}), pod("w-rank-1", "node-1", **LEAD), pod("w-watchdog-pod-2", "node-2")
    )
    write_logs(played, SAMPLE, b"")
    with kubeconfig(played, tmp_path, monkeypatch):
        yield played


def write_logs(server: ApiServer, lead: bytes, watchdog: bytes) -> None:
    server.on("GET .*w-rank-1/log", lambda _: Answer(200, lead))
    server.on("GET .*w-watchdog-pod-2/log", lambda _: Answer(200, watchdog))


@pytest.mark.parametrize(
    ("lead", "watchdog", "shown", "hidden"),
    [
        (SAMPLE, AWAY, [S3, "repetition 1"], []),
        (SAMPLE + AWAY, b"", [S3, "repetition 1"], ["waiting for"]),
        (SAMPLE + AWAY + BACK, AWAY + BACK, ["repetition 1"], ["S3", "answers again"]),
        (SAMPLE, AWAY.replace(b"130", b"9"), ["repetition 1"], ["S3"]),
        (SAMPLE, b"", ["repetition 1"], ["S3"]),
    ],
)
def test_a_store_that_is_away_is_read_from_the_logs(
    lead: bytes,
    watchdog: bytes,
    shown: list[str],
    hidden: list[str],
    server: ApiServer,
    cli: CommandLine,
) -> None:
    write_logs(server, lead, watchdog)
    out = cli(["status", "w", "--namespace", "bench"]).out
    assert [text for text in shown if text not in out] == []
    assert [text for text in hidden if text in out] == []


@pytest.mark.parametrize(
    ("seconds", "ready", "lost", "forbidden", "shown"),
    [
        (130, "Unknown", True, False, [NODE, "node node-1 was lost"]),
        (130, "False", True, False, [NODE]),
        (0, "Unknown", True, False, ["node node-1 was lost"]),
        (130, "Unknown", True, True, ["node node-1 was lost"]),
        (130, "True", True, False, ["node node-1 was lost"]),
        (130, "Unknown", False, False, []),
    ],
)
def test_the_nodes_of_pods_in_trouble_are_read_where_the_user_may(
    seconds: float,
    ready: str,
    lost: bool,
    forbidden: bool,
    shown: list[str],
    server: ApiServer,
    cli: CommandLine,
) -> None:
    server.add(pod("w-rank-1", "node-1", lost=lost, **LEAD), node(seconds, ready))
    if forbidden:
        server.fail("GET /api/v1/nodes", 403)
        server.fail("GET .*/log", 403)
    out = cli(["status", "w", "--namespace", "bench"]).out
    texts = [NODE, "node node-1 was lost", "NotReady"]
    expected = [*shown, *(["NotReady"] if NODE in shown else [])]
    assert {text for text in texts if text in out} >= set(expected)
    assert ("NotReady" in out) == (NODE in shown)
    assert server.count("GET /api/v1/nodes/") == (1 if lost else 0), "healthy pods cost nothing"


@pytest.mark.parametrize(
    ("nodes", "waits"),  # the times of steps are made when the test runs
    [
        (lambda: steps(130), True),
        (lambda: steps(130, watchdog="Succeeded"), False),
        (lambda: steps(130, confirm="Running"), False),
        (lambda: steps(0), False),
        (dict, False),
    ],
)
def test_finish_waits_for_a_watchdog_once_the_batches_are_over(
    nodes: Callable[[], dict[str, Any]],
    waits: bool,
    server: ApiServer,
    cli: CommandLine,
) -> None:
    server.add(workflow(nodes()))
    assert (WATCHDOG in cli(["status", "w", "--namespace", "bench"]).out) == waits
    assert (f'"{WATCHDOG}"' in cli(["status", "w", "--namespace", "bench", "--json"]).out) == waits


async def test_a_watch_says_once_what_the_run_waits_for(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfdag.app.cluster.watch.POLL_INTERVAL", 0.01)
    write_logs(server, SAMPLE, AWAY)
    server.add(workflow(steps(130)), pod("w-rank-1", "node-1", lost=True, **LEAD), node(130))
    lines: list[str] = []
    looks = iter(range(1000))

    def end_later(request: Any) -> dict[str, Any] | None:
        return workflow(steps(130), "Failed") if next(looks) >= 3 else None

    server.on("GET .*/workflows/w$", end_later)
    assert await follow_run("w", "bench", lines.append, lines.append) == 1
    [line] = [line for line in lines if S3 in line]
    assert [text for text in (S3, NODE, WATCHDOG) if text not in line] == []


def test_a_pod_prints_how_long_its_store_is_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setattr("perfdag.store.s3.REPORT_SECONDS", 0.0)
    monkeypatch.setattr("perfdag.steps.runner.pod_context.PATIENCE", 0.1)
    store = replace(place(), store="s3://b/x").open()
    with pytest.raises(StoreError, match="cannot be reached"):
        store.get("a")
    assert capsys.readouterr().out.startswith("waiting for the store: no answer for ")


def test_the_newest_line_about_the_store_counts(capsys: pytest.CaptureFixture[str]) -> None:
    for seconds, expected in ((42.3, 42.0), (0.0, 0.0), (7.0, 7.0)):
        print_wait(seconds)
        assert seconds_away([*capsys.readouterr().out.splitlines(), "3/4 ok x"]) == expected
    assert seconds_away(["waiting for the store: store s3://b/x: cannot be reached"]) == 0

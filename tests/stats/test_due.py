"""The step that looks whether a suite's nights came, with a webhook and an API server that names the cluster."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from perfdag.cases import Rules
from perfdag.checks import Check
from perfdag.cli import main
from perfdag.gate import check, store_record
from perfdag.missed import overdue
from perfdag.store import Store, open_store
from tests.apiserver import Answering, serving
from tests.stats.receiver import Receiver
from tests.stats.synthetic import START, nights, run_id


class Server(Answering, BaseHTTPRequestHandler):
    """An API server whose namespace kube-system has the uid `blue`, or that forbids to read it."""

    allowed = True

    def do_GET(self) -> None:
        self.answer(
            200 if self.allowed and self.path == "/api/v1/namespaces/kube-system" else 403,
            {"metadata": {"uid": "blue"}},
        )


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, webhook: str) -> Iterator[Store]:
    """The store of a pod of the cluster `blue`."""
    Server.allowed = True
    monkeypatch.setenv("PERFDAG_WEBHOOK", webhook)
    monkeypatch.setenv("PERFDAG_STORE", "claim://bench")
    monkeypatch.setattr("perfdag.steps.place.STORE", str(tmp_path / "store"))
    with serving(Server, tmp_path, monkeypatch):
        yield open_store(str(tmp_path / "store"))


def due(hours: float) -> int:
    return main(["step", "due", "--suite", "net", "--max-age", str(hours)])


def age(night: int) -> float:
    return (datetime.now(UTC) - START - timedelta(days=night)).total_seconds() / 3600


def test_a_missed_night_is_told_once_and_nothing_else_of_the_newest_run(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    nights(store, 40, lambda n, p: 1e10 * (0.85 if n >= 34 else 1.0))
    assert due(age(39) + 1) == 0  # a regression of that night is not this step's matter
    assert Receiver.got == []
    assert [due(age(39) - 1) for _ in range(2)] == [3, 3]
    assert [each["kind"] for each in Receiver.got] == ["stale"]
    assert "STALE net: the newest scheduled run is" in capsys.readouterr().out
    nights(store, 1, lambda n, p: 1e10, first=40)
    assert due(age(40) + 1) == 0
    assert due(age(40) - 1) == 3
    assert len(Receiver.got) == 2


def test_what_it_tells_leaves_what_the_gate_told(store: Store) -> None:
    nights(store, 3, lambda n, p: 1e9)
    rules = Rules([Check(metric="throughput", op=">", value=9e9)])
    store_record(store, check(store, "net", run_id(2), rules))
    assert due(1) == 3
    assert not any(alert.fresh for alert in check(store, "net", run_id(2), rules).alerts)


def test_runs_of_another_cluster_and_by_hand_do_not_count(store: Store) -> None:
    nights(store, 3, lambda n, p: 1e10)
    nights(store, 2, lambda n, p: 1e10, first=10, trigger="manual")
    nights(store, 2, lambda n, p: 1e10, first=20, cluster="green")
    assert due(age(2) + 1) == 0
    assert due(age(2) - 1) == 3


def test_before_the_first_night_there_is_time_and_then_it_is_told(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    nights(store, 2, lambda n, p: 1e10, trigger="manual")
    assert [due(26), due(26)] == [0, 0]
    assert Receiver.got == []
    assert "no scheduled run yet; looked for since" in capsys.readouterr().out
    assert overdue(store, "net", 26, "blue", datetime.now(UTC) + timedelta(hours=25))[1] is None
    late = overdue(store, "net", 26, "blue", datetime.now(UTC) + timedelta(hours=27))[1]
    assert late is not None
    assert late.fresh
    assert [due(0), due(0)] == [3, 3]
    assert [each["title"] for each in Receiver.got] == [
        "STALE net: no scheduled run has any results"
    ]


def test_a_webhook_that_is_away_is_tried_again(store: Store) -> None:
    nights(store, 3, lambda n, p: 1e10)
    Receiver.status = 500
    assert due(1) == 4
    Receiver.status = 200
    assert [due(1), due(1)] == [3, 3]
    assert len(Receiver.got) == 1


def test_where_the_cluster_may_not_be_read_runs_have_no_cluster_either(store: Store) -> None:
    Server.allowed = False
    nights(store, 3, lambda n, p: 1e10, cluster=None)
    assert due(age(2) + 1) == 0
    assert due(age(2) - 1) == 3

"""The journal of a benchmark of VMIs: its files reach the store while it measures."""

import threading
from pathlib import Path

import pytest

from perfdag.steps.scale.runai import run_file
from perfdag.steps.scale.scenarios.vmi import Spec
from perfdag.store.base import StoreError


class Kept(dict[str, bytes]):
    """What was kept, and a way to wait for a number of copies."""

    def __init__(self, error: StoreError | None = None) -> None:
        self.error, self.copies = error, threading.Semaphore(0)

    def __call__(self, name: str, data: bytes) -> None:
        self.copies.release()
        if self.error:
            raise self.error
        self[name] = data

    def wait(self) -> None:
        assert self.copies.acquire(timeout=20)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_file, "PERIOD", 0.02)


def test_every_change_of_a_file_is_kept_under_the_id_of_its_run(tmp_path: Path) -> None:
    spec, kept = Spec(), Kept()
    with run_file.kept_journal(spec, tmp_path, kept):
        assert spec.journal, "the session writes it"
        for text in ("first", "second, longer"):
            (tmp_path / "r1-2").mkdir(exist_ok=True)
            new = tmp_path / "r1-2" / "observed.new"
            new.write_text(text)
            new.replace(tmp_path / "r1-2" / "observed.jsonl")
            kept.wait()
            while kept.get("r1-2/observed.jsonl") != text.encode():
                kept.wait()
    assert kept.keys() == {"r1-2/observed.jsonl"}, "a file that is not complete is not kept"


def test_a_store_that_fails_ends_the_journal_and_not_the_benchmark(tmp_path: Path) -> None:
    log_lines: list[str] = []
    (tmp_path / "r1").mkdir()
    (tmp_path / "r1" / "run.json").write_text("{}")
    kept = Kept(StoreError("no space"))
    with run_file.kept_journal(Spec(log=log_lines.append), tmp_path, kept):
        kept.wait()
    assert log_lines == ["the journal is not kept any more: no space"]

"""The reasons of missing samples: precedence, and each channel there and back."""

from pathlib import Path

import pytest

from perfdag.results.missing_reason import (
    NOTES,
    UNKNOWN,
    Flight,
    MissingReason,
    as_annotation,
    as_termination_message,
    budget_spent,
    flights_from_annotations,
    forget_all,
    forget_batch,
    from_annotations,
    from_termination_messages,
    reason_for,
    samples_in_flight,
    stored_crashes,
    stored_reasons,
    write,
    write_crash,
)
from perfdag.store.folder import FolderStore

FLIGHT = Flight("00000000000000aa-1", 2, "node-1", "2026-01-01T00:00:00Z", "killed")
BUDGET, BATCH = budget_spent(100, 0), MissingReason("batch", "failed", "no node", 0)
PLAN, WORKFLOW = (
    MissingReason("plan", "failed", "forbidden"),
    MissingReason("workflow", "missing", "stopped"),
)


@pytest.mark.parametrize(
    ("reasons", "batch", "answer"),
    [
        ([WORKFLOW, PLAN, BATCH, BUDGET], 0, BUDGET),
        ([WORKFLOW, PLAN, BATCH], 0, BATCH),
        ([WORKFLOW, PLAN, BATCH], 1, PLAN),
        ([WORKFLOW, BATCH], None, WORKFLOW),
        ([BATCH, BUDGET], 1, UNKNOWN),
        ([], 0, UNKNOWN),
    ],
)
def test_precedence(reasons: list[MissingReason], batch: int | None, answer: MissingReason) -> None:
    assert reason_for(reasons, batch) == answer


def test_only_the_sample_in_flight_has_its_own_reason() -> None:
    reasons = [BATCH, FLIGHT.reason()]
    assert reason_for(reasons, 0, FLIGHT.sample) == FLIGHT.reason()
    assert reason_for(reasons, 0, "00000000000000aa-2") == BATCH


def test_notes_in_the_store(tmp_path: Path) -> None:
    store = FolderStore(str(tmp_path))
    for reason in (BUDGET, FLIGHT.reason(), BATCH, PLAN, WORKFLOW):
        write(store, "r", reason)
    assert set(stored_reasons(store, "r")) == {BUDGET, FLIGHT.reason(), BATCH, PLAN, WORKFLOW}
    forget_batch(store, "r", 0)
    assert set(stored_reasons(store, "r")) == {BUDGET, FLIGHT.reason(), PLAN, WORKFLOW}
    forget_all(store, "r")
    assert stored_reasons(store, "r") == []


def test_annotation_of_the_workflow() -> None:
    both = as_annotation("u 1", {3: "x"}, {FLIGHT.sample: (3, FLIGHT)})
    assert from_annotations("u 1", both) == {3: "x"}
    assert flights_from_annotations("u 1", both) == {FLIGHT.sample: (3, FLIGHT)}
    assert flights_from_annotations("u 2", both) == {}
    assert from_annotations("u 1", as_annotation("u 1", {3: "x" * 500})) == {3: "x" * 400}
    assert from_annotations("u 2", as_annotation("u 1", {3: "x"})) == {}, "another attempt"
    assert as_annotation("u 1", {}) == {}
    assert len(as_annotation("u 1", dict.fromkeys(range(1000), "x" * 500))[NOTES]) < 60_010


def test_termination_message_and_crashes(tmp_path: Path) -> None:
    samples = {"00000000000000aa-1": "one (1/2)", "00000000000000bb-w2": "two (warm-up)"}
    message = as_termination_message(samples)
    assert message == "measuring one (1/2) and 1 beside it [00000000000000aa-1 00000000000000bb-w2]"
    assert samples_in_flight(message) == list(samples)
    assert from_termination_messages([message, ""]) == ["00000000000000aa", "00000000000000bb"]
    assert as_termination_message({}) == ""
    store = FolderStore(str(tmp_path))
    write_crash(store, "r", "u-b0", "0", ["00000000000000aa"], "OOMKilled")
    assert stored_crashes(store, "r", "u-b0") == {"00000000000000aa": ["OOMKilled"]}
    assert stored_crashes(store, "r", "u-b1") == {}

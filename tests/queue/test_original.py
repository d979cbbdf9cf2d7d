"""The original's messages get the original's answers."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from perfdag.steps.queue.frontend import Frontend
from perfdag.steps.queue.protocol import Address
from tests.queue.conversation import hold, scrape

RECORDED = Path(__file__).parent.parent / "recorded" / "queue" / "original.json"
ANY = Address("127.0.0.1", 0)


@pytest.fixture
async def frontend() -> AsyncIterator[Frontend]:
    frontend = Frontend(["sleep"], 3)
    await frontend.start(ANY, ANY, ANY)
    yield frontend
    await frontend.stop()


def plain(answer: Any) -> Any:
    """An answer less the time that passed and the JSON library's own words."""
    if not isinstance(answer, dict):
        return answer
    error = answer["Error"].rstrip("\n")
    if "JSON failed" in error:
        error = error.partition("JSON failed")[0]
    return {**answer, "Error": error, **({"Waittime": 0} if "Waittime" in answer else {})}


async def test_replayed_conversation(frontend: Frontend) -> None:
    recorded = json.loads(RECORDED.read_text())
    clients, workers, metrics = frontend.ports
    answers = await hold(clients, workers)
    for ours, theirs in zip(answers, recorded["heard"], strict=True):
        assert ours[:2] == theirs[:2]
        mine, original = plain(ours[2]), plain(theirs[2])
        assert {key: mine[key] for key in original} == original, ours[:2]
        assert mine.keys() - original.keys() <= {"Running"}
    mine = await scrape(metrics)
    assert set(recorded["metrics"]) <= set(mine)
    for name, value in recorded["metrics"].items():
        if "max" not in name:
            assert mine[name] == value, name

"""The original's messages get the original's answers."""

import json
from pathlib import Path
from typing import Any

from tests.queue.conftest import Start
from tests.queue.conversation import hold, scrape

RECORDED = Path(__file__).parent.parent / "recorded" / "queue" / "original.json"


def plain(answer: Any) -> Any:
    """An answer less the time that passed and the JSON library's own words."""
    if not isinstance(answer, dict):
        return answer
    error = answer["Error"].rstrip("\n")
    if "JSON failed" in error:
        error = error.partition("JSON failed")[0]
    return {**answer, "Error": error, **({"Waittime": 0} if "Waittime" in answer else {})}


async def test_replayed_conversation(start: Start) -> None:
    recorded = json.loads(RECORDED.read_text())
    clients, workers, metrics = (await start("sleep", bound=3)).ports
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

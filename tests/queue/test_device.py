"""Device and limit of an item for local backends."""

from pathlib import Path
from typing import Any

import pytest

from perfdag.benchmark.contract import Gang
from perfdag.hosts.local import LocalHost
from perfdag.outcome import Failed
from perfdag.shape import Shape
from perfdag.steps.queue.scaling_benchmark import QueueScaling, QueueScalingParams
from perfdag.steps.queue.validate.targets import Local
from perfdag.steps.queue.validate.validate import Plan, validate


@pytest.mark.parametrize(
    "own", [{"glob": "/dev/null"}, {"item_limit": 3}, {"glob": "/dev/null", "item_limit": 3}]
)
def test_what_belongs_to_backends_here_is_refused_with_a_deployment(own: dict[str, Any]) -> None:
    params = {"command": ["/bin/cat", "FILENAME"], "glob": "/dev/null"}
    assert (
        QueueScaling().check(QueueScalingParams.model_validate({**params, "item_limit": 3}), None)
        == []
    )
    raised = QueueScaling().check(
        QueueScalingParams.model_validate({"deployment": "d", **own}), None
    )
    assert raised == [
        f"{' and '.join(own)}: set them in the manifest of the Deployment (glob, limit)"
    ]


async def test_the_first_file_of_a_glob_is_the_device(tmp_path: Path) -> None:
    for name in ("card0", "card1"):
        (tmp_path / name).write_text("#!/bin/sh\nsleep 0.05\n")
    async with Local(["/bin/sh", "FILENAME"], 1, glob=f"{tmp_path}/card*") as local:
        verdict = await validate(local.target, local.load, Plan(1), print)
    assert verdict.passed
    (node,) = verdict.spread.values()
    assert node["devices"].keys() == {"card0"}


def test_the_benchmark_hands_device_and_limit_of_an_item_to_its_backends(tmp_path: Path) -> None:
    """An item that runs past its limit is killed, which fails it."""
    (tmp_path / "card0").write_text("#!/bin/sh\nsleep 30\n")
    own = {
        "command": ["/bin/sh", "FILENAME"],
        "glob": f"{tmp_path}/card*",
        "item_limit": 0.2,
        "limit": 1,
        "timeout": 5,
    }
    params = QueueScalingParams.model_validate(own)
    benchmark = QueueScaling()
    with pytest.raises(Failed, match=r"/bin/sh ran past its limit of 0.2 s") as raised:
        benchmark.parse(
            benchmark.run(Gang([LocalHost()], Shape(), 60, str(tmp_path)), params), params
        )
    assert {
        str(row.subject).rpartition("/")[2]
        for row in raised.value.measurements
        if row.metric == "failures"
    } == {"card0"}

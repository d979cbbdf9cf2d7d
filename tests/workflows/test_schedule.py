"""What `perfdag render` makes of a suite and its schedule."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from perfdag.workflows.runs import check_schedule
from tests.conftest import CommandLine

SUITE = (
    "name: nightly\npriority: 7\nstore: s3://bench/own\nentries:\n  - benchmark: command\n"
    "    params: {argv: [ls]}\n"
)


def rendered(tmp_path: Path, cli: CommandLine, *more: str) -> list[dict[str, Any]]:
    (tmp_path / "nightly.yaml").write_text(SUITE)
    return list(yaml.safe_load_all(cli(["render", "nightly.yaml", *more]).out))


def parameters_of(cron: dict[str, Any]) -> dict[str, str]:
    parameters = cron["spec"]["workflowSpec"]["arguments"]["parameters"]
    return {each["name"]: each["value"] for each in parameters}


def test_a_schedule_carries_the_priority_and_its_age_is_checked(
    tmp_path: Path, cli: CommandLine
) -> None:
    schedule = ("--schedule", "41 4 * * *")
    _, age, nightly = rendered(tmp_path, cli, *schedule)
    assert parameters_of(nightly) == {"suite": "perfdag-suite-nightly"}
    assert nightly["spec"]["workflowSpec"]["priority"] == 7
    assert parameters_of(age) == {"suitename": "nightly", "maxage": "93603s"}
    _, age, _ = rendered(tmp_path, cli, *schedule, "--max-age", "2h")
    assert parameters_of(age)["maxage"] == "7200s"


def test_a_workflow_carries_its_suite(tmp_path: Path, cli: CommandLine) -> None:
    [once] = rendered(tmp_path, cli)
    assert once["spec"]["arguments"] == {"artifacts": [{"name": "suite", "raw": {"data": SUITE}}]}
    assert once["spec"]["priority"] == 7
    assert "name" not in once["metadata"], "kubectl create makes it, each time another"


def test_a_bad_schedule_or_store_renders_nothing(tmp_path: Path, cli: CommandLine) -> None:
    (tmp_path / "nightly.yaml").write_text(SUITE)
    for words, message in (
        (["--schedule", "0 14 * * 1-5"], "does not run daily; set the maximum age"),
        (["--schedule", "*/7 25 * * *"], "hour '25': write 0 to 23"),
        (["--schedule", "0 4 * *", "--max-age", "26h"], "write five fields"),
        (["--store-secret", "My_Secret"], "'My_Secret' is no name in Kubernetes"),
        (["--images", "registry.example/all:1"], "is one image for all benchmarks; write {name}"),
        (["--images", "r.example/{name}:1 "], "is not an image"),
        (["--pull-secret", "a..b"], "'' is no name in Kubernetes"),
        (["--lock-namespace", "a.b"], "'a.b' is no name in Kubernetes"),
        (["--namespace", "b" * 64], "is no name in Kubernetes"),
        (["--base", "--store", "./here"], "pods share no folder"),
    ):
        captured = cli(["render", "nightly.yaml", *words], 2)
        assert captured.out == ""
        assert message in captured.err


@pytest.mark.parametrize(
    "schedule",
    ["0 4 * * *", "*/7 2 29 2 *", "0 4 31 1 MON-fri", "1,2-5/2 0/6 1 JAN ?", "@daily"],
)
def test_schedules_that_argo_reads(schedule: str) -> None:
    check_schedule(schedule)


@pytest.mark.parametrize(
    "schedule",
    [
        *("61 4 * * *", "*/0 4 * * *", "0 4 32 * *", "0 4 * 13 *", "0 4 * * 7", "0 4 * * 8"),
        *("0 0 4 * * *", "0 4 * * 3L", "5-1 4 * * *"),
        *("0 4 0 * *", ", 4 * * *", "1.5 4 * * *", "@fortnightly", ""),
    ],
)
def test_schedules_that_are_none(schedule: str) -> None:
    with pytest.raises(ValueError, match="schedule '"):
        check_schedule(schedule)


def test_a_suite_that_no_object_may_hold_renders_nothing(tmp_path: Path, cli: CommandLine) -> None:
    points = "".join(
        f"        - {{expected: 0.1, env: {{A_VARIABLE_OF_THIS_POINT: '{number:06}'}}}}\n"
        for number in range(4500)
    )
    (tmp_path / "nightly.yaml").write_text(f"{SUITE}    permutations:\n      explicit:\n{points}")
    for words in (["--schedule", "0 2 * * *"], []):
        captured = cli(["render", "nightly.yaml", *words], 2)
        assert captured.out == ""
        assert re.search(
            "bytes are more than one object may have .*; .*, or split it", captured.err
        )

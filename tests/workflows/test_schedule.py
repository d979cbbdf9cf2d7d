"""Schedules of cron: refused where Argo would, the longest wait between runs, and what `render --schedule` makes of them."""

import base64
import re
from pathlib import Path

import pytest
import yaml

from perfdag.cli import main
from perfdag.workflows import lint, runs
from perfdag.workflows.schedule import longest_gap, parse

SUITE = "name: nightly\npriority: 7\nstore: s3://bench/own\nentries:\n  - benchmark: command\n    params: {argv: [ls]}\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("61 25 * * *", "minute '61': 61 is not 0 to 59; hour '25': 25 is not 0 to 23"),
        (
            "0 2 0 13 7",
            "day '0': 0 is not 1 to 31; month '13': 13 is not 1 to 12 or jan.*weekday '7': 7 is not 0 to 6 or sun",
        ),
        ("0 2 * * monday", "monday is not 0 to 6 or sun"),
        ("*/0 * * * *", "a step is 1 or more"),
        ("*/x * * * *", "a step is 1 or more, not x"),
        ("5-1 * * * *", "ends before it begins"),
        ("1,,2 * * * *", "'' is none of 0 to 59"),
        ("*-5 * * * *", "is none of"),
        ("0 2 30 2 *", "no month has such a day"),
        ("hourly", "five fields are wanted"),
        ("@reboot", "there is @yearly"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse(text)


@pytest.mark.parametrize(
    ("schedules", "hours"),
    [
        (["41 4 * * *"], 24),
        (["* * * * *"], 1 / 60),
        (["17 */6 * * *"], 6),
        (["0 14 * * 1-5"], 72),
        (["0 14 * * mon-fri"], 72),
        (["0 2 * * *", "0 14 * * 1-5"], 24),
        (["0 2 1 * *"], 31 * 24),
        (["0 2 1 * mon"], 7 * 24),  # both given: one is enough
        (["0 2 29 2 *"], 24 * (8 * 365 + 1)),
        (["10-40/15 8 * * *"], 23.5),
        (["@weekly"], 7 * 24),
    ],
)
def test_the_longest_wait_between_two_runs(schedules: list[str], hours: float) -> None:
    assert longest_gap(schedules) == pytest.approx(hours)


def rendered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *more: str
) -> list[dict[str, object]]:
    (tmp_path / "nightly.yaml").write_text(SUITE)
    assert main(["render", "nightly.yaml", *more]) == 0
    return list(yaml.safe_load_all(capsys.readouterr().out))


def given(document: dict[str, object]) -> dict[str, str]:
    spec = document["spec"]
    assert isinstance(spec, dict)
    return {
        each["name"]: each["value"]
        for each in spec.get("workflowSpec", spec)["arguments"]["parameters"]
    }


def test_a_schedule_carries_the_store_and_the_priority_and_is_watched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schedule = ("--schedule", "41 4 * * *")
    _, due, nightly = rendered(tmp_path, capsys, *schedule, "--store", "s3://bench/other")
    assert given(nightly) == {
        "configmap": "perfdag-suite-nightly",
        "trigger": "cron",
        "store": "s3://bench/other",
    }
    assert nightly["spec"]["workflowSpec"]["priority"] == 7  # type: ignore[index]
    assert given(due) == {"suitename": "nightly", "hours": "27", "store": "s3://bench/other"}
    _, due, nightly = rendered(tmp_path, capsys, *schedule)
    assert given(due)["store"] == given(nightly)["store"] == "s3://bench/own"
    [once] = rendered(tmp_path, capsys)
    assert given(once) == {
        "suite": base64.b64encode(SUITE.encode()).decode(),
        "store": "s3://bench/own",
    }
    assert once["spec"]["priority"] == 7  # type: ignore[index]
    assert "name" not in once["metadata"], "kubectl create makes it, each time another"  # type: ignore[operator]


def test_a_bad_schedule_or_store_renders_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "nightly.yaml").write_text(SUITE)
    for words, said in (
        (["--schedule", "61 25 * * *"], "minute '61'"),
        (["--store", "./here"], "pods share no folder"),
    ):
        assert main(["render", "nightly.yaml", *words]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert said in captured.err


def test_a_suite_that_no_object_may_hold_renders_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    points = "".join(
        f"        - {{expected: 0.1, env: {{A_VARIABLE_OF_THIS_POINT: '{number:06}'}}}}\n"
        for number in range(4500)
    )
    (tmp_path / "nightly.yaml").write_text(f"{SUITE}    permutations:\n      explicit:\n{points}")
    for words, said in (
        (
            ["--schedule", "0 2 * * *"],
            "ConfigMap perfdag-suite-nightly has .* bytes, more than 262,144; .*its key, as the parameter url",
        ),
        ([], "bytes in base64 are more than a parameter may have; .*-p url=KEY"),
    ):
        assert main(["render", "nightly.yaml", *words]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert re.search(said, captured.err), captured.err


def test_the_json_that_kubectl_keeps_of_an_object_may_be_what_is_too_large() -> None:
    quoted = runs.config_map("bench", "s", '"' * 200_000)
    assert len(yaml.safe_dump(quoted)) < lint.MAX_BYTES
    assert lint.problems(quoted) == [
        "ConfigMap perfdag-suite-s has 400,166 bytes, more than 262,144"
    ]

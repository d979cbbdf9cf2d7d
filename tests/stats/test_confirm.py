"""A very bad night is measured again the same night, and a real step alerts at once."""

from pathlib import Path

import pytest

from perfdag.app.gate import check_after_run
from perfdag.cli import main
from perfdag.plan.plan import Plan
from perfdag.results.runs import load_plan
from perfdag.store.base import Store
from perfdag.store.open import open_store
from tests.conftest import CommandLine

SUITE = """\
name: delays
entries:
  - benchmark: command
    params: {argv: [sh, -c, "sleep $(cat DELAY)"], expected: 0.2}
  - benchmark: command
    name: steady
    params: {argv: [sleep, "0.3"], expected: 0.3}
"""


@pytest.mark.slow
def test_confirming_runs_make_a_step_known_the_same_night(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], cli: CommandLine
) -> None:
    delay = tmp_path / "delay"
    delay.write_text("0.3")
    (tmp_path / "delays.yaml").write_text(SUITE.replace("DELAY", "delay"))
    for _ in range(
        20
    ):  # three runs of 23 can be told from chance; of 12 they cannot (220 ways to choose them)
        assert main(["run", "delays.yaml", "--no-report"]) == 0
    capsys.readouterr()
    assert main(["check", "last"]) == 0
    delay.write_text("1.2")
    assert main(["run", "delays.yaml", "--no-report"]) == 0
    capsys.readouterr()
    assert main(["check", "last"]) == 0  # one bad night is no level
    assert "suspicious tonight: command wall_time" in capsys.readouterr().out
    captured = cli(["check", "last", "--confirm"], 3)
    assert captured.err.count("confirm 2") == 2
    assert "REGRESSION delays/command wall_time" in captured.out
    assert "ABSENT" not in captured.out  # the confirming runs have only the suspicious point
    store = open_store(None)
    triggers = [
        load_plan(store, key.split("/")[-1].removesuffix(".parquet")).trigger
        for key in sorted(store.list("results"))
    ]
    assert sorted(triggers) == ["confirm"] * 2 + ["manual"] * 21


def exit_code(store: Store, plan: Plan) -> int:
    outcome = check_after_run(store, plan, print)
    assert outcome is not None
    return outcome.exit_code


@pytest.mark.slow
def test_the_last_step_of_a_scheduled_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "delay").write_text("0")
    text = SUITE.replace("DELAY", "delay")
    (tmp_path / "delays.yaml").write_text(text)
    assert main(["run", "delays.yaml", "--no-report"]) == 0
    store = open_store(None)
    plan = load_plan(store, "last")
    assert check_after_run(store, plan, print) is None
    assert store.list("alerts") == []  # a manual run of a suite without checks asks for no gate
    plan.suite_text = (
        text + "checks:\n  - {metric: wall_time, entry: steady, op: '<', value: 1ms}\n"
    )
    assert exit_code(store, plan) == 3
    assert b'failures="1"' in store.get(f"runs/{plan.run_id}/check.xml")
    assert b"gate FAILED" in store.get(f"runs/{plan.run_id}/check.md")
    assert f"accept  in {store.url('acks.yaml')}: ".encode() in store.get(
        f"runs/{plan.run_id}/check.md"
    )
    monkeypatch.setenv("PERFDAG_WEBHOOK", "http://127.0.0.1:9/nobody")
    assert exit_code(store, plan) == 4
    monkeypatch.delenv("PERFDAG_WEBHOOK")
    plan.suite_text, plan.trigger = text, "cron"
    assert exit_code(store, plan) == 0

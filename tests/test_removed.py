"""What 0.1 had and 0.2 has not is named in one line with what to use instead."""

import pytest

from perfdag.plan.plan import make_plan
from perfdag.suite import document
from perfdag.suite.document import BadDocument
from perfdag.suite.load import parse_suite
from tests.conftest import CommandLine


@pytest.fixture(autouse=True)
def _table(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("old-benchmark", "old_key", "protocol=old", "old-verb", "--old", "lost")
    monkeypatch.setattr(document, "REMOVED", dict.fromkeys(names, "use another, docs/other.md"))


@pytest.mark.parametrize(
    ("entry", "name"),
    [
        ("{benchmark: old-benchmark}", "old-benchmark"),
        ("{benchmark: iperf, params: {old_key: 1}}", "old_key"),
        ("{benchmark: iperf, permutations: {product: {old_key: [1]}}}", "old_key"),
        ("{benchmark: iperf, old_key: 1}", "old_key"),
        ("{benchmark: iperf, params: {protocol: old}}", "protocol=old"),
    ],
)
def test_a_suite_that_uses_it_is_refused_with_the_way_out(entry: str, name: str) -> None:
    with pytest.raises(BadDocument) as error:
        make_plan(parse_suite(f"name: x\nentries: [{entry}]"))
    assert len(error.value.problems) == 1
    text = f"{name} was removed in 0.2: use another, docs/other.md"
    assert str(error.value.problems[0]).endswith(text)


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["old-verb"], "old-verb"),
        (["run", "--old", "x.yaml"], "--old"),
        (["queue", "lost"], "lost"),
    ],
)
def test_a_command_that_uses_it_is_refused_with_the_way_out(
    argv: list[str], name: str, cli: CommandLine
) -> None:
    text = f"{name} was removed in 0.2: use another, docs/other.md"
    assert text in cli(argv, 2).err

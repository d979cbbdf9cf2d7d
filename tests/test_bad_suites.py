"""Bad suites: each is refused before anything starts, with exactly the messages that stand
beside it in bad_suites.yaml.
"""

from pathlib import Path

import pytest
import yaml

from perfdag.benchmark import registry
from perfdag.plan.plan import make_plan
from perfdag.suite.load import load_suite, parse_suite
from perfdag.suite.yaml_document import BadDocument

CASES = yaml.safe_load((Path(__file__).parent / "bad_suites.yaml").read_text())


def test_there_are_a_hundred() -> None:
    assert len(CASES) >= 100


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_bad_suite(case: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "suite.yaml").write_text(str(case["suite"]))
    (tmp_path / "broken.yaml").write_text("name: broken\nentries:\n  - benchmark: nope\n")
    with pytest.raises(BadDocument) as refused:
        make_plan(load_suite("suite.yaml"))
    said = [str(problem).removeprefix("suite.yaml:") for problem in refused.value.problems]
    expected = [
        text.replace("{benchmarks}", ", ".join(registry.names())) for text in case["expect"]
    ]  # type: ignore[attr-defined]
    assert said == expected


@pytest.mark.parametrize(
    ("text", "line"),
    [("a: " + "[" * 100_000, 1), ("a:\n" + "\n".join(" " * k + "-" for k in range(3000)), 401)],
    ids=["brackets", "indented"],
)
def test_a_text_that_would_exhaust_the_stack_is_refused(text: str, line: int) -> None:
    with pytest.raises(BadDocument, match=f"suite.yaml:{line}: nested deeper than 40"):
        parse_suite(text)

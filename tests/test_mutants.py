"""scripts/mutants itself: what it says of tests that prove nothing."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

SCRIPT = Path(__file__).parents[1] / "scripts/mutants"
TESTS = "def test_it() -> None:\n    from code_that_decides import LIMIT\n    assert LIMIT == 3\n"


@pytest.mark.parametrize(
    ("tests", "old", "result"),
    [
        (TESTS, "LIMIT = 3", "killed"),
        (TESTS.replace("== 3", "== 7"), "LIMIT = 3", "untested"),
        (
            f"import pytest\npytest.skip('no tool', allow_module_level=True)\n{TESTS}",
            "LIMIT",
            "untested",
        ),
    ],
    ids=["killed", "they fail anyway", "all are skipped"],
)
def test_a_mutant_is_killed_only_by_tests_that_pass_without_it(
    tmp_path: Path, tests: str, old: str, result: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    for tree in ("perfdag", "steps", "charts", "workflows", "suites", "deploy", "docs", "images"):
        (tmp_path / tree).mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "scripts").mkdir()
    for name in ("pyproject.toml", "README.md", "CONTRIBUTING.md"):
        (tmp_path / name).touch()
    (tmp_path / "perfdag/code_that_decides.py").write_text("LIMIT = 3\n")
    (tmp_path / "tests/conftest.py").write_text("import sys\nsys.path.insert(0, 'perfdag')\n")
    (tmp_path / "tests/test_it.py").write_text(tests)
    mutant = {
        "file": "perfdag/code_that_decides.py",
        "user_sees": "x",
        "old": old,
        "new": "LIMIT = 4",
    }
    mutant["tests"] = "tests/test_it.py"
    (tmp_path / "scripts/mutants.yaml").write_text(yaml.safe_dump([mutant]))
    script = shutil.copy(SCRIPT, tmp_path / "scripts")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.stdout.split()[:1] == [result], done.stderr
    assert done.returncode == (result != "killed")

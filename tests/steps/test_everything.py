"""The shipped suites plan, and docs/kube-perftest.md has every field. tests/test_import.py
compares `everything` with the original.
"""

from pathlib import Path

import pytest

from perfdag.commands.import_kube_perftest import MODELS
from perfdag.suite.load import load_suite
from perfdag.suite.points import enumerate_points

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["network", "mpi", "storage"])
def test_the_ready_suites_plan(name: str) -> None:
    assert enumerate_points(load_suite(ROOT / f"suites/{name}.yaml")).points


def test_each_field_of_kube_perftest_is_in_the_table() -> None:
    page = (ROOT / "docs/kube-perftest.md").read_text()
    fields = {field for model in MODELS.values() for field in model.model_fields}
    assert {field for field in fields if f"`{field}`" not in page} == set()

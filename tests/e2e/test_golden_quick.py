"""The quick suite on Argo has its golden rows (tests/golden/README.md)."""

from pathlib import Path

import pytest

from perfdag.charts.pages.site import DATA
from perfdag.store.s3 import open_store
from tests.e2e.conftest import Namespace
from tests.test_golden import GOLDEN, compare
from tests.test_golden_runs import masked

QUICK = Path(__file__).parents[2] / "suites" / "quick.yaml"


@pytest.mark.argo
def test_the_quick_suite_on_argo_has_its_golden_rows(bench: Namespace) -> None:
    ended = bench.measure(QUICK, timeout=600)
    ended.assert_ok()
    store = open_store(bench.store)
    assert b'"quick"' in store.get(f"{DATA}/index.js"), "the last step writes the site"
    found = masked(bench.store, ended.id)
    for row in found["rows"]:
        if row["benchmark"] == "canary":  # a series for each node that the pods came to
            del row["rows"], row["series"]
    compare(GOLDEN / "runs" / "argo-quick.json", found)

"""The commands of README and docs that need a cluster, in a namespace and a store of the test."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from perfdag.store.s3 import open_store
from tests.test_readme import ON_A_CLUSTER

from .conftest import IMAGES, installed

pytestmark = [pytest.mark.argo, pytest.mark.slow]
INSTALL, SUBMIT, STATUS, REMOVE = ON_A_CLUSTER


def perfdag(command: str, **replaced: str) -> str:
    """Execute a command with some of its words replaced, and return what it printed."""
    words = [replaced.get(word, word) for word in shlex.split(command)[1:]]
    argv = [sys.executable, "-m", "perfdag", *words]
    result = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr


def test_a_cluster_in_three_commands() -> None:
    Path("suites").mkdir()
    Path("suites/quick.yaml").write_text(
        "name: quick\nentries:\n  - {benchmark: command, params: {argv: [sleep, '0.1']}}\n"
    )
    with installed("restricted") as bench:
        images = "registry.example/bench/perfdag-{name}:1.0"
        own = {"bench": bench.name, "s3://bench/results": bench.store, images: IMAGES}
        perfdag(INSTALL, **own)
        assert "1 ok" in perfdag(SUBMIT, **own)
        assert "Succeeded" in perfdag(STATUS, **own)
        perfdag(REMOVE, **own)
        assert bench.objects("Workflow", "argoproj.io/v1alpha1") == []
        assert [key for key in open_store(bench.store).list("results") if "quick" in key]

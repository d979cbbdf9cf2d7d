"""The suites of the checkout on one machine, with stand-ins for tools, clusters and devices."""

import re
from pathlib import Path
from typing import Any

import pytest

from perfdag.benchmark import registry
from perfdag.benchmark.contract import Benchmark, Gang, Measurement, metrics_by_name
from perfdag.commands.main import main
from perfdag.results.schema import load_rows
from perfdag.store.base import FolderStore
from tests.conftest import CommandLine
from tests.fakes.files import write_programs

SUITES = Path(__file__).parent.parent / "suites"


def measure_nothing(benchmark: Benchmark[Any], gang: Gang, params: Any) -> list[Measurement]:
    """Return a value for each headline metric, as `run` of a benchmark does."""
    metrics = metrics_by_name(benchmark, params.model_dump()).values()
    return [Measurement(each.name, min(1.0, each.highest)) for each in metrics if each.headline]


@pytest.fixture
def machine_with_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in registry.names():
        benchmark = type(registry.get(name))
        monkeypatch.setattr(benchmark, "require", lambda self, gang, params: None)
        monkeypatch.setattr(benchmark, "run", measure_nothing)
    gpu = """echo "GPU 0: Tesla T4 (UUID: GPU-1b2c)" """
    programs = write_programs(tmp_path / "bin", {"nvidia-smi": f"[ $1 != -L ] || {gpu}"})
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("machine_with_everything")
@pytest.mark.parametrize("name", sorted(path.stem for path in SUITES.glob("*.yaml")))
def test_no_point_of_a_shipped_suite_needs_a_cluster_but_for_its_tools(name: str) -> None:
    suite = SUITES / f"{name}.yaml"
    shorter = ["--set", "repetitions=1", "--set", "warmup=0"]
    main(["run", str(suite), *shorter, "--store", "store", "--no-report", "--no-recheck"])
    rows = load_rows(FolderStore("store")).to_pylist()
    if name == "everything":  # whose header says this of some of its entries
        rows = [row for row in rows if row["entry"].endswith("-here")]
    skipped = {(row["entry"], row["error"]) for row in rows if row["status"] == "skipped"}
    assert rows
    assert skipped == set()


def test_shipped_suites_have_a_name_that_verbs_take(cli: CommandLine) -> None:
    printed = cli(["suites"]).out
    for path in SUITES.glob("*.yaml"):
        assert re.search(rf"^{path.stem}( |$)", printed, re.M)
        assert cli(["plan", path.stem]).out == cli(["plan", str(path)]).out


def test_a_file_of_the_users_comes_before_a_shipped_suite(cli: CommandLine) -> None:
    Path("quick").write_text("name: mine\nentries: [{benchmark: command, params: {argv: [ls]}}]\n")
    assert "1 point, 1 sample" in cli(["plan", "quick"]).out

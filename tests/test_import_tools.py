"""The results of other tools as runs, from files that hyperfine 1.15, pytest-benchmark 5.2, asv 0.6
and Google Benchmark 1.9 wrote.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from perfdag.commands.imports.history import TOOLS
from perfdag.commands.main import main
from perfdag.results.schema import read_rows

from .conftest import CommandLine

RECORDED = Path(__file__).parent / "recorded" / "other_tools"
FILES = {
    "hyperfine": RECORDED / "hyperfine.json",
    "pytest-benchmark": RECORDED / "pytest-benchmark.json",
    "asv": RECORDED / "asv" / "bench-1" / "20b4ab13-virtualenv-py3.11.json",
    "google-benchmark": RECORDED / "google-benchmark.json",
}
SERIES = {
    "hyperfine": {
        "sleep 0.01": ["ok"] * 4,
        "sleep 0.02": ["ok"] * 4,
        'sh -c "exit 1"': ["invalid"] * 3,
    },
    "pytest-benchmark": {
        "test_b.py::test_sum": ["ok"],
        "test_b.py::test_sorted[10]": ["ok"],
        "test_b.py::test_sorted[1000]": ["ok"],
    },
    "asv": {
        "b.Sorting.time_sort n=10 order='up'": ["ok"],
        "b.Sorting.time_sort n=10 order='down'": ["ok"],
        "b.Sorting.time_sort n=1000 order='up'": ["ok"],
        "b.Sorting.time_sort n=1000 order='down'": ["ok"],
        "b.Sorting.track_len n=10 order='up'": ["ok"],
        "b.Sorting.track_len n=10 order='down'": ["ok"],
        "b.Sorting.track_len n=1000 order='up'": ["ok"],
        "b.Sorting.track_len n=1000 order='down'": ["ok"],
        "b.peakmem_list": ["ok"],
        "b.time_broken": ["invalid"],
        "b.time_sum": ["ok"],
    },
    "google-benchmark": {
        "sum_100": ["ok"] * 3,
        "sort_n/8": ["ok"] * 3,
        "sort_n/64": ["ok"] * 3,
        "broken": ["invalid"] * 3,
    },
}  # fmt: skip


def _rows(suite: str) -> list[dict[str, Any]]:
    """Return all rows, those without a value too."""
    files = Path("perfdag-results", "results", suite).rglob("*.parquet")
    return [row for file in files for row in read_rows(file.read_bytes()).to_pylist()]


@pytest.mark.parametrize("tool", TOOLS)
def test_the_figures_of_a_tool_become_a_run(tool: str, cli: CommandLine) -> None:
    printed = cli(["import", tool, str(FILES[tool])])
    assert "not kept: " in printed.err
    rows = _rows(tool)
    states: dict[str, list[str]] = {}
    for row in rows:
        states.setdefault(row["entry"], []).append(row["status"])
    assert states == SERIES[tool]
    assert len({row["run_id"] for row in rows}) == 1
    assert {row["better"] for row in rows} == {"lower"}
    assert cli(["import", tool, str(FILES[tool])]).out == printed.out
    assert len(_rows(tool)) == len(rows)


def test_times_are_in_seconds(cli: CommandLine) -> None:
    cli(["import", "google-benchmark", str(FILES["google-benchmark"])])
    stored = json.loads(FILES["google-benchmark"].read_text())["benchmarks"]
    first = next(row for row in _rows("google-benchmark") if row["entry"] == "sum_100")
    assert stored[0]["time_unit"] == "ns"
    assert first["unit"] == "s"
    assert first["value"] == pytest.approx(stored[0]["real_time"] / 1e9)


def test_sizes_of_asv_are_bytes_and_other_units_its_own(cli: CommandLine) -> None:
    cli(["import", "asv", str(FILES["asv"])])
    units = {row["entry"].split()[0]: row["unit"] for row in _rows("asv") if row["status"] == "ok"}
    assert units == {
        "b.Sorting.time_sort": "s",
        "b.Sorting.track_len": "items",
        "b.peakmem_list": "B",
        "b.time_sum": "s",
    }


@pytest.mark.parametrize(
    ("tool", "fact", "value"),
    [
        ("pytest-benchmark", "cpu_model", "AMD EPYC"),
        ("asv", "environment", "virtualenv-py3.11"),
        ("google-benchmark", "host", "bench-1"),
    ],
)
def test_the_machine_is_among_the_facts(tool: str, fact: str, value: str, cli: CommandLine) -> None:
    cli(["import", tool, str(FILES[tool])])
    assert {json.loads(row["env"])[fact] for row in _rows(tool)} == {value}


def test_a_change_names_the_commit(tmp_path: Path, cli: CommandLine) -> None:
    data = json.loads(FILES["pytest-benchmark"].read_text())
    for night in range(12):
        slower = 2 if night > 8 else 1
        data["datetime"] = f"2026-01-{night + 1:02}T02:00:00+00:00"
        data["commit_info"]["id"] = f"{night:040x}"
        for test in data["benchmarks"]:
            test["stats"]["median"] = (1 + night % 3 / 100) * slower
        (tmp_path / f"{night:04}_x.json").write_text(json.dumps(data))
    cli(["import", "pytest-benchmark", *map(str, sorted(tmp_path.glob("*.json")))])
    printed = cli(["check", "last", "--suite", "pytest-benchmark"], code=3).out
    assert "bisect  git bisect start " + f"{9:040x} {8:040x}" in printed
    assert "since 2026-01-10" in printed


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"results": 3}', '{"benchmarks": [{}]}'])
def test_what_is_no_result_is_refused(
    tool: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.json").write_text(text)
    assert main(["import", tool, str(tmp_path / "a.json")]) == 2
    printed = capsys.readouterr().err
    assert "no results; they are made by" in printed or "benchmarks.json: No such file" in printed


def test_environments_of_asv_do_not_mix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    benchmarks = (RECORDED / "asv" / "benchmarks.json").read_bytes()
    (tmp_path / "benchmarks.json").write_bytes(benchmarks)
    (tmp_path / "m").mkdir()
    files = [tmp_path / "m" / f"20b4ab13-{name}.json" for name in ("py3.11", "py3.12")]
    for file in files:
        file.write_bytes(FILES["asv"].read_bytes())
    assert main(["import", "asv", *map(str, files)]) == 2
    assert "results of two environments" in capsys.readouterr().err

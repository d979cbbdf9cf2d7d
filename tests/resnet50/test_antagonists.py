"""A program beside an antagonist: a command of the suite, or another model."""

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from perfdag.benchmark.contract import Gang
from perfdag.hosts.local import LocalHost
from perfdag.outcome import Failed, Measurement
from perfdag.plan.plan import make_plan
from perfdag.shape import Shape
from perfdag.steps.resnet50.overhead import Resnet50Overhead
from perfdag.steps.resnet50.overhead_params import OverheadParams
from perfdag.suite.load import load_suite
from tests.resnet50.harness import needs_loadgen


def cell(folder: Path, antagonist: dict[str, Any], **more: Any) -> dict[str, list[Measurement]]:
    """The rows of one cell, by metric."""
    params = OverheadParams.model_validate(
        {
            "system": "stub",
            "scenario": "single-stream",
            "fast": True,
            "min_duration": 0.5,
            "pairs": 2,
            "stub": {"base": 0.01, "lock": str(folder / "device")},
            "antagonist": antagonist,
            **more,
        }
    )
    gang = Gang([LocalHost()], Shape(), 60.0, str(folder))
    rows: dict[str, list[Measurement]] = {}
    for row in Resnet50Overhead().parse(Resnet50Overhead().run(gang, params), params):
        rows.setdefault(row.metric, []).append(row)
    return rows


@needs_loadgen
@pytest.mark.slow
def test_a_model_on_the_same_device_takes_half(tmp_path: Path) -> None:
    other = {
        "system": "stub",
        "scenario": "server",
        "target_rate": 80,
        "stub": {"base": 0.01, "lock": str(tmp_path / "device")},
    }
    rows = cell(tmp_path, {"model": other})
    assert rows["kept"][0].value < 0.7
    assert rows["overhead"][0].value > 0.4
    assert re.search("2 pairs$|would tell", str(rows["verdict"][0].note))
    assert not (tmp_path / "antagonist").exists()


@needs_loadgen
@pytest.mark.slow
def test_a_command_runs_beside_the_treatment_alone(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys, time; pathlib.Path(sys.argv[1]).open('a').write('x'); time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "starts")]
    rows = cell(tmp_path, {"command": command, "settle": 0.5})
    assert (tmp_path / "starts").read_text() == "xx"
    assert rows["kept"][0].value > 0.5


@needs_loadgen
@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("stress-ng") is None,
    reason="stress-ng is not installed: NO real antagonist ran: apt-get install stress-ng",
)
def test_stress_ng_runs_beside_the_treatment_and_is_gone_after_it(tmp_path: Path) -> None:
    program = Path(shutil.copy(shutil.which("stress-ng") or "", tmp_path))  # no other test has it
    command = [str(program), "--cpu", "2", "--cpu-load", "10", "--temp-path", str(tmp_path)]
    rows = cell(tmp_path, {"command": command})
    assert rows["kept"][0].value > 0
    assert processes(program) == []
    with pytest.raises(Failed, match="ended with code 0 before the run did: stress-ng"):
        cell(tmp_path, {"command": [*command, "--timeout", "1"], "settle": 0})


def processes(program: Path) -> list[Path]:
    """The live processes of a program, also of one that writes over its arguments."""
    return [link for link in Path("/proc").glob("[0-9]*/exe") if is_link_to(link, program)]


def is_link_to(link: Path, program: Path) -> bool:
    try:
        return link.readlink() == program
    except OSError:  # the process has ended, or is another user's
        return False


@needs_loadgen
def test_an_antagonist_that_ends_is_named(tmp_path: Path) -> None:
    code = "import sys; sys.exit('no room')"
    with pytest.raises(
        Failed,
        match=r"run \d of 4 \(treatment\): antagonist .* ended with code 1 .*no room; give a",
    ):
        cell(tmp_path, {"command": [sys.executable, "-c", code]})


def test_a_command_that_is_not_installed_is_a_missing_tool(tmp_path: Path) -> None:
    params = OverheadParams.model_validate(
        {"system": "stub", "antagonist": {"command": ["no-such-stress"]}}
    )
    gang = Gang([LocalHost()], Shape(), 60.0, str(tmp_path))
    assert "no-such-stress" in [tool.program for tool in Resnet50Overhead().missing(gang, params)]


@pytest.mark.parametrize(
    ("antagonist", "message"),
    [
        ({}, "a command or a model: give one"),
        ({"command": ["true"], "model": {}}, "a command or a model: give one"),
        ({"model": {"scenario": "find-peak"}}, "beside another runs server"),
    ],
)
def test_an_antagonist_is_one_thing(antagonist: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        OverheadParams.model_validate({"antagonist": antagonist})


def test_a_suite_makes_a_matrix(tmp_path: Path) -> None:
    file = tmp_path / "matrix.yaml"
    file.write_text(
        """
name: matrix
entries:
  - name: beside
    benchmark: resnet50-overhead
    params: {scenario: single-stream, fast: true}
    permutations:
      product:
        runtime: [torch, onnxruntime]
        antagonist:
          - command: [stress-ng, --cpu, "1"]
          - model: {scenario: single-stream, fast: true}
"""
    )
    points = make_plan(load_suite(str(file))).points
    cells = {
        (
            point.params.get("runtime", "torch"),
            json.dumps(point.params["antagonist"], sort_keys=True),
        )
        for point in points
    }
    assert len(cells) == 4

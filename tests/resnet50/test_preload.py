"""A library put before the program is in it, or the row says that it is not."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perfdag.benchmark.contract import Gang, Output
from perfdag.hosts.local import LocalHost
from perfdag.outcome import Invalid
from perfdag.shape import Shape
from perfdag.steps.resnet50 import preload
from perfdag.steps.resnet50.benchmark import Resnet50
from perfdag.steps.resnet50.interference import Resnet50Interference
from perfdag.steps.resnet50.overhead import Resnet50Overhead

RECORDED = Path(__file__).parent.parent / "recorded" / "loadgen" / "single-stream.json"
COMMON = {
    "system": "stub",
    "scenario": "single-stream",
    "fast": True,
    "min_duration": 0.1,
    "stub": {"base": 0.001},
}


@pytest.fixture
def layer(tmp_path: Path) -> str:
    """A library that nothing else has loaded: a copy of the C library's mathematics."""
    result = re.search(r"(/\S*/libm[.-]\S*)$", Path("/proc/self/maps").read_text(), re.M)
    if result is None:
        pytest.skip("no libm is mapped here to make a library of")
    return str(shutil.copy(result[1], tmp_path / "layer.so"))


def test_a_library_is_found_by_its_path_or_its_name(tmp_path: Path) -> None:
    mapped = {str(tmp_path.resolve() / "liblayer.so.1.2"), "/lib/libc.so.6"}
    (tmp_path / "link.so").symlink_to(tmp_path / "liblayer.so.1.2")
    there = [
        f"{tmp_path}/liblayer.so.1.2",
        f"{tmp_path}/link.so",
        "liblayer.so",
        "libc.so.6",
        "/opt/$LIB/libc.so.6",
    ]
    assert [preload.loaded(entry, mapped) for entry in there] == [True] * 5
    absent = [
        f"{tmp_path}/libc.so.6",
        f"{tmp_path}/other/liblayer.so.1.2",
        "liblay.so",
        "layer.so",
        "/opt/$LIB/libd.so",
    ]
    assert [preload.loaded(entry, mapped) for entry in absent] == [False] * 5
    assert preload.entries(" /a.so:/b.so  c.so") == ["/a.so", "/b.so", "c.so"]


def test_a_library_is_in_a_process_whatever_the_file_is_called_to_which_its_name_leads(
    layer: str, tmp_path: Path
) -> None:
    named = tmp_path / "vgpu.so"
    named.symlink_to(Path(layer).rename(tmp_path / "vgpu-1.2"))
    code = "import json; from perfdag.steps.resnet50 import preload; print(json.dumps(preload.inspect({})))"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "LD_PRELOAD": str(named)},
        capture_output=True,
        check=True,
    )
    assert json.loads(ran.stdout)["preloaded"] == {str(named): True}


@pytest.mark.slow
@pytest.mark.parametrize("wrapper", [[], ["env", "-i"]])
def test_a_layer_that_is_loaded_is_a_treatment_whatever_the_wrapper_passes_on(
    wrapper: list[str], layer: str, tmp_path: Path
) -> None:
    pytest.importorskip(
        "mlperf_loadgen", reason="mlcommons-loadgen is not installed: pip install 'perfdag[dev]'"
    )
    benchmark, gang = Resnet50Overhead(), Gang([LocalHost()], Shape(), 60, str(tmp_path))
    options = {
        **COMMON,
        "wrapper": wrapper,
        "wrapper_env": {"LD_PRELOAD": layer, "LAYER": "on"},
        "pairs": 2,
    }
    params = benchmark.Params.model_validate(options)
    assert benchmark.missing(gang, params) == []
    output = benchmark.run(gang, params)
    assert benchmark.parse(output, params)
    raws = {
        side: json.loads(next(text for name, text in output.texts.items() if name[3:] == side))
        for side in "AB"
    }
    assert raws["B"]["environment"] == {"LD_PRELOAD": layer, "LAYER": "on"}
    assert (raws["B"]["preloaded"], raws["A"]["preloaded"]) == ({layer: True}, {layer: False})
    assert raws["A"]["environment"]["LAYER"] is None


@pytest.mark.slow
def test_a_layer_that_ld_so_passes_over_is_missing_and_no_treatment_that_costs_nothing(
    tmp_path: Path,
) -> None:
    pytest.importorskip(
        "mlperf_loadgen", reason="mlcommons-loadgen is not installed: pip install 'perfdag[dev]'"
    )
    gang = Gang([LocalHost(name="n1")], Shape(), 60, str(tmp_path))
    for benchmark in (Resnet50(), Resnet50Overhead(), Resnet50Interference()):
        params = benchmark.Params.model_validate(
            {**COMMON, "wrapper_env": {"LD_PRELOAD": "/nowhere/layer.so"}}
        )
        (tool,) = benchmark.missing(gang, params)
        assert tool.program.startswith("/nowhere/layer.so (LD_PRELOAD)")
        assert tool.advice.startswith(
            "n1 reports: ERROR: ld.so: object '/nowhere/layer.so' from LD_PRELOAD cannot be preloaded"
        )
        output = benchmark.run(gang, params)
        assert any(
            "cannot be preloaded" in text for name, text in output.texts.items() if "stderr" in name
        )
        with pytest.raises(
            Invalid, match=r"LD_PRELOAD /nowhere/layer.so was not loaded into the program"
        ):
            benchmark.parse(output, params)
    by_wrapper = Resnet50Overhead.Params.model_validate(
        {**COMMON, "wrapper": ["env", "LD_PRELOAD=/nowhere/layer.so"], "pairs": 2}
    )
    (tool,) = Resnet50Overhead().missing(gang, by_wrapper)
    assert tool.program == "/nowhere/layer.so (LD_PRELOAD) behind env"
    with pytest.raises(
        Invalid, match=r"LD_PRELOAD /nowhere/layer.so was not loaded into the treatment"
    ):
        Resnet50Overhead().parse(Resnet50Overhead().run(gang, by_wrapper), by_wrapper)


def test_a_library_that_was_broken_before_is_nobodys_treatment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(
        "mlperf_loadgen", reason="mlcommons-loadgen is not installed: pip install 'perfdag[dev]'"
    )
    monkeypatch.setenv("LD_PRELOAD", "/old/broken.so")
    params = Resnet50Overhead.Params.model_validate({**COMMON, "wrapper": ["env"]})
    assert Resnet50Overhead().missing(Gang([LocalHost()], Shape(), 60, str(tmp_path)), params) == []


@pytest.mark.parametrize(
    ("plain", "treated", "message"),
    [
        (
            {"preloaded": {"/l.so": False}},
            {"preloaded": {"/l.so": True}, "environment": {"L": "1"}},
            None,
        ),
        (
            {"preloaded": {"/l.so": True}},
            {"preloaded": {"/l.so": True}, "environment": {"L": "1"}},
            "the baseline has /l.so too",
        ),
        (
            {},
            {"preloaded": {"/l.so": True}, "environment": {"L": None}},
            r"\(treatment\): L of wrapper_env did not reach the program",
        ),
        ({}, {}, r"\(treatment\): LD_PRELOAD /l.so was not loaded"),
        (
            {"preloaded": {"/old.so": False}},
            {"preloaded": {"/l.so": True, "/old.so": False}, "environment": {"L": "1"}},
            None,
        ),
    ],
)
def test_the_sides_differ_by_the_layer(
    plain: dict[str, Any], treated: dict[str, Any], message: str | None
) -> None:
    options = {
        "system": "stub",
        "scenario": "single-stream",
        "wrapper_env": {"LD_PRELOAD": "/l.so", "L": "1"},
        "pairs": 2,
    }
    params = Resnet50Overhead.Params.model_validate(options)
    raw = json.loads(RECORDED.read_text())
    texts = {"order": "ABBA"} | {
        f"{n:03}{side}": json.dumps(raw | (plain if side == "A" else treated))
        for n, side in enumerate("ABBA")
    }
    if message is None:
        assert Resnet50Overhead().parse(Output(texts), params)
    else:
        with pytest.raises(Invalid, match=message):
            Resnet50Overhead().parse(Output(texts), params)

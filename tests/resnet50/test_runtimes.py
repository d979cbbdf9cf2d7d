"""ONNX Runtime and OpenVINO beside torch, on this CPU.

Needs `pip install 'perfdag[torch,inference]'`.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from perfdag.steps.resnet50.benchmark import Resnet50
from perfdag.steps.resnet50.errors import UnusableError
from perfdag.steps.resnet50.params import Workload
from tests.resnet50.harness import run_resnet50

REASON = "{} is not installed: pip install 'perfdag[torch,inference]'"
onnxruntime: Any = pytest.importorskip("onnxruntime", reason=REASON.format("onnxruntime"))
openvino: Any = pytest.importorskip("openvino", reason=REASON.format("openvino"))
runtimes: Any = pytest.importorskip("perfdag.steps.resnet50.inference.runtimes")
pytestmark = pytest.mark.slow
RUNTIMES = ("onnxruntime", "openvino")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """The model that torch exports, and its logits by torch."""
    export: Any = pytest.importorskip("perfdag.steps.resnet50.inference.onnx_export")
    pytest.importorskip("onnxscript", reason=REASON.format("onnxscript"))
    path = tmp_path_factory.mktemp("model") / "resnet50.onnx"
    _, logits = export.export(str(path), "random", 0)
    return path, logits


def spec(runtime: str, **more: Any) -> dict[str, Any]:
    base = {"runtime": runtime, "fast": True, "threads": 1, "samples": 4}
    return Workload.model_validate(base | more).spec()


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_the_exported_model_agrees_with_torch_at_every_size(
    runtime: str, exported: tuple[Path, np.ndarray]
) -> None:
    path, expected = exported
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    more = {"weights": str(path), "weights_sha256": digest, "batch": 3, "scenario": "server"}
    subject = runtimes.subject(spec(runtime, target_rate=5, **more), 1)
    assert subject.facts["model"]["weights_verified"]
    for size in (1, 2, 3):
        actual = subject.system.fixed_logits(size)[:4]
        assert np.linalg.norm(actual - expected) / np.linalg.norm(expected) < 1e-5
    assert subject.check_logits()["ok"]
    subject.system.load(range(4))
    assert list(subject.system.infer([0, 1, 2], 0.0)) == list(expected[:3].argmax(1))


def test_bf16_of_openvino_really_differs(exported: tuple[Path, np.ndarray]) -> None:
    path, expected = exported
    system = runtimes.subject(spec("openvino", weights=str(path), precision="bf16"), 1).system
    error = np.linalg.norm(system.fixed_logits(4) - expected) / np.linalg.norm(expected)
    capabilities = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    assert error > 1e-4 if "BF16" in capabilities else error < 1e-1


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_file_that_is_no_model_of_resnet50_is_named(runtime: str, tmp_path: Path) -> None:
    onnx: Any = pytest.importorskip("onnx", reason=REASON.format("onnx"))
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    with pytest.raises(UnusableError, match=r"broken\.onnx: the runtime cannot read them"):
        runtimes.subject(spec(runtime, weights=str(broken)), 1)
    with pytest.raises(UnusableError, match=r"gone\.onnx: No such file"):
        runtimes.subject(spec(runtime, weights=str(tmp_path / "gone.onnx")), 1)
    with pytest.raises(
        UnusableError, match=r"not what they claim: sha256 .* correct weights_sha256"
    ):
        runtimes.subject(spec(runtime, weights=str(broken), weights_sha256="0" * 64), 1)
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Relu", ["x"], ["y"])],
        "relu",
        [info("x", onnx.TensorProto.FLOAT, ["n", 10])],
        [info("y", onnx.TensorProto.FLOAT, ["n", 10])],
    )
    other = tmp_path / "other.onnx"
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=9), other)
    with pytest.raises(UnusableError, match=r"of \['batch', 3, 224, 224\]"):
        runtimes.subject(spec(runtime, weights=str(other)), 1)


def test_a_row_of_exported_weights_is_checked_against_torch(tmp_path: Path) -> None:
    runtime = "onnxruntime"
    pytest.importorskip("torch", reason=REASON.format("torch"))
    pytest.importorskip("mlperf_loadgen", reason=REASON.format("mlcommons-loadgen"))
    value = Workload.model_validate(
        {"runtime": runtime, "fast": True, "threads": 1, "samples": 2, "in_flight": 1}
    )
    output, rows = run_resnet50(value, tmp_path)
    raw = json.loads(output.texts["result"])
    assert "against" not in raw["logits"]
    assert raw["logits"]["error"] < 1e-4
    assert runtime in raw["versions"]
    assert Resnet50().series(output).startswith(f"{runtime} ")
    assert any(row.metric == "throughput" and row.value > 0 for row in rows)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"precision": "bf16"}, "runtime onnxruntime computes here in fp32, not bf16"),
        ({"backend": "compile"}, "is PyTorch's: leave both out with runtime onnxruntime"),
        ({"runtime": "torch", "weights": "w.onnx"}, "is a model file: runtime onnxruntime or"),
        ({"runtime": "torch", "in_flight": 2}, "in_flight does nothing with runtime torch"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Workload.model_validate({"runtime": "onnxruntime"} | more)

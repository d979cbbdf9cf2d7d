"""ONNX Runtime and OpenVINO on the CPU. Only the program imports it."""

import hashlib
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from perfdag.hosts import cgroups
from perfdag.steps.resnet50.errors import UnusableError
from perfdag.steps.resnet50.inference.images import IMAGE
from perfdag.steps.resnet50.inference.pipeline import Pipeline, Run
from perfdag.steps.resnet50.inference.subject import Subject, cpu_facts

Opener = Callable[[str, Mapping[str, Any], int], tuple[Run, str]]
"""Of a model file, the spec and the threads of a batch: the network and the runtime's version."""


def subject(spec: Mapping[str, Any], repetitions: int) -> Subject:
    """Return the subject of runtime onnxruntime or openvino.

    `weights` is a model file (.onnx; OpenVINO also .xml), or what PyTorch exports first. Raises
    UnusableError, or ModuleNotFoundError without the runtime, or without PyTorch to export with.
    """
    threads = max(1, (spec["threads"] or cgroups.cpus()) // spec["in_flight"])
    opener = _OPENERS[spec["runtime"]]
    wanted = None
    if spec["weights"].endswith((".onnx", ".xml")):
        weights = _file_facts(spec["weights"], spec["weights_sha256"])
        run, version = opener(spec["weights"], spec, threads)
    else:
        from perfdag.steps.resnet50.inference import onnx_export

        with TemporaryDirectory(prefix="onnx-") as folder:
            path = f"{folder}/resnet50.onnx"
            weights, wanted = onnx_export.export(
                path, spec["weights"], spec["seed"], spec["weights_sha256"]
            )
            run, version = opener(path, spec, threads)
    facts = {
        "model": {
            **weights,
            "system": "resnet50",
            "runtime": spec["runtime"],
            "threads": threads * spec["in_flight"],
        },
        "device": cpu_facts(),
        "versions": {spec["runtime"]: version},
    }
    return Subject(spec, repetitions, Pipeline(spec, run), facts, wanted)


def _file_facts(weights: str, sha256: str | None) -> dict[str, Any]:
    """Return what identifies a model file. Raises UnusableError."""
    try:
        digest = hashlib.sha256(Path(weights).read_bytes()).hexdigest()
    except OSError as error:
        raise UnusableError(
            "weights", f"weights {weights}: {error.strerror}; give a model file that is there"
        ) from None
    if sha256 and digest != sha256:
        raise UnusableError(
            "weights",
            f"weights {weights} are not what they claim: sha256 {digest[:16]}...,"
            f" {sha256[:16]} expected; copy the file again, or correct weights_sha256",
        )
    return {
        "weights": weights,
        "weights_sha256": digest,
        "weights_verified": bool(sha256),
        "trained": True,
    }


def _onnxruntime(path: str, spec: Mapping[str, Any], threads: int) -> tuple[Run, str]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # it raises RuntimeError and classes of its own
        raise _no_model(path, error) from None
    (source, *more), (sink, *_) = session.get_inputs(), session.get_outputs()
    _check_input(path, source.shape, len(more))
    return lambda batch: session.run([sink.name], {source.name: batch})[0], onnxruntime.__version__


def _openvino(path: str, spec: Mapping[str, Any], threads: int) -> tuple[Run, str]:
    import openvino

    core, streams = openvino.Core(), spec["in_flight"]
    settings = {
        "INFERENCE_NUM_THREADS": threads * streams,
        "NUM_STREAMS": streams,
        "INFERENCE_PRECISION_HINT": {"fp32": "f32", "bf16": "bf16"}[spec["precision"]],
    }
    try:
        model = core.read_model(path)
        shape = [str(side) for side in model.inputs[0].partial_shape]
        _check_input(path, [int(side) if side.isdigit() else side for side in shape], 0)
        compiled = core.compile_model(model, "CPU", settings)
    except RuntimeError as error:
        raise _no_model(path, error) from None
    requests = threading.local()

    def run(batch: np.ndarray) -> np.ndarray:
        if not hasattr(requests, "one"):  # a request serves one thread at a time
            requests.one = compiled.create_infer_request()
        logits: np.ndarray = requests.one.infer([batch], share_inputs=True)[0]
        return logits

    return run, openvino.__version__.split("-")[0]


def _no_model(path: str, error: Exception) -> UnusableError:
    message = " ".join(str(error).split())[:200]
    return UnusableError("weights", f"weights {path}: the runtime cannot read them: {message}")


def _check_input(path: str, shape: list[Any], more: int) -> None:
    wanted = [IMAGE[2], *IMAGE[:2]]
    if more or list(shape[1:]) != wanted or isinstance(shape[0], int):
        raise UnusableError(
            "weights",
            f"weights {path} have {more + 1} inputs, the first of shape {shape}:"
            f" ResNet-50 has one, of ['batch', {', '.join(map(str, wanted))}] for any batch",
        )


_OPENERS: dict[str, Opener] = {"onnxruntime": _onnxruntime, "openvino": _openvino}

"""A model on the real MLServer, over both wires.

Needs `mlserver` on PATH: pip install mlserver, best in a virtual environment of its own.
"""

import json
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from perfdag.outcome import Skip
from perfdag.steps.resnet50.inference import endpoint
from perfdag.steps.resnet50.inference.images import images, preprocess
from perfdag.steps.resnet50.params import Workload
from tests.fakes.open_inference import mean_of_channels
from tests.resnet50.harness import needs_loadgen, run_resnet50

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("mlserver") is None,
        reason="mlserver is not on PATH: NO endpoint of the real MLServer was measured",
    ),
]
MODEL = """
import numpy
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse, MetadataTensor

WEIGHTS = numpy.linspace(-1, 1, 3000, dtype=numpy.float32).reshape(3, 1000)


class Model(MLModel):
    async def load(self):
        self.inputs = [MetadataTensor(name="input", datatype="FP32", shape=[-1, 3, 224, 224])]
        self.outputs = [MetadataTensor(name="logits", datatype="FP32", shape=[-1, 1000])]
        return True

    async def predict(self, payload):
        batch = NumpyCodec.decode_input(payload.inputs[0])
        logits = batch.mean((2, 3), dtype=numpy.float64).astype(numpy.float32) @ WEIGHTS
        return InferenceResponse(
            model_name=self.name, outputs=[NumpyCodec.encode_output("logits", logits)]
        )
"""


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The URL of each wire."""
    folder = tmp_path_factory.mktemp("mlserver")
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    names = ("http_port", "grpc_port", "metrics_port")
    ports = dict(zip(names, [one.getsockname()[1] for one in sockets], strict=True))
    for one in sockets:
        one.close()
    settings = {"host": "127.0.0.1", "parallel_workers": 0, **ports}
    (folder / "settings.json").write_text(json.dumps(settings))
    model = {"name": "resnet50", "implementation": "model.Model"}
    (folder / "model-settings.json").write_text(json.dumps(model))
    (folder / "model.py").write_text(MODEL)
    log = folder / "log"
    with (
        log.open("w") as out,
        subprocess.Popen(["mlserver", "start", "."], cwd=folder, stdout=out, stderr=out) as server,
    ):
        try:
            await_ready(f"http://127.0.0.1:{ports['http_port']}/v2/models/resnet50/ready", log)
            yield {wire: f"{wire}://127.0.0.1:{ports[f'{wire}_port']}" for wire in ("http", "grpc")}
        finally:
            server.kill()


def await_ready(url: str, log: Path) -> None:
    for _ in range(600):
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"mlserver is not ready: {log.read_text()[-2000:]}")


WIRES = {"http": "http, JSON", "grpc": "grpc, raw tensors"}


@needs_loadgen
@pytest.mark.parametrize("wire", WIRES)
def test_a_model_on_mlserver_is_measured(wire: str, urls: dict[str, str], tmp_path: Path) -> None:
    if wire == "grpc":
        pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
    params = Workload.model_validate(
        {
            "scenario": "single-stream",
            "runtime": "endpoint",
            "endpoint": urls[wire],
            "model": "resnet50",
            "fast": True,
            "samples": 4,
        }
    )
    subject = endpoint.subject(params.spec(), 1)
    expected = mean_of_channels(preprocess(images(0, range(4))))
    assert np.allclose(subject.system.fixed_logits(1), expected, atol=1e-5)
    output, rows = run_resnet50(params, tmp_path)
    result = json.loads(output.texts["result"])
    assert result["versions"]["endpoint"].startswith("mlserver 1.")
    assert result["model"]["wire"] == WIRES[wire]
    assert result["logits"]["ok"]
    assert result["logits_after"]["ok"]
    assert {row.metric: row.value for row in rows}["tail_latency"] > 0


def test_a_model_that_mlserver_does_not_have_is_named(urls: dict[str, str], tmp_path: Path) -> None:
    raw = {"runtime": "endpoint", "endpoint": urls["http"], "model": "other", "fast": True}
    params = Workload.model_validate(raw)
    with pytest.raises(Skip, match=r"GET /v2/models/other answers 404: .*other"):
        run_resnet50(params, tmp_path)
